// SPDX-License-Identifier: Apache-2.0

package budgetchecker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func patch(t testing.TB, namespace, name, patch string) error {
	t.Helper()
	_, err := client(vmInstances, namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// rebudget changes keys of a tenant's quotas, in JSON.
func rebudget(t testing.TB, parent, namespace, quotas string) error {
	t.Helper()
	name := namespace[strings.LastIndex(namespace, "-")+1:]
	_, err := client(tenants, parent).Patch(t.Context(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"resourceQuotas":%s}}`, quotas), metav1.PatchOptions{})
	return err
}

func TestOwnBudget(t *testing.T) {
	t.Parallel()
	x := tenant(t, "tenant-root", total+": 3")
	require.NoError(t, vm(t, x, "two", 2))
	published(t, x, total, pool{limit: 3, used: 2, free: 1})
	message := refused(t, vm(t, x, "more", 2), total)
	assert.Contains(t, message, "2 are asked for, but only 1 are free in the budget of namespace "+x+": of 3, 2 in use")
	require.NoError(t, vm(t, x, "one", 1))
	refused(t, patch(t, x, "one", `{"spec":{"gpus":[{"className":"a","count":2}]}}`), total)

	// What is not raised passes.
	require.NoError(t, rebudget(t, "tenant-root", x, `{"`+total+`":"1"}`))
	require.NoError(t, patch(t, x, "two", `{"metadata":{"labels":{"edited":"true"}}}`))
	require.NoError(t, patch(t, x, "two", `{"spec":{"gpus":[{"className":"a","count":1}]}}`))
	refused(t, vm(t, x, "more", 1), total)
	remove(t, vmInstances, x, "one")
	remove(t, vmInstances, x, "two")
	require.NoError(t, rebudget(t, "tenant-root", x, `{"`+total+`":null}`))
	require.Eventually(t, func() bool { return vm(t, x, "unlimited", 100) == nil }, timeout, interval, "the budget is gone")
}

func TestFreedUnitsAreUsableWithinSeconds(t *testing.T) {
	t.Parallel()
	x := tenant(t, "tenant-root", total+": 1")
	for i := range 5 {
		name := fmt.Sprintf("vm%d", i)
		require.Eventually(t, func() bool { return vm(t, x, name, 1) == nil }, timeout, interval)
		require.Eventually(t, func() bool { p, _ := budget(t, x, total); return p.used == 1 && p.reserved == 0 }, timeout, interval)
		remove(t, vmInstances, x, name)
	}
}

func TestInheritedPoolAndCarveOuts(t *testing.T) {
	t.Parallel()
	x := tenant(t, "tenant-root", total+": 10, "+classA+": 8")
	y := tenant(t, x, "")
	z := tenant(t, y, total+": 4")
	published(t, x, total, pool{limit: 10, carvedOut: 4, free: 6})

	require.NoError(t, vm(t, y, "shared", 5), "y has no budget of its own")
	message := refused(t, vm(t, y, "more", 2), total)
	assert.Contains(t, message, "only 1 are free in the budget of a tenant above")
	assert.NotContains(t, message, "in use", "an ancestor's use is its own")

	// Class a of z is in x's pool, its total is its own.
	refused(t, vm(t, z, "five", 5), classA, total)
	require.NoError(t, vm(t, z, "three", 3))
	refused(t, vm(t, z, "one", 1), classA)
	require.NoError(t, vmOf(t, z, "other", "b", 1))
	refused(t, vmOf(t, z, "another", "b", 1), total)

	// A carve-out must fit into what is left, in its parent's pool.
	refused(t, declare(t, x, "greedy", total+": 2"), total)
	fits := tenant(t, x, total+": 1")
	refused(t, vm(t, y, "one", 1), classA, total)
	refused(t, rebudget(t, x, fits, `{"`+total+`":2}`), total)
	require.NoError(t, rebudget(t, x, fits, `{"`+total+`":0}`), "lowering passes")
	refused(t, vmOf(t, fits, "none", "b", 1), total)
}

func TestNodePools(t *testing.T) {
	t.Parallel()
	x := tenant(t, "tenant-root", total+": 12")
	pool := func(name, spec string) error { return create(t, nodePools, x, "KubernetesNodes", name, spec) }
	require.NoError(t, pool("small", "{cluster: c, minReplicas: 1, maxReplicas: 2, gpus: [{className: a, count: 2}]}"))
	refused(t, pool("ten", "{cluster: c, gpus: [{className: a, count: 1}]}"), total) // 10 replicas by default
	require.NoError(t, pool("legacy", "{cluster: c, gpus: [{name: nvidia.com/X}]}"))
	_, err := client(nodePools, x).Patch(t.Context(), "small", types.MergePatchType, []byte(`{"spec":{"maxReplicas":7}}`), metav1.PatchOptions{})
	refused(t, err, total)
	_, err = client(nodePools, x).Patch(t.Context(), "small", types.MergePatchType, []byte(`{"spec":{"maxReplicas":6}}`), metav1.PatchOptions{})
	require.NoError(t, err)
}

func TestDryRunReservesNothing(t *testing.T) {
	t.Parallel()
	x := tenant(t, "tenant-root", total+": 1")
	object := func() error {
		list, err := client(vmInstances, x).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Empty(t, list.Items)
		return dryRun(t, x, "dry", 1)
	}
	require.NoError(t, object())
	require.NoError(t, object())
	require.Error(t, dryRun(t, x, "dry", 2))
	require.NoError(t, vm(t, x, "real", 1))
}

func TestBudgetsThatAreRaisedAndTenantsThatGo(t *testing.T) {
	t.Parallel()
	x := tenant(t, "tenant-root", total+": 4")
	y := tenant(t, x, total+": 1")
	require.NoError(t, vm(t, y, "one", 1))
	refused(t, vm(t, y, "two", 1), total)
	require.NoError(t, rebudget(t, x, y, `{"`+total+`":2}`))
	require.Eventually(t, func() bool { return vm(t, y, "two", 1) == nil }, timeout, interval, "the budget was raised")
	published(t, x, total, pool{limit: 4, carvedOut: 2, free: 2})

	// Its use moves into the pool above, where it is counted with the rest.
	remove(t, tenants, x, y[strings.LastIndex(y, "-")+1:])
	published(t, x, total, pool{limit: 4, used: 2, free: 2})
	require.NoError(t, vm(t, y, "three", 2))
	refused(t, vm(t, x, "four", 1), total)
}
