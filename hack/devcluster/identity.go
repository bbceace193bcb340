// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// identity tells one process from all others of this boot: its number alone
// may be given to another process once it has ended.
type identity struct {
	PID int `json:"pid"`
	// StartTime is when the kernel started it, in clock ticks since boot.
	StartTime uint64 `json:"startTime"`
}

// identify returns the identity of the process that has the number now.
func identify(pid int) (identity, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return identity{}, err
	}
	_, start, err := parseStat(string(stat))
	return identity{PID: pid, StartTime: start}, err
}

// alive tells whether this very process still runs. One that has ended but was
// not yet waited for does not.
func (id identity) alive() bool {
	if id.PID <= 0 {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", id.PID))
	if err != nil {
		return false
	}
	state, start, err := parseStat(string(stat))
	return err == nil && start == id.StartTime && state != "Z" && state != "X"
}

// signal sends a signal to this very process, and nothing if it is gone.
func (id identity) signal(sig syscall.Signal) error {
	if id.PID <= 0 {
		return nil
	}
	// The handle is bound to the process that has the number now, so what is
	// checked next is also what gets the signal.
	process, err := os.FindProcess(id.PID)
	if err != nil {
		return err
	}
	defer process.Release()
	if !id.alive() {
		return nil
	}
	if err := process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// parseStat returns state and start time, fields 3 and 22 of /proc/<pid>/stat.
// Field 2 is the program's name in brackets and may itself hold any of these.
func parseStat(stat string) (state string, start uint64, err error) {
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	if len(fields) < 20 {
		return "", 0, fmt.Errorf("unexpected process status %q", stat)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return fields[0], start, err
}

// launcher starts programs that the kernel kills when this program ends,
// however it ends. The kernel ties that promise to the thread that started
// them, so all are started from one thread, which is kept for good.
type launcher chan func()

func newLauncher() launcher {
	l := make(launcher)
	go func() {
		runtime.LockOSThread()
		for start := range l {
			start()
		}
	}()
	return l
}

// start starts the command; on a nil launcher it outlives this program.
func (l launcher) start(cmd *exec.Cmd) error {
	if l == nil {
		return cmd.Start()
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	result := make(chan error)
	l <- func() { result <- cmd.Start() }
	return <-result
}
