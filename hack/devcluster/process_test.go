// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func testProcess(dir, script string) *Process {
	return &Process{
		Command:  Command{Name: "sample", Path: "/bin/sh", Args: []string{"-c", script}},
		Log:      filepath.Join(dir, "sample.log"),
		record:   filepath.Join(dir, "sample.json"),
		launcher: newLauncher(),
	}
}

func TestProcessStartsStopsAndStartsAgain(t *testing.T) {
	dir := t.TempDir()
	p := testProcess(dir, "echo started; exec sleep 60")
	if p.Running() {
		t.Error("runs before it is started")
	}
	var pids []int
	for range 2 {
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		if err := p.Start(); err == nil {
			t.Fatal("started twice")
		}
		pids = append(pids, p.Pid())
		if err := p.Stop(time.Minute); err != nil {
			t.Fatal(err)
		}
		if p.Running() || p.ID.alive() {
			t.Error("runs after it was stopped")
		}
	}
	if pids[0] == pids[1] {
		t.Errorf("both starts are process %d", pids[0])
	}
	if err := p.Kill(); err != nil {
		t.Errorf("kill of a stopped process: %v", err)
	}
	if isFile(p.record) {
		t.Error("the record of a stopped process stays")
	}
}

func TestProcessThatIgnoresSIGTERMIsKilled(t *testing.T) {
	p := testProcess(t.TempDir(), `trap "" TERM; echo deaf; while :; do sleep 0.05; done`)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	err := p.waitFor(t.Context(), func(context.Context) error {
		if tail(p.Log, 1) != "deaf" {
			return errors.New("not yet deaf")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(200 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if p.ID.alive() {
		t.Error("still runs")
	}
}

func TestWaitNamesTheEndOfTheLogOfAProcessThatEnds(t *testing.T) {
	p := testProcess(t.TempDir(), "echo reason >&2; exit 3")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	err := p.waitFor(t.Context(), func(context.Context) error { return errors.New("never") })
	if err == nil || !strings.Contains(err.Error(), "sample ended") || !strings.HasSuffix(err.Error(), "reason") {
		t.Errorf("error is %v", err)
	}
	if !isFile(p.record) {
		t.Error("no record of a process that ended by itself")
	}
}

func TestRecordedProcessIsFoundAndEnded(t *testing.T) {
	dir := t.TempDir()
	p := testProcess(dir, "exec sleep 60")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	loaded, err := load(dir)
	if err != nil || len(loaded) != 1 {
		t.Fatalf("loaded %v, %v", loaded, err)
	}
	if !loaded[0].Running() || loaded[0].Pid() != p.Pid() {
		t.Errorf("loaded %+v", loaded[0])
	}
	if err := loaded[0].Stop(time.Minute); err != nil {
		t.Fatal(err)
	}
	<-p.Exited()

	// The number belongs to another process by the time the record is read.
	p.ID.PID = os.Getpid()
	if err := p.save(); err != nil {
		t.Fatal(err)
	}
	loaded, err = load(dir)
	if err != nil || len(loaded) != 1 {
		t.Fatalf("loaded %v, %v", loaded, err)
	}
	if loaded[0].Running() {
		t.Error("this test is taken for the recorded process")
	}
	if err := loaded[0].Stop(time.Minute); err != nil { // would end this test
		t.Error(err)
	}
}

// TestAttachedProcessDiesWithItsProgram kills a program that has started one,
// so that nothing of the program's own can clean up.
func TestAttachedProcessDiesWithItsProgram(t *testing.T) {
	const dirVariable = "DEVCLUSTER_TEST_DIR"
	if dir := os.Getenv(dirVariable); dir != "" {
		p := testProcess(dir, "exec sleep 60")
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		if err := json.NewEncoder(os.Stdout).Encode(p.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		return
	}
	program := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	program.Env = append(os.Environ(), dirVariable+"="+t.TempDir())
	stdout, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var id identity
	if err := json.Unmarshal(line, &id); err != nil {
		t.Fatal(err)
	}
	if !id.alive() {
		t.Fatalf("%+v does not run", id)
	}
	if err := program.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = program.Wait()
	if err := poll(t.Context(), time.Minute, func() error {
		if id.alive() {
			return errors.New("still runs")
		}
		return nil
	}); err != nil {
		t.Errorf("the process after its program was killed: %v", err)
	}
}
