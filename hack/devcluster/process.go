// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Command says what a process runs.
type Command struct {
	Name string   `json:"name"`
	Path string   `json:"path"`
	Args []string `json:"args"`
	Env  []string `json:"env,omitempty"`
	// Ready is the URL that answers 200 once the process serves.
	Ready string `json:"ready"`
	// Grace is how long the process may take to end with its cluster; 0
	// stands for ten seconds.
	Grace time.Duration `json:"grace,omitempty"`
}

// Process is a program in the background whose output goes to a log file. What
// it is and where it runs is kept in a record file, so that a later program
// can find it, end it and start it again.
type Process struct {
	Command
	Log string `json:"log"`
	// ID is what the process is known by since its last start.
	ID identity `json:"id"`

	record   string
	launcher launcher // nil: outlives this program

	mu     sync.Mutex
	exited chan struct{}
}

// Start starts the process; its output is added to the log.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exited != nil && !isClosed(p.exited) {
		return fmt.Errorf("start %s: already running as process %d", p.Name, p.ID.PID)
	}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	defer log.Close()

	cmd := exec.Command(p.Path, p.Args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(inheritedEnv(), p.Env...)
	// A session of its own: an interrupt typed at the terminal is not for it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.launcher.start(cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	exited := make(chan struct{})
	fail := func(err error) error {
		return errors.Join(fmt.Errorf("start %s: %w", p.Name, err), cmd.Process.Kill(), cmd.Wait())
	}
	// Nobody has waited for the process yet, so its number cannot have gone
	// to another.
	if p.ID, err = identify(cmd.Process.Pid); err != nil {
		return fail(err)
	}
	if err := p.save(); err != nil {
		return fail(err)
	}
	p.exited = exited
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(exited)
	}()
	return nil
}

// Pid returns the process number of the last start.
func (p *Process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ID.PID
}

// Exited is closed when the process started last has ended.
func (p *Process) Exited() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exited == nil {
		p.exited = make(chan struct{})
		close(p.exited)
	}
	return p.exited
}

// Running tells whether the process runs.
func (p *Process) Running() bool { return !isClosed(p.Exited()) }

// Stop asks the process to end, and kills it when it still runs after grace.
func (p *Process) Stop(grace time.Duration) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.Exited():
		return p.forget()
	case <-time.After(grace):
		return p.Kill()
	}
}

// Kill ends the process at once and waits until it is gone.
func (p *Process) Kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	select {
	case <-p.Exited():
		return p.forget()
	case <-time.After(10 * time.Second):
		return fmt.Errorf("%s (process %d) does not end when killed", p.Name, p.Pid())
	}
}

// signal sends a signal to the process if it still runs.
func (p *Process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	id := p.ID
	p.mu.Unlock()
	if !p.Running() {
		return nil
	}
	if err := id.signal(sig); err != nil {
		return fmt.Errorf("signal %s (process %d): %w", p.Name, id.PID, err)
	}
	return nil
}

// save writes the record, or leaves the old one as it is.
func (p *Process) save() error {
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(p.record, append(data, '\n'), 0o600)
}

// forget removes the record of a process that was ended on purpose. One that
// ended by itself keeps it, and is reported as ended.
func (p *Process) forget() error {
	if err := os.Remove(p.record); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// load returns the processes recorded in dir.
func load(dir string) ([]*Process, error) {
	records, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var processes []*Process
	for _, record := range records {
		data, err := os.ReadFile(record)
		if err != nil {
			return nil, err
		}
		p := &Process{record: record, exited: make(chan struct{})}
		if err := json.Unmarshal(data, p); err != nil {
			return nil, fmt.Errorf("read %s: %w", record, err)
		}
		if !p.ID.alive() {
			close(p.exited)
		} else {
			go func() {
				for p.ID.alive() {
					time.Sleep(20 * time.Millisecond)
				}
				close(p.exited)
			}()
		}
		processes = append(processes, p)
	}
	return processes, nil
}

// waitFor polls check until it succeeds, the process ends or the context does.
func (p *Process) waitFor(ctx context.Context, check func(context.Context) error) error {
	var last error
	for {
		if last = check(ctx); last == nil {
			return nil
		}
		select {
		case <-p.Exited():
			return fmt.Errorf("%s ended; the end of %s:\n%s", p.Name, p.Log, tail(p.Log, 15))
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return fmt.Errorf("wait for %s: %w", p.Name, ctx.Err())
			}
			return fmt.Errorf("%s is not ready: %w (%w); the end of %s:\n%s", p.Name, last, ctx.Err(), p.Log, tail(p.Log, 15))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// inheritedEnv is the part of the environment that background programs get.
// The rest stays out, because etcd takes each of its settings from there too.
func inheritedEnv() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "GOCOVERDIR"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
