// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func buildControlPlane(t *testing.T) string {
	t.Helper()
	binary, err := Build(t.Context(), ControlPlane(filepath.Join("..", "..")), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

func startCluster(t *testing.T, o Options) *Cluster {
	t.Helper()
	o.ControlPlane = buildControlPlane(t)
	o.Dir = filepath.Join(t.TempDir(), "state")
	o.Attached = true
	began := time.Now()
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("ready after %v", time.Since(began).Round(time.Millisecond))
	return c
}

func clientFor(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestClusterKeepsObjectsOverARestartAndLeavesNothingRunning(t *testing.T) {
	c := startCluster(t, Options{AuditLog: true})
	ctx := t.Context()
	client := clientFor(t, c.Kubeconfig())

	version, err := client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(version.GitVersion, "v1.") {
		t.Errorf("the API server calls itself %s", version.GitVersion)
	}

	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	apiserver := c.Process(APIServer)
	before := apiserver.Pid()
	if err := c.Restart(ctx, apiserver); err != nil {
		t.Fatal(err)
	}
	if apiserver.Pid() == before {
		t.Error("the API server was not restarted")
	}
	if _, err := client.CoreV1().Namespaces().Get(ctx, "kept", metav1.GetOptions{}); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	audit, err := os.ReadFile(c.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(audit, []byte(`"requestURI":"/api/v1/namespaces`)) || bytes.Contains(audit, []byte(`"requestObject"`)) {
		t.Error("the audit log does not hold metadata, or holds more")
	}

	processes := c.Processes()
	if len(processes) != 4 {
		t.Fatalf("%d processes", len(processes))
	}
	for _, p := range processes {
		t.Logf("%s: %s", p.Name, residentMemory(t, p))
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if p.ID.alive() {
			t.Errorf("%s runs after the stop", p.Name)
		}
	}
	if err := Remove(c.Dir()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(c.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state after it was removed: %v", err)
	}
}

func residentMemory(t *testing.T, p *Process) string {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

func TestClusterIsOpenedServedAndRemovedByALaterProgram(t *testing.T) {
	started := startCluster(t, Options{})
	c, err := Open(started.Dir())
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()

	t.Run("a ServiceAccount's kubeconfig has its rights only", func(t *testing.T) {
		kubeconfig, err := c.KubeconfigFor(ctx, "default", "default")
		if err != nil {
			t.Fatal(err)
		}
		client := clientFor(t, kubeconfig)
		_, err = client.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "system:serviceaccount:default:default") {
			t.Errorf("list secrets: %v", err)
		}
	})

	t.Run("an object is applied with the kind that defines it", func(t *testing.T) {
		objects, err := ParseObjects(strings.NewReader(widgets))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time over what is there
			if err := Apply(ctx, c.Config(), objects); err != nil {
				t.Fatal(err)
			}
		}
		out, err := output(ctx, c.path("bin", "kubectl"), "--kubeconfig", c.Kubeconfig(),
			"get", "widgets", "-n", "shop", "-o", "jsonpath={.items[*].spec.size} {.items[*].metadata.generation}")
		if err != nil || string(out) != "3 1" {
			t.Errorf("kubectl says %q, %v", out, err)
		}
	})

	t.Run("a killed component is started again on its port", func(t *testing.T) {
		p := c.Process(APIServer)
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Kill() })
		if err := c.WaitReady(ctx, p); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("removal ends every process", func(t *testing.T) {
		if err := Remove(c.Dir()); err != nil {
			t.Fatal(err)
		}
		for _, p := range append(c.Processes(), started.Processes()...) {
			if p.ID.alive() {
				t.Errorf("%s runs", p.Name)
			}
		}
		if _, err := Open(c.Dir()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("open afterwards: %v", err)
		}
	})
}

const widgets = `
apiVersion: example.org/v1
kind: Widget
metadata: {name: one, namespace: shop}
spec: {size: 3}
---
# nothing here
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Namespace
  metadata: {name: shop}
- apiVersion: apiextensions.k8s.io/v1
  kind: CustomResourceDefinition
  metadata: {name: widgets.example.org}
  spec:
    group: example.org
    scope: Namespaced
    names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
    versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, properties: {size: {type: integer}}}
`

func TestStartThatFailsSaysWhyAndLeavesNothingRunning(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	_, err := Start(t.Context(), Options{
		Dir:          dir,
		ControlPlane: buildControlPlane(t),
		Attached:     true,
		ExtraArgs:    map[string][]string{APIServer: {"--no-such-flag"}},
	})
	if err == nil || !strings.Contains(err.Error(), "kube-apiserver ended") || !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
		t.Errorf("error is %v", err)
	}
	processes, err := Recorded(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if p.Running() {
			t.Errorf("%s runs", p.Name)
		}
	}
}

func TestDirectoriesOfOthersAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "precious"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("start in a directory with files: %v", err)
	}
	if err := Remove(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("remove of a directory without a cluster: %v", err)
	}
	if !isFile(filepath.Join(dir, "precious")) {
		t.Error("a foreign file is gone")
	}
}
