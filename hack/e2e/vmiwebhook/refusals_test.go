// SPDX-License-Identifier: Apache-2.0

package vmiwebhook

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"cozystack.io/gpu/hack/e2e/suite"
	"cozystack.io/gpu/pkg/gpu"
)

const (
	pollTimeout  = 60 * time.Second
	pollInterval = 100 * time.Millisecond
)

const (
	annotation = "metadata.annotations[" + gpu.AnnotationGPUs + "]"
	deviceless = `{"domain":{"devices":{}}}`
)

// cause is a cause of a refusal: its type, its field and a part of its message.
type cause struct{ kind, field, message string }

// assertRefused checks the answer to a refused VMI, as its creator gets it.
func assertRefused(t testing.TB, err error, code int32, causes ...cause) {
	t.Helper()
	status := suite.Status(t, err)
	assert.Equal(t, code, status.Code, status.Message)
	assert.Contains(t, status.Message, `admission webhook "vmi-webhook.gpu.cozystack.io" denied the request`)
	require.NotNil(t, status.Details, status.Message)
	require.Len(t, status.Details.Causes, len(causes), status.Message)
	for i, want := range causes {
		got := status.Details.Causes[i]
		assert.EqualValues(t, want.kind, got.Type)
		assert.Equal(t, want.field, got.Field)
		assert.Contains(t, got.Message, want.message)
		assert.Contains(t, status.Message, got.Message, "the message holds every cause")
	}
}

func TestMalformedAnnotations(t *testing.T) {
	classes(t)
	namespace := env.Namespace(t, entitled)
	for name, tc := range map[string]struct{ annotation, message string }{
		"no JSON":         {`l40s`, "byte 1: invalid character"},
		"garbage behind":  {oneVGPU + ` x`, "after top-level value"},
		"duplicate keys":  {`[{"className":"l40s","count":1,"count":1}]`, `[0]: duplicate field "count"`},
		"wrong case":      {`[{"classname":"l40s","count":1}]`, `[0]: unknown field "classname"`},
		"unknown field":   {`[{"className":"l40s","count":1,"model":"x"}]`, `[0]: unknown field "model"`},
		"a string count":  {`[{"className":"l40s","count":"1"}]`, `[0].count: must be a whole number of at least 1, got "1"`},
		"a count of zero": {`[{"className":"l40s","count":0}]`, "[0].count"},
		"no class name":   {`[{"className":"","count":1}]`, "[0].className"},
		"null":            {`null`, "must be a list"},
		"too long":        {oneVGPU + strings.Repeat(" ", 16<<10), "at most 16384 are read"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := create(t, vmi(t, namespace, tc.annotation, deviceless))
			assertRefused(t, err, http.StatusBadRequest, cause{"AnnotationMalformed", annotation, tc.message})
		})
	}
	t.Run("missing", func(t *testing.T) {
		object := vmi(t, namespace, "", deviceless)
		object.SetAnnotations(nil)
		_, err := create(t, object)
		assertRefused(t, err, http.StatusForbidden, cause{"AnnotationMissing", annotation, "add the annotation or remove the label"})
	})
}

func TestRefusals(t *testing.T) {
	classes(t)
	class(t, "a16", "{mode: VGPU, resourceName: nvidia.com/A16, maxCount: 2}")
	yes, no := env.Namespace(t, entitled), env.Namespace(t, map[string]string{gpu.LabelNamespaceVGPU: "false"})
	for name, tc := range map[string]struct {
		namespace, annotation, spec string
		causes                      []cause
	}{
		"an unknown class": {
			yes, `[{"className":"a100","count":1}]`, deviceless,
			[]cause{{"ClassNotFound", annotation, `GPU class "a100": there is no GPUClass of this name`}},
		},
		"vGPU beside vGPU": {
			yes, `[{"className":"l40s","count":1},{"className":"a16","count":1}]`, deviceless,
			[]cause{{"SeveralVGPUClasses", annotation, "a16"}, {"SeveralVGPUClasses", annotation, "l40s"}},
		},
		"the default limit of vGPU, summed over entries": {
			yes, `[{"className":"l40s","count":1},{"className":"l40s","count":1}]`, deviceless,
			[]cause{{"MaxCountExceeded", annotation, "2 units asked for, but one VM may take at most 1"}},
		},
		"the class's own limit": {
			yes, `[{"className":"a16","count":3}]`, deviceless,
			[]cause{{"MaxCountExceeded", annotation, "3 units asked for, but one VM may take at most 2"}},
		},
		"the default limit of passthrough": {
			yes, `[{"className":"h100","count":17}]`, deviceless,
			[]cause{{"MaxCountExceeded", annotation, "17 units asked for, but one VM may take at most 16"}},
		},
		"a namespace without entitlement": {
			no, oneVGPU, deviceless,
			[]cause{{"NamespaceNotEntitled", annotation, "namespace.cozystack.io/vgpu=true"}},
		},
		"a raw device under the webhook's name beside an empty list": {
			yes, `[]`, `{"domain":{"devices":{"gpus":[{"name":"gpuclass-0","deviceName":"nvidia.com/H100"}]}}}`,
			[]cause{{"OwnGPUDevices", "spec.domain.devices.gpus", "gpuclass-0 (nvidia.com/H100)"}},
		},
		"a raw device beside a class": {
			yes, twoH100, `{"domain":{"devices":{"gpus":[{"name":"mine","deviceName":"nvidia.com/T4"}]}}}`,
			[]cause{{"OwnGPUDevices", "spec.domain.devices.gpus", "mine (nvidia.com/T4)"}},
		},
		"a class's device as host device": {
			yes, twoH100, `{"domain":{"devices":{"hostDevices":[{"name":"mine","deviceName":"nvidia.com/L40S-24C"}]}}}`,
			[]cause{{"OwnGPUDevices", "spec.domain.devices.hostDevices[0]", "nvidia.com/L40S-24C"}},
		},
		"a class's device among the resources": {
			yes, `[]`, `{"domain":{"devices":{},"resources":{"limits":{"nvidia.com/H100":"2"}}}}`,
			[]cause{{"OwnGPUDevices", "spec.domain.resources.limits[nvidia.com/H100]", "name the class instead"}},
		},
		"a volume of the licence's name": {
			yes, oneVGPU, `{"volumes":[{"name":"gpu-license","emptyDisk":{"capacity":"1Gi"}}],"domain":{"devices":{}}}`,
			[]cause{{"NameReserved", "spec.volumes[0]", "rename it"}},
		},
		"a disk of the licence's name": {
			yes, oneVGPU, `{"volumes":[` + licenseVolume + `],"domain":{"devices":{"disks":[{"name":"gpu-license","disk":{"bus":"virtio"}}]}}}`,
			[]cause{{"NameReserved", "spec.domain.devices.disks[0]", "rename it"}},
		},
		"lists of wrong types": {
			yes, oneVGPU, `{"volumes":{},"domain":{"devices":{"gpus":"none","disks":7}}}`,
			[]cause{
				{"FieldTypeInvalid", "spec.volumes", "found object"},
				{"FieldTypeInvalid", "spec.domain.devices.gpus", "found string"},
				{"FieldTypeInvalid", "spec.domain.devices.disks", "found number"},
			},
		},
		"devices of a wrong type": {
			yes, oneVGPU, `{"domain":{"devices":"all"}}`,
			[]cause{{"FieldTypeInvalid", "spec.domain.devices", "found string"}},
		},
		"every class and every reason at once": {
			no, `[{"className":"a100","count":1},{"className":"l40s","count":2}]`,
			`{"domain":{"devices":{"gpus":[{"name":"mine","deviceName":"nvidia.com/T4"}]}}}`,
			[]cause{
				{"ClassNotFound", annotation, "a100"}, {"MaxCountExceeded", annotation, "l40s"},
				{"NamespaceNotEntitled", annotation, "l40s"}, {"OwnGPUDevices", "spec.domain.devices.gpus", "mine"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := create(t, vmi(t, tc.namespace, tc.annotation, tc.spec))
			assertRefused(t, err, http.StatusForbidden, tc.causes...)
		})
	}
}

// residentKiB returns the memory of the webhook's process.
func residentKiB(t testing.TB) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", webhook.Replicas[0].Pid()))
	require.NoError(t, err)
	match := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	require.NotNil(t, match)
	kib, err := strconv.Atoi(string(match[1]))
	require.NoError(t, err)
	return kib
}

// Expanded, the entries of one such request would take some 100 GiB.
func TestLargestCountCostsNothing(t *testing.T) {
	classes(t)
	namespace := env.Namespace(t, entitled)
	before := residentKiB(t)
	for range 20 {
		_, err := create(t, vmi(t, namespace, `[{"className":"h100","count":2147483647},{"className":"h100","count":2147483647}]`, deviceless))
		assertRefused(t, err, http.StatusForbidden, cause{"MaxCountExceeded", annotation, "4294967294 units asked for"})
	}
	assert.Less(t, residentKiB(t)-before, 32<<10)
}

func TestClassBeingDeletedIsRefused(t *testing.T) {
	name := "leaving"
	object := suite.Object(t, "{apiVersion: cozystack.io/v1alpha1, kind: GPUClass, metadata: {name: %s, finalizers: [example.com/wait]}, spec: {mode: Passthrough, resourceName: nvidia.com/L4}}", name)
	env.Create(t, suite.GPUClasses, object)
	client := env.Dynamic.Resource(suite.GPUClasses)
	t.Cleanup(func() {
		_, err := client.Patch(context.WithoutCancel(t.Context()), name, "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		assert.NoError(t, err)
	})
	namespace := env.Namespace(t, nil)
	_, err := create(t, vmi(t, namespace, `[{"className":"leaving","count":1}]`, deviceless))
	require.NoError(t, err)

	require.NoError(t, client.Delete(t.Context(), name, metav1.DeleteOptions{}))
	_, err = create(t, vmi(t, namespace, `[{"className":"leaving","count":1}]`, deviceless))
	assertRefused(t, err, http.StatusForbidden, cause{"ClassTerminating", annotation, "is being deleted"})

	// Until it is gone it keeps its resource name.
	class(t, "successor", "{mode: Passthrough, resourceName: nvidia.com/L4}")
	_, err = create(t, vmi(t, namespace, `[{"className":"successor","count":1}]`, deviceless))
	assertRefused(t, err, http.StatusForbidden, cause{"ResourceNameConflict", annotation, `belongs to the older class "leaving"`})
}

func TestConflictCountsAtOnceAndByAge(t *testing.T) {
	namespace := env.Namespace(t, nil)
	class(t, "z-first", "{mode: Passthrough, resourceName: nvidia.com/L4}")
	time.Sleep(1100 * time.Millisecond) // creation times are whole seconds
	class(t, "a-second", "{mode: Passthrough, resourceName: nvidia.com/L4}")
	_, err := create(t, vmi(t, namespace, `[{"className":"a-second","count":1}]`, deviceless))
	assertRefused(t, err, http.StatusForbidden, cause{"ResourceNameConflict", annotation, `its resource name nvidia.com/L4 belongs to the older class "z-first"`})
	_, err = create(t, vmi(t, namespace, `[{"className":"z-first","count":1}]`, deviceless))
	require.NoError(t, err)
}

func TestConflictOfOneAgeGoesByName(t *testing.T) {
	namespace := env.Namespace(t, nil)
	var first, second *unstructured.Unstructured
	for attempt := range 20 {
		second = class(t, fmt.Sprintf("z-%d", attempt), fmt.Sprintf("{mode: Passthrough, resourceName: nvidia.com/X%d}", attempt))
		first = class(t, fmt.Sprintf("a-%d", attempt), fmt.Sprintf("{mode: Passthrough, resourceName: nvidia.com/X%d}", attempt))
		if first.GetCreationTimestamp() == second.GetCreationTimestamp() {
			break
		}
	}
	require.Equal(t, first.GetCreationTimestamp(), second.GetCreationTimestamp())
	_, err := create(t, vmi(t, namespace, fmt.Sprintf(`[{"className":%q,"count":1}]`, first.GetName()), deviceless))
	require.NoError(t, err)
	_, err = create(t, vmi(t, namespace, fmt.Sprintf(`[{"className":%q,"count":1}]`, second.GetName()), deviceless))
	assertRefused(t, err, http.StatusForbidden, cause{"ResourceNameConflict", annotation, first.GetName()})
}

func TestConflictByConditionAlone(t *testing.T) {
	object := class(t, "judged", "{mode: Passthrough, resourceName: nvidia.com/L4}")
	require.NoError(t, unstructured.SetNestedSlice(object.Object, []any{map[string]any{
		"type": gpu.ConditionResourceNameConflict, "status": "True", "reason": "Conflict", "message": "an older class has it", "lastTransitionTime": "2026-01-01T00:00:00Z",
	}}, "status", "conditions"))
	_, err := env.Dynamic.Resource(suite.GPUClasses).UpdateStatus(t.Context(), object, metav1.UpdateOptions{})
	require.NoError(t, err)
	_, err = create(t, vmi(t, env.Namespace(t, nil), `[{"className":"judged","count":1}]`, deviceless))
	assertRefused(t, err, http.StatusForbidden, cause{"ResourceNameConflict", annotation, "an older class has it"})
}

func TestPermittedHostDevices(t *testing.T) {
	classes(t)
	namespace := env.Namespace(t, entitled)
	kubevirt := func(t *testing.T, name, configuration string) {
		env.Create(t, suite.KubeVirts, suite.Object(t, "{apiVersion: kubevirt.io/v1, kind: KubeVirt, metadata: {name: %s, namespace: %s}, spec: {configuration: %s}}", name, namespace, configuration))
	}
	permitted := func(t *testing.T) {
		_, err := create(t, vmi(t, namespace, twoH100, deviceless))
		require.NoError(t, err)
	}
	refused := func(t *testing.T) {
		_, err := create(t, vmi(t, namespace, twoH100, deviceless))
		assertRefused(t, err, http.StatusForbidden, cause{"DeviceNotPermitted", annotation, "permittedHostDevices does not list its resource name nvidia.com/H100"})
	}
	const (
		lists = "{permittedHostDevices: {pciHostDevices: [{pciVendorSelector: '10DE:2330', resourceName: nvidia.com/H100}]}}"
		other = "{permittedHostDevices: {mediatedDevices: [{mdevNameSelector: L40S-24C, resourceName: nvidia.com/L40S-24C}]}}"
	)
	t.Run("no KubeVirt CR", permitted)
	t.Run("no table", func(t *testing.T) { kubevirt(t, "kv", "{}"); permitted(t) })
	t.Run("an empty table", func(t *testing.T) { kubevirt(t, "kv", "{permittedHostDevices: {}}"); refused(t) })
	t.Run("in the PCI list", func(t *testing.T) { kubevirt(t, "kv", lists); permitted(t) })
	t.Run("in the list of mediated devices", func(t *testing.T) {
		kubevirt(t, "kv", "{permittedHostDevices: {mediatedDevices: [{mdevNameSelector: x, resourceName: nvidia.com/H100}]}}")
		permitted(t)
	})
	t.Run("in the USB list", func(t *testing.T) {
		kubevirt(t, "kv", "{permittedHostDevices: {usb: [{resourceName: nvidia.com/H100, selectors: [{vendor: '1', product: '2'}]}]}}")
		permitted(t)
	})
	t.Run("in none", func(t *testing.T) { kubevirt(t, "kv", other); refused(t) })
	t.Run("in one of two CRs", func(t *testing.T) { kubevirt(t, "a", lists); kubevirt(t, "b", other); refused(t) })
	t.Run("in the only one of two CRs that has a table", func(t *testing.T) { kubevirt(t, "a", lists); kubevirt(t, "b", "{}"); permitted(t) })
}
