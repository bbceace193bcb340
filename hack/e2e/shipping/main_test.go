// SPDX-License-Identifier: Apache-2.0

// Package shipping tests what a hoster installs: the manifests in deploy, with
// kubectl's own commands, and deploy/README.md. There are no nodes: pods are
// created and stay pending.
package shipping

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"cozystack.io/gpu/hack/devcluster"
	"cozystack.io/gpu/hack/e2e/suite"
)

const (
	namespace = "cozy-gpu"
	timeout   = 60 * time.Second
	interval  = 100 * time.Millisecond
)

var env suite.Env

func TestMain(m *testing.M) {
	os.Exit(suite.Main(m, &env, func(ctx context.Context) error {
		for module, pattern := range map[string]string{
			"github.com/cert-manager/cert-manager":               "deploy/crds/cert-manager.io_*.yaml",
			"github.com/prometheus-operator/prometheus-operator": "example/prometheus-operator-crd/monitoring.coreos.com_*[rs].yaml",
		} {
			if err := installCRDs(ctx, module, pattern); err != nil {
				return fmt.Errorf("install the CRDs of %s: %w", module, err)
			}
		}
		return nil
	}))
}

// installCRDs installs the CRDs in a module's files, at the version that
// hack/crds requires.
func installCRDs(ctx context.Context, module, pattern string) error {
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	download.Dir = filepath.Join(env.Root, "hack", "crds")
	download.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
	out, err := download.Output()
	if err != nil {
		return fmt.Errorf("download: %w: %s", err, out)
	}
	var downloaded struct{ Dir string }
	if err := json.Unmarshal(out, &downloaded); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(downloaded.Dir, pattern))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no files are %s, %w", pattern, err)
	}
	var objects []*unstructured.Unstructured
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		more, err := devcluster.ParseObjects(bytes.NewReader(raw))
		if err != nil {
			return err
		}
		objects = append(objects, more...)
	}
	return devcluster.Apply(ctx, env.Cluster.Config(), objects)
}

// services are the bases in deploy: those with a Deployment.
func services(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(env.Root, "deploy", "*", "deployment.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var names []string
	for _, file := range files {
		names = append(names, filepath.Base(filepath.Dir(file)))
	}
	return names
}

// target is the path of a directory in deploy.
func target(elem ...string) string {
	return filepath.Join(append([]string{env.Root, "deploy"}, elem...)...)
}

// overlay makes a target of a base in deploy with components.
func overlay(t testing.TB, base string, components ...string) string {
	t.Helper()
	dir := t.TempDir()
	relative := func(path string) string {
		absolute, err := filepath.Abs(path)
		require.NoError(t, err)
		relative, err := filepath.Rel(dir, absolute)
		require.NoError(t, err)
		return relative
	}
	kustomization := fmt.Sprintf("resources: [%s]\ncomponents:\n", relative(target(base)))
	for _, component := range components {
		kustomization += "- " + relative(target("components", component)) + "\n"
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600))
	return dir
}

// appendTo adds the text to an overlay.
func appendTo(t testing.TB, dir, text string) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(dir, "kustomization.yaml"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteString(text)
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

// kubectl runs the command as the cluster's administrator and returns what it
// prints.
func kubectl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := tryKubectl(args...)
	require.NoError(t, err, "kubectl %s", strings.Join(args, " "))
	return out
}

func tryKubectl(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(env.Cluster.Dir(), "bin", "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+env.Cluster.Kubeconfig())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	return string(out), err
}

// installTypes applies deploy/crds and returns once the types are served.
func installTypes(t testing.TB) {
	t.Helper()
	kubectl(t, "apply", "-k", target("crds"))
	waitTypes(t)
}

// waitTypes waits until the types are served. Of one that nobody has asked for
// yet, the API server may be unable to end the removal.
func waitTypes(t testing.TB) {
	t.Helper()
	for _, resource := range []schema.GroupVersionResource{suite.GPUClasses, gpuBudgets} {
		require.Eventually(t, func() bool {
			_, err := env.Dynamic.Resource(resource).List(context.Background(), metav1.ListOptions{})
			return err == nil
		}, timeout, interval, resource.Resource)
	}
}

// install applies a target until the test ends, and returns when its pods, if
// any, were created. The types and the namespace stay: to remove and make them
// again takes long.
func install(t testing.TB, dir string) {
	t.Helper()
	t.Cleanup(func() {
		var lines []byte
		for _, object := range build(t, dir) {
			if kind := object.GetKind(); kind != "Namespace" && kind != "CustomResourceDefinition" {
				raw, err := object.MarshalJSON()
				require.NoError(t, err)
				lines = append(lines, raw...)
			}
		}
		file := filepath.Join(t.TempDir(), "objects.json")
		require.NoError(t, os.WriteFile(file, lines, 0o600))
		kubectl(t, "delete", "--ignore-not-found", "-f", file)
	})
	kubectl(t, "apply", "-k", dir)
	waitTypes(t)
	waitPods(t, dir)
}

// built keeps what build returned: to ask kubectl takes a while, and no target
// changes once it was built.
var built = map[string][]*unstructured.Unstructured{}

// build returns the objects of a target.
func build(t testing.TB, dir string) []*unstructured.Unstructured {
	t.Helper()
	if built[dir] == nil {
		objects, err := env.Cluster.Kustomize(context.WithoutCancel(t.Context()), dir) // also while a test cleans up
		require.NoError(t, err)
		require.NotEmpty(t, objects)
		built[dir] = objects
	}
	return built[dir]
}

// stored returns the objects of a target as the API server has them, by kind
// and name. Those that are not there are left out.
func stored(t testing.TB, dir string) map[string]*unstructured.Unstructured {
	t.Helper()
	found := map[string]*unstructured.Unstructured{}
	for _, object := range build(t, dir) {
		resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
		namespace := object.GetNamespace()
		if resource.Group == "admissionregistration.k8s.io" {
			namespace = "" // Kustomize gives policies one
		}
		got, err := env.Dynamic.Resource(resource).Namespace(namespace).Get(context.WithoutCancel(t.Context()), object.GetName(), metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			require.NoError(t, err, key(object))
			found[key(object)] = got
		}
	}
	return found
}

func key(object *unstructured.Unstructured) string { return object.GetKind() + " " + object.GetName() }
