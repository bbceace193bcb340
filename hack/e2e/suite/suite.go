// SPDX-License-Identifier: Apache-2.0

// Package suite gives the end-to-end tests a development cluster and a short
// way to write objects to it.
package suite

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"cozystack.io/gpu/hack/devcluster"
)

// The resources that the tests write.
var (
	GPUClasses = schema.GroupVersionResource{Group: "cozystack.io", Version: "v1alpha1", Resource: "gpuclasses"}
	KubeVirts  = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "kubevirts"}
	VMIs       = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}
	Namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

// Env is a cluster of a test binary's own.
type Env struct {
	Root    string
	Cluster *devcluster.Cluster
	Dynamic dynamic.Interface
	Kube    kubernetes.Interface

	// AuditLog, set before Main, makes the API server log every request.
	AuditLog bool
	// Services, set before Main, are those that the tests run. When all tests
	// of the package were run, Main fails on a permission that one of them is
	// installed with and never used. It needs the audit log.
	Services []string

	kubevirt string // KubeVirt's binary
}

// InstallKubeVirt adds KubeVirt's control plane and the nodes to the cluster.
func (e *Env) InstallKubeVirt(ctx context.Context) error {
	if err := e.Cluster.InstallKubeVirt(ctx, e.kubevirt); err != nil {
		return err
	}
	return e.Cluster.InstallNodes(ctx, e.Root)
}

// Main starts a cluster, sets it up, runs the tests and returns their exit
// code. The cluster's state is deleted unless a test failed.
func Main(m *testing.M, env *Env, setUp func(context.Context) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "gpu-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	err = env.start(ctx, dir)
	if env.Cluster != nil {
		defer func() { _ = env.Cluster.Stop() }()
	}
	if err == nil {
		err = setUp(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "set up the end-to-end tests:", err)
		return 1
	}
	code := m.Run()
	if code == 0 && len(env.Services) > 0 && ranAll() {
		if err := env.checkPermissions(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if code == 0 {
		_ = env.Cluster.Stop()
		_ = os.RemoveAll(dir)
	} else {
		fmt.Fprintln(os.Stderr, "the cluster's state and logs are in", dir)
	}
	return code
}

func (e *Env) start(ctx context.Context, dir string) (err error) {
	if e.Root, err = devcluster.FindRoot("."); err != nil {
		return err
	}
	controlPlane, err := devcluster.Build(ctx, devcluster.ControlPlane(e.Root), os.Stderr)
	if err != nil {
		return err
	}
	if e.kubevirt, err = devcluster.Build(ctx, devcluster.KubeVirt(e.Root), os.Stderr); err != nil {
		return err
	}
	e.Cluster, err = devcluster.Start(ctx, devcluster.Options{
		Dir: filepath.Join(dir, "cluster"), ControlPlane: controlPlane, Attached: true, AuditLog: e.AuditLog,
	})
	if err != nil {
		return err
	}
	if err := e.Cluster.InstallCRDs(ctx, e.Root, e.kubevirt); err != nil {
		return err
	}
	if e.Dynamic, err = dynamic.NewForConfig(e.Cluster.Config()); err != nil {
		return err
	}
	e.Kube, err = kubernetes.NewForConfig(e.Cluster.Config())
	return err
}

// Object parses a manifest, whose placeholders are filled as fmt does.
func Object(t testing.TB, manifest string, args ...any) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	require.NoError(t, yaml.Unmarshal(fmt.Appendf(nil, manifest, args...), &object.Object))
	return object
}

// Create creates the object and has it deleted when the test ends.
func (e *Env) Create(t testing.TB, resource schema.GroupVersionResource, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	created, err := e.Dynamic.Resource(resource).Namespace(object.GetNamespace()).Create(t.Context(), object, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { e.Delete(t, resource, created) })
	return created
}

// Delete deletes the object and waits until it is gone.
func (e *Env) Delete(t testing.TB, resource schema.GroupVersionResource, object *unstructured.Unstructured) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	client := e.Dynamic.Resource(resource).Namespace(object.GetNamespace())
	err := client.Delete(ctx, object.GetName(), metav1.DeleteOptions{})
	require.True(t, err == nil || apierrors.IsNotFound(err), "%v", err)
	assert.Eventually(t, func() bool {
		_, err := client.Get(ctx, object.GetName(), metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, 30*time.Second, 20*time.Millisecond, "%s %s is not gone", object.GetKind(), object.GetName())
}

// Namespace creates a namespace for the test with the labels. It is deleted
// with the test, without waiting for its end.
func (e *Env) Namespace(t testing.TB, labels map[string]string) string {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
	object.SetGenerateName("tenant-")
	object.SetLabels(labels)
	created, err := e.Dynamic.Resource(Namespaces).Create(t.Context(), object, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = e.Dynamic.Resource(Namespaces).Delete(context.WithoutCancel(t.Context()), created.GetName(), metav1.DeleteOptions{})
	})
	return created.GetName()
}

// Status returns the API server's answer in an error.
func Status(t testing.TB, err error) metav1.Status {
	t.Helper()
	require.Error(t, err)
	status, ok := err.(apierrors.APIStatus)
	require.True(t, ok, "no answer of the API server: %v", err)
	return status.Status()
}
