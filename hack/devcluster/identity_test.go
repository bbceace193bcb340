// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"os/exec"
	"syscall"
	"testing"
)

func TestAnotherProcessOfTheSameNumberIsLeftAlone(t *testing.T) {
	stranger := exec.Command("sleep", "60")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := identify(stranger.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	ours := id
	ours.StartTime-- // ended, and its number was given to the stranger
	if ours.alive() {
		t.Error("the stranger is taken for our process")
	}
	if err := ours.signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if !id.alive() {
		t.Fatal("the stranger was killed")
	}

	if err := id.signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	err = stranger.Wait()
	if status, ok := stranger.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGTERM {
		t.Errorf("our process ended with %v instead of the signal", err)
	}
	if id.alive() {
		t.Error("an ended process is alive")
	}
	if err := id.signal(syscall.SIGTERM); err != nil {
		t.Errorf("signal to an ended process: %v", err)
	}
}

func TestParseStat(t *testing.T) {
	for _, test := range []struct {
		name, stat, state string
		start             uint64
		fails             bool
	}{
		{"plain", "7 (etcd) S 1 7 7 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 9 0 4711 1 1", "S", 4711, false},
		{"brackets and blanks in the name", "7 (a) Z (b 9 9) R 1 7 7 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 9 0 4711 1 1", "R", 4711, false},
		{"cut off", "7 (etcd) S 1 7", "", 0, true},
		{"empty", "", "", 0, true},
		{"no number", "7 (etcd) S 1 7 7 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 9 0 x 1 1", "S", 0, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			state, start, err := parseStat(test.stat)
			if state != test.state || start != test.start || (err != nil) != test.fails {
				t.Errorf("got %q, %d, %v", state, start, err)
			}
		})
	}
}
