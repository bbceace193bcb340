// SPDX-License-Identifier: Apache-2.0

// Package images tests the services' images: it builds them as `make images`
// does, with a builder that needs no daemon, and starts what is in them.
package images

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	root = "../.."
	user = 65532
)

// builder runs buildah with a store of its own.
type builder struct{ store string }

func (b builder) run(t *testing.T, args ...string) string {
	t.Helper()
	args = append([]string{"--root", b.store + "/root", "--runroot", b.store + "/run", "--storage-driver", "vfs"}, args...)
	cmd := exec.Command("buildah", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("buildah %s: %v\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out))
}

type image struct {
	User       string
	Entrypoint []string
	Labels     map[string]string
}

func TestImages(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("mounting an image takes root, or a shell of `buildah unshare`")
	}
	dockerfiles, err := filepath.Glob(root + "/services/*/Dockerfile")
	if err != nil || len(dockerfiles) == 0 {
		t.Fatalf("found %d Dockerfiles, %v", len(dockerfiles), err)
	}
	version, revision := cmp.Or(os.Getenv("VERSION"), "devel"), cmp.Or(os.Getenv("REVISION"), "unknown")
	b := builder{t.TempDir()}
	for _, dockerfile := range dockerfiles {
		name := filepath.Base(filepath.Dir(dockerfile))
		t.Run(name, func(t *testing.T) {
			b.run(t, "bud", "--isolation", "chroot", "--build-arg", "VERSION="+version, "--build-arg", "REVISION="+revision,
				"-t", name, "-f", dockerfile, privateContext(t, name))
			checkImage(t, inspect(t, b, name), name, version, revision)

			container := b.run(t, "from", name)
			t.Cleanup(func() { b.run(t, "rm", container) })
			dir := b.run(t, "mount", container)
			t.Cleanup(func() { b.run(t, "umount", container) })
			checkFiles(t, dir, name)
			readOnly(t, dir)

			out, err := start(dir, name, "--version")
			if want := name + " " + version + " (revision " + revision + ", " + runtime.Version() + ")\n"; err != nil || out != want {
				t.Errorf("--version prints %q, want %q; %v", out, want, err)
			}
			// As far as a service comes where there is no cluster.
			out, err = start(dir, name)
			if err == nil || !strings.Contains(out, "read how to reach the API server") {
				t.Errorf("outside of a cluster: %v, %s", err, out)
			}
		})
	}
}

// privateContext returns a folder with the service's binary as a builder leaves it
// whose umask lets nobody else use it.
func privateContext(t *testing.T, name string) string {
	t.Helper()
	binary, err := os.ReadFile(filepath.Join(root, "bin", "linux-"+runtime.GOARCH, name))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), binary, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func inspect(t *testing.T, b builder, name string) image {
	t.Helper()
	var inspected struct{ OCIv1 struct{ Config image } }
	if err := json.Unmarshal([]byte(b.run(t, "inspect", "--type", "image", name)), &inspected); err != nil {
		t.Fatal(err)
	}
	return inspected.OCIv1.Config
}

func checkImage(t *testing.T, i image, name, version, revision string) {
	t.Helper()
	if i.User != "65532:65532" {
		t.Errorf("user is %q", i.User)
	}
	if !slices.Equal(i.Entrypoint, []string{"/" + name}) {
		t.Errorf("entrypoint is %q", i.Entrypoint)
	}
	for label, want := range map[string]string{"title": name, "licenses": "Apache-2.0", "version": version, "revision": revision} {
		if got := i.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("label %s is %q, want %q", label, got, want)
		}
	}
	if i.Labels["org.opencontainers.image.description"] == "" {
		t.Error("no description")
	}
}

// checkFiles fails unless the binary is the image's only file.
func checkFiles(t *testing.T, dir, name string) {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, strings.TrimPrefix(path, dir))
		}
		return err
	})
	if err != nil || !slices.Equal(files, []string{"/" + name}) {
		t.Errorf("files are %q, %v", files, err)
	}
}

// readOnly makes a directory read-only for everybody until the test ends.
func readOnly(t *testing.T, dir string) {
	t.Helper()
	if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	if err := syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o644); err == nil {
		t.Fatal("the root can be written to")
	}
}

// start runs the image's binary as a kubelet would: as the image's user, with
// nothing but the image's files, and only the environment of a pod. It returns
// what is printed.
func start(dir, name string, args ...string) (string, error) {
	cmd := exec.Command("/"+name, args...)
	cmd.Dir, cmd.Env = "/", []string{"HOSTNAME=test"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir, Credential: &syscall.Credential{Uid: user, Gid: user}}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	timer := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Wait()
	return out.String(), err
}
