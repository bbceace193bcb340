// SPDX-License-Identifier: Apache-2.0

// Package budgetchecker tests budget-checker against a real API server: three
// replicas, under the account and the permissions that it is installed with.
package budgetchecker

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"cozystack.io/gpu/hack/devcluster"
	"cozystack.io/gpu/hack/e2e/suite"
)

const (
	replicas = 3
	timeout  = 60 * time.Second
	interval = 50 * time.Millisecond

	total  = "gpu.cozystack.io/total"
	classA = "gpu.cozystack.io/class.a"
	classB = "gpu.cozystack.io/class.b"
)

var (
	env     = suite.Env{AuditLog: true, Services: []string{"budget-checker"}}
	service *devcluster.Service

	vmInstances = resource("vminstances")
	nodePools   = resource("kubernetesnodeses")
	tenants     = resource("tenants")
	gpuBudgets  = schema.GroupVersionResource{Group: "cozystack.io", Version: "v1alpha1", Resource: "gpubudgets"}
)

func resource(name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps.cozystack.io", Version: "v1alpha1", Resource: name}
}

func TestMain(m *testing.M) {
	os.Exit(suite.Main(m, &env, func(ctx context.Context) (err error) {
		if err := createNamespace(ctx, "tenant-root"); err != nil {
			return err
		}
		service, err = env.Cluster.InstallService(ctx, env.Root, "budget-checker", devcluster.ServiceOptions{Replicas: replicas})
		return err
	}))
}

func createNamespace(ctx context.Context, name string) error {
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
	object.SetName(name)
	_, err := env.Dynamic.Resource(suite.Namespaces).Create(ctx, object, metav1.CreateOptions{})
	return err
}

var names atomic.Int64

// tenant creates a tenant below the one that has the namespace, with the budget
// in YAML or none, and returns its namespace.
func tenant(t testing.TB, parent, budget string) string {
	t.Helper()
	name := fmt.Sprintf("t%d", names.Add(1))
	return namedTenant(t, parent, name, budget)
}

func namedTenant(t testing.TB, parent, name, budget string) string {
	t.Helper()
	require.NoError(t, declare(t, parent, name, budget))
	namespace := parent + "-" + name
	if parent == "tenant-root" {
		namespace = "tenant-" + name
	}
	require.NoError(t, createNamespace(t.Context(), namespace))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, resource := range []schema.GroupVersionResource{vmInstances, nodePools, tenants} {
			_ = env.Dynamic.Resource(resource).Namespace(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		}
		_ = env.Dynamic.Resource(tenants).Namespace(parent).Delete(ctx, name, metav1.DeleteOptions{})
		_ = env.Dynamic.Resource(suite.Namespaces).Delete(ctx, namespace, metav1.DeleteOptions{})
	})
	return namespace
}

// declare creates the tenant with the budget.
func declare(t testing.TB, parent, name, budget string) error {
	t.Helper()
	return create(t, tenants, parent, "Tenant", name, "{resourceQuotas: {cpu: '8', "+strings.Trim(budget, "{}")+"}}")
}

func create(t testing.TB, resource schema.GroupVersionResource, namespace, kind, name, spec string) error {
	t.Helper()
	object := suite.Object(t, "{apiVersion: apps.cozystack.io/v1alpha1, kind: %s, metadata: {name: %q, namespace: %s}, spec: %s}", kind, name, namespace, spec)
	_, err := env.Dynamic.Resource(resource).Namespace(namespace).Create(t.Context(), object, metav1.CreateOptions{})
	return err
}

// vm creates a VMInstance with units of class a.
func vm(t testing.TB, namespace, name string, units int) error {
	t.Helper()
	return vmOf(t, namespace, name, "a", units)
}

func vmOf(t testing.TB, namespace, name, class string, units int) error {
	t.Helper()
	return create(t, vmInstances, namespace, "VMInstance", name, fmt.Sprintf("{gpus: [{className: %s, count: %d}]}", class, units))
}

func remove(t testing.TB, resource schema.GroupVersionResource, namespace, name string) {
	t.Helper()
	require.NoError(t, client(resource, namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
}

func client(resource schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	return env.Dynamic.Resource(resource).Namespace(namespace)
}

// pool is the state of a budget's key in a GPUBudget.
type pool struct{ limit, carvedOut, used, reserved, free int64 }

// budget returns the state of the key as it is published.
func budget(t testing.TB, namespace, key string) (p pool, ok bool) {
	t.Helper()
	object, err := client(gpuBudgets, namespace).Get(t.Context(), "gpu", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return p, false
	}
	require.NoError(t, err)
	pools, _, err := unstructured.NestedSlice(object.Object, "status", "pools")
	require.NoError(t, err)
	for _, item := range pools {
		if fields := item.(map[string]any); fields["key"] == key {
			field := func(name string) int64 { return fields[name].(int64) }
			return pool{field("limit"), field("carvedOut"), field("used"), field("reserved"), field("free")}, true
		}
	}
	return p, false
}

// published waits until the key's published state is as wanted.
func published(t testing.TB, namespace, key string, want pool) {
	t.Helper()
	var last pool
	assert.Eventually(t, func() bool {
		last, _ = budget(t, namespace, key)
		return last == want
	}, timeout, interval)
	assert.Equal(t, want, last, "%s of %s", key, namespace)
}

// refused asserts that the write was refused because the key's budget is
// exceeded, and returns the message.
func refused(t testing.TB, err error, keys ...string) string {
	t.Helper()
	status := suite.Status(t, err)
	require.EqualValues(t, http.StatusForbidden, status.Code, "%v", err)
	require.Len(t, status.Details.Causes, len(keys), "%v", err)
	for i, key := range keys {
		assert.EqualValues(t, "BudgetExceeded", status.Details.Causes[i].Type)
		assert.Contains(t, status.Details.Causes[i].Message, key)
	}
	return status.Message
}

// concurrently calls do for each number below n, by so many clients at once.
func concurrently(clients, n int, do func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	wg.Wait()
}

// units sums the units of all stored VMInstances of the namespaces, by quota key.
func units(t testing.TB, namespaces ...string) map[string]int64 {
	t.Helper()
	sums := map[string]int64{}
	for _, namespace := range namespaces {
		list, err := client(vmInstances, namespace).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, object := range list.Items {
			gpus, _, err := unstructured.NestedSlice(object.Object, "spec", "gpus")
			require.NoError(t, err)
			for _, item := range gpus {
				entry := item.(map[string]any)
				sums["gpu.cozystack.io/class."+entry["className"].(string)] += entry["count"].(int64)
				sums[total] += entry["count"].(int64)
			}
		}
	}
	return sums
}
