// SPDX-License-Identifier: Apache-2.0

package budgetchecker

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/hack/e2e/suite"
)

// malformed asserts that the write was refused for what cannot be read.
func malformed(t testing.TB, err error, cause metav1.CauseType) {
	t.Helper()
	status := suite.Status(t, err)
	require.EqualValues(t, http.StatusBadRequest, status.Code, "%v", err)
	require.Len(t, status.Details.Causes, 1, "%v", err)
	assert.Equal(t, cause, status.Details.Causes[0].Type, "%v", err)
}

// The values are those of the wire: what a client would make of them does not
// come into play.
func TestValuesOfQuotas(t *testing.T) {
	t.Parallel()
	x := tenant(t, "tenant-root", "")
	y := tenant(t, x, "")
	for _, value := range []string{`-1`, `"-1"`, `1.5`, `"1.5"`, `""`, `10000000000000000000`, `"10000000000000000000"`, `null`, `[]`, `true`} {
		malformed(t, rebudgetByJSONPatch(t, x, y, total, value), "QuotaInvalid")
	}
	for _, valid := range []struct {
		value string
		units int64
	}{{`0`, 0}, {`3`, 3}, {`"4"`, 4}, {`"1k"`, 1000}} {
		require.NoError(t, rebudgetByJSONPatch(t, x, y, total, valid.value))
		published(t, y, total, pool{limit: valid.units, free: valid.units})
	}
	require.NoError(t, rebudgetByJSONPatch(t, x, y, total, `0`))
	refused(t, vm(t, y, "none", 1), total)
	for _, key := range []string{"gpu.cozystack.io/gpus", "gpu.cozystack.io/class.", "gpu.cozystack.io/class.A", "gpu.cozystack.io/"} {
		malformed(t, rebudget(t, x, y, fmt.Sprintf(`{%q:1}`, key)), "QuotaInvalid")
	}
	require.NoError(t, rebudget(t, x, y, `{"memory":"-1"}`), "other quotas are none of ours")
}

func rebudgetByJSONPatch(t testing.TB, parent, namespace, key, value string) error {
	t.Helper()
	pointer := "/spec/resourceQuotas/gpu.cozystack.io~1" + key[len("gpu.cozystack.io/"):]
	_, err := client(tenants, parent).Patch(t.Context(), namespace[len(parent)+1:], types.JSONPatchType,
		fmt.Appendf(nil, `[{"op":"add","path":%q,"value":%s}]`, pointer, value), metav1.PatchOptions{})
	return err
}

func TestShapesOfEntries(t *testing.T) {
	t.Parallel()
	x := tenant(t, "tenant-root", total+": 100")
	nodes := func(replicas string) error {
		return create(t, nodePools, x, "KubernetesNodes", "shaped", "{gpus: [{className: a, count: 1}], "+replicas+"}")
	}
	create := func(spec string) error { return create(t, vmInstances, x, "VMInstance", "shaped", spec) }
	malformed(t, create("{gpus: [], Gpus: [{className: a, count: 1}]}"), "FieldCaseInvalid")
	malformed(t, create("{GPUS: [{className: a, count: 1}]}"), "FieldCaseInvalid")
	malformed(t, create("{gpus: {className: a, count: 1}}"), "GPUEntriesMalformed")
	for _, entry := range []string{
		"{className: a, count: '1'}", "{className: a, count: 1.5}", "{className: a, count: -1}", "{className: a, count: 0}", "{className: a, count: null}",
		"{className: a}", "{count: 1}", "{className: A, count: 1}", "{className: '', count: 1}", "{classname: a, count: 1}", "{className: a, count: 1, more: 1}",
		"null", "a", "{className: a, count: 1}, {name: nvidia.com/X}",
	} {
		malformed(t, create("{gpus: ["+entry+"]}"), "GPUEntriesMalformed")
	}
	require.NoError(t, create("{gpus: null}"))
	require.NoError(t, patch(t, x, "shaped", `{"spec":{"gpus":[]}}`))
	for _, replicas := range []string{"maxReplicas: -1", "maxReplicas: '3'", "maxReplicas: 1.5", "minReplicas: []"} {
		malformed(t, nodes(replicas), "ReplicasInvalid")
	}
	malformed(t, nodes("maxreplicas: 1"), "FieldCaseInvalid")
	malformed(t, nodes("maxReplicas: 9007199254740992"), "GPUEntriesMalformed")
}

func TestOneClassIsRaisedWhileAnotherIsLowered(t *testing.T) {
	t.Parallel()
	x := tenant(t, "tenant-root", total+": 3, "+classA+": 2, "+classB+": 2")
	entries := func(a, b int) string {
		return fmt.Sprintf(`{"spec":{"gpus":[{"className":"a","count":%d},{"className":"b","count":%d}]}}`, a, b)
	}
	require.NoError(t, create(t, vmInstances, x, "VMInstance", "vm", "{gpus: [{className: a, count: 2}, {className: b, count: 1}]}"))
	require.NoError(t, rebudget(t, "tenant-root", x, `{"`+total+`":1}`))
	require.NoError(t, patch(t, x, "vm", entries(1, 2)), "the total is exceeded, but not raised")
	refused(t, patch(t, x, "vm", entries(1, 3)), classB, total)
	refused(t, patch(t, x, "vm", `{"spec":{"gpus":[{"className":"b","count":3}]}}`), classB)
	require.NoError(t, patch(t, x, "vm", `{"spec":{"gpus":[{"className":"b","count":1}]}}`))
	published(t, x, total, pool{limit: 1, used: 1})
}

func TestDevicesBecomeClassEntries(t *testing.T) {
	t.Parallel()
	x := tenant(t, "tenant-root", total+": 1")
	require.NoError(t, create(t, vmInstances, x, "VMInstance", "vm", "{gpus: [{name: nvidia.com/X}, {name: nvidia.com/X}]}"))
	published(t, x, total, pool{limit: 1, free: 1})
	refused(t, patch(t, x, "vm", `{"spec":{"gpus":[{"className":"a","count":2}]}}`), total)
	require.NoError(t, patch(t, x, "vm", `{"spec":{"gpus":[{"className":"a","count":1}]}}`))
	published(t, x, total, pool{limit: 1, used: 1})
	require.NoError(t, patch(t, x, "vm", `{"spec":{"gpus":[{"name":"nvidia.com/X"}]}}`))
	require.Eventually(t, func() bool { return vm(t, x, "next", 1) == nil }, timeout, interval)
}

func TestEveryKindOfWriteIsJudged(t *testing.T) {
	t.Parallel()
	x := tenant(t, "tenant-root", total+": 2")
	apply := func(units int) error {
		object := suite.Object(t, "{apiVersion: apps.cozystack.io/v1alpha1, kind: VMInstance, metadata: {name: vm, namespace: %s}, spec: {gpus: [{className: a, count: %d}]}}", x, units)
		_, err := client(vmInstances, x).Apply(t.Context(), "vm", object, metav1.ApplyOptions{FieldManager: "test", Force: true})
		return err
	}
	refused(t, apply(3), total)
	require.NoError(t, apply(1))
	refused(t, apply(3), total)
	require.NoError(t, apply(2))
	_, err := client(vmInstances, x).Patch(t.Context(), "vm", types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/gpus/0/count","value":3}]`), metav1.PatchOptions{})
	refused(t, err, total)
	object, err := client(vmInstances, x).Get(t.Context(), "vm", metav1.GetOptions{})
	require.NoError(t, err)
	object.Object["spec"] = map[string]any{"gpus": []any{map[string]any{"className": "a", "count": int64(3)}}}
	_, err = client(vmInstances, x).Update(t.Context(), object, metav1.UpdateOptions{})
	refused(t, err, total)
	published(t, x, total, pool{limit: 2, used: 2})
}
