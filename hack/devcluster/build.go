// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Module is a Go main module that takes minutes to build. Its one binary is
// named after its directory.
type Module struct {
	Dir string
	// Versions maps a string variable of the program to the required module
	// whose version the linker writes into it.
	Versions map[string]string
}

// ControlPlane is the module with etcd, the Kubernetes control plane and
// kubectl. Without its version a component calls itself v0.0.0, and clients
// that compare versions get it wrong.
func ControlPlane(root string) Module {
	return Module{
		Dir:      filepath.Join(root, "hack", "devcluster", "controlplane"),
		Versions: map[string]string{"k8s.io/component-base/version.gitVersion": "k8s.io/kubernetes"},
	}
}

// KubeVirt is the module with KubeVirt's control plane and CRDs.
func KubeVirt(root string) Module {
	return Module{Dir: filepath.Join(root, "hack", "devcluster", "kubevirt")}
}

func (m Module) name() string { return filepath.Base(m.Dir) }

// Build returns the path of the module's binary. It lies in the user's cache
// directory under a key of everything it is made from, and is built only when
// it is not there yet. Builds of one key wait for each other.
func Build(ctx context.Context, m Module, progress io.Writer) (string, error) {
	binary, err := build(ctx, m, progress)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", m.name(), err)
	}
	return binary, nil
}

func build(ctx context.Context, m Module, progress io.Writer) (string, error) {
	flags, err := m.flags(ctx)
	if err != nil {
		return "", err
	}
	version, err := goCommand(ctx, m.Dir, "env", "GOVERSION").Output()
	if err != nil {
		return "", fmt.Errorf("ask for the version of Go: %w", err)
	}
	key, err := inputKey(m.Dir, append(flags, string(version), runtime.GOOS, runtime.GOARCH)...)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "cozystack-gpu", m.name(), key)
	binary := filepath.Join(dir, m.name())
	if isFile(binary) {
		return binary, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, filepath.Join(dir, "lock"), func() {
		fmt.Fprintf(progress, "%s: waiting for another build of it\n", m.name())
	})
	if err != nil {
		return "", err
	}
	defer unlock()
	if isFile(binary) {
		return binary, nil
	}
	// Only the holder of the lock writes this file; a half-written one is
	// never taken for the binary.
	unfinished := binary + ".unfinished"
	if err := compile(ctx, m, append(flags, "-o", unfinished, "."), progress); err != nil {
		return "", err
	}
	return binary, os.Rename(unfinished, binary)
}

func (m Module) flags(ctx context.Context) ([]string, error) {
	out, err := goCommand(ctx, m.Dir, "mod", "edit", "-json").Output()
	if err != nil {
		return nil, fmt.Errorf("read go.mod: %w", err)
	}
	var mod struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		return nil, fmt.Errorf("read go.mod: %w", err)
	}
	versions := map[string]string{}
	for _, r := range mod.Require {
		versions[r.Path] = r.Version
	}
	ldflags := []string{"-s", "-w"}
	for _, variable := range slices.Sorted(maps.Keys(m.Versions)) {
		path := m.Versions[variable]
		if versions[path] == "" {
			return nil, fmt.Errorf("go.mod does not require %s", path)
		}
		ldflags = append(ldflags, "-X", variable+"="+versions[path])
	}
	return []string{"-trimpath", "-ldflags", strings.Join(ldflags, " ")}, nil
}

// compile runs go build and writes a line of progress every ten seconds.
func compile(ctx context.Context, m Module, args []string, progress io.Writer) error {
	start := time.Now()
	report := func(format string, a ...any) {
		fmt.Fprintf(progress, "%s: %s, %s\n", m.name(), fmt.Sprintf(format, a...), time.Since(start).Round(time.Second))
	}
	report("not in the cache, building (once; about ten minutes on two cores)")

	packages, downloads := 0, 0
	list := goCommand(ctx, m.Dir, "list", "-deps", ".")
	list.Stdout = lineCounter{&packages}
	err := follow(list, func(string) { downloads++ }, func() {
		report("%d modules downloaded", downloads)
	})
	if err != nil {
		return fmt.Errorf("list packages: %w", err)
	}

	// With -v, go build names each package it compiles; what its own cache
	// holds is not named.
	compiled := 0
	err = follow(goCommand(ctx, m.Dir, append([]string{"build", "-v"}, args...)...),
		func(line string) {
			if !strings.Contains(line, " ") {
				compiled++
			}
		},
		func() { report("%d packages compiled of at most %d", compiled, packages) })
	if err != nil {
		return err
	}
	report("built")
	return nil
}

// follow runs a command, hands each line of its standard error to line and
// calls tick every ten seconds. Its error ends with the last of those lines.
func follow(cmd *exec.Cmd, line func(string), tick func()) error {
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(stderr); s.Scan(); {
			lines <- s.Text()
		}
	}()
	ticker := time.NewTicker(10 * time.Second)
	defer ticker.Stop()
	var last []string
	for open := true; open; {
		var text string
		select {
		case <-ticker.C:
			tick()
		case text, open = <-lines:
			if open {
				line(text)
				last = append(last[max(0, len(last)-20):], text)
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w\n%s", err, strings.Join(last, "\n"))
	}
	return nil
}

// goCommand is the go command in dir for binaries that run on this machine,
// whatever the caller's environment sets for its own builds.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly -buildvcs=false", "GOWORK=off", "CGO_ENABLED=0",
		"GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
	// The go command ends its compilers on an interrupt; killed, it would
	// leave them behind.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// lineCounter counts the lines written to it.
type lineCounter struct{ n *int }

func (c lineCounter) Write(p []byte) (int, error) {
	*c.n += strings.Count(string(p), "\n")
	return len(p), nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
