// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// testModule writes a module of the standard library alone and points the
// cache elsewhere.
func testModule(t *testing.T, source string) Module {
	t.Helper()
	t.Setenv("GOCACHE", goEnv(t, "GOCACHE")) // else it moves along
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := filepath.Join(t.TempDir(), "sample")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{"go.mod": "module sample\n\ngo 1.26.0\n", "main.go": source} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Module{Dir: dir}
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

const sample = `package main

import "fmt"

func main() { fmt.Println("built") }
`

func TestBuildOnceAndKeep(t *testing.T) {
	t.Setenv("GOFLAGS", "-mod=vendor -tags=surprise")
	t.Setenv("GOOS", "plan9")
	module := testModule(t, sample)

	var first, second strings.Builder
	binary, err := Build(t.Context(), module, &first)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(binary).Output()
	if err != nil || string(out) != "built\n" {
		t.Fatalf("the binary says %q, %v", out, err)
	}
	if strings.HasPrefix(binary, module.Dir) {
		t.Errorf("the binary %s lies in the module", binary)
	}
	if !strings.Contains(first.String(), "sample: built") {
		t.Errorf("no progress in %q", first.String())
	}
	again, err := Build(t.Context(), module, &second)
	if err != nil || again != binary || second.String() != "" {
		t.Errorf("second build: %s, %v, said %q", again, err, second.String())
	}
}

func TestBuildsAtOnceShareOneResult(t *testing.T) {
	module := testModule(t, sample)
	var mu sync.Mutex
	var progress strings.Builder
	binaries := make([]string, 4)
	var group sync.WaitGroup
	for i := range binaries {
		group.Go(func() {
			binary, err := Build(t.Context(), module, writerFunc(func(p []byte) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				return progress.Write(p)
			}))
			if err != nil {
				t.Error(err)
			}
			binaries[i] = binary
		})
	}
	group.Wait()
	for _, binary := range binaries {
		if binary != binaries[0] {
			t.Errorf("built %s and %s", binaries[0], binary)
		}
	}
	if n := strings.Count(progress.String(), "sample: built"); n != 1 {
		t.Errorf("built %d times:\n%s", n, progress.String())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestBuildSaysWhatDoesNotCompile(t *testing.T) {
	module := testModule(t, "package main\n\nfunc main() { undefinedName() }\n")
	var progress strings.Builder
	_, err := Build(t.Context(), module, &progress)
	if err == nil || !strings.Contains(err.Error(), "undefined: undefinedName") || !strings.HasPrefix(err.Error(), "build sample: ") {
		t.Errorf("error is %v", err)
	}
}

func TestControlPlaneIsStampedWithItsKubernetesVersion(t *testing.T) {
	flags, err := ControlPlane(filepath.Join("..", "..")).flags(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if joined := strings.Join(flags, " "); !strings.Contains(joined, "-X k8s.io/component-base/version.gitVersion=v1.") {
		t.Errorf("flags are %s", joined)
	}
	wrong := ControlPlane(filepath.Join("..", ".."))
	wrong.Versions = map[string]string{"a.b": "example.org/absent"}
	if _, err := wrong.flags(t.Context()); err == nil {
		t.Error("a version of a module that is not required is no error")
	}
}
