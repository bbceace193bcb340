// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cozystack.io/gpu/hack/devcluster"
)

func TestUpSaysWhatABrokenClusterLacks(t *testing.T) {
	c := &command{state: t.TempDir()}
	write := func(text string, path ...string) {
		t.Helper()
		file := filepath.Join(append([]string{c.state}, path...)...)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("", "devcluster")
	for _, name := range []string{"etcd", "kube-apiserver"} {
		log := filepath.Join(c.state, name+".log")
		write(fmt.Sprintf(`{"name": %q, "path": "/bin/sleep", "args": ["600"], "log": %q}`, name, log), "run", name+".json")
	}
	processes, err := devcluster.Recorded(c.state)
	if err != nil || len(processes) != 2 {
		t.Fatalf("%v, %v", processes, err)
	}
	start := func(p *devcluster.Process) {
		t.Helper()
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Stop(time.Minute); err != nil {
				t.Error(err)
			}
		})
	}
	start(processes[0])
	_, err = c.running()
	if err == nil || !strings.Contains(err.Error(), "runs without "+processes[1].Name+":") || !strings.Contains(err.Error(), "make down") {
		t.Errorf("one of two runs: %v", err)
	}
	start(processes[1])
	_, err = c.running()
	if err == nil || !strings.Contains(err.Error(), "cut short") || !strings.Contains(err.Error(), "make down") {
		t.Errorf("both run, and the start did not end: %v", err)
	}
	write("", filepath.Base(c.complete()))
	if up, err := c.running(); !up || err != nil {
		t.Errorf("whole: %t, %v", up, err)
	}
}
