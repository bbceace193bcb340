// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	virtv1 "kubevirt.io/api/core/v1"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model/v1alpha1"
)

type fixedReader struct {
	state State
	err   error
}

func (r fixedReader) Read(context.Context, string) (State, error) { return r.state, r.err }

func vgpuClass(name, resourceName string) v1alpha1.GPUClass {
	return v1alpha1.GPUClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.GPUClassSpec{
			Mode:         v1alpha1.ModeVGPU,
			ResourceName: resourceName,
			License:      &v1alpha1.License{SecretName: "token"},
		},
	}
}

func passthroughClass(name, resourceName string) v1alpha1.GPUClass {
	return v1alpha1.GPUClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.GPUClassSpec{Mode: v1alpha1.ModePassthrough, ResourceName: resourceName},
	}
}

// cluster is a state in which both its classes can be had.
func cluster() State {
	return State{
		Classes:         []v1alpha1.GPUClass{vgpuClass("l40s-24c", "nvidia.com/L40S-24C"), passthroughClass("h100", "nvidia.com/H100")},
		NamespaceLabels: map[string]string{gpu.LabelNamespaceVGPU: "true"},
	}
}

const (
	oneVGPU     = `[{"className":"l40s-24c","count":1}]`
	twoH100     = `[{"className":"h100","count":2}]`
	licenceVol  = `{"name":"gpu-license","secret":{"secretName":"gpu-license-l40s-24c","volumeLabel":"vgpu-license"}}`
	licenceDisk = `{"name":"gpu-license","cdrom":{"bus":"sata","readonly":true,"tray":"closed"}}`
	vgpuEntry   = `{"name":"gpuclass-0","deviceName":"nvidia.com/L40S-24C"}`
	twoEntries  = `{"name":"gpuclass-0","deviceName":"nvidia.com/H100"},{"name":"gpuclass-1","deviceName":"nvidia.com/H100"}`
)

// object returns a labelled VMI with the annotation and a spec.
func object(annotation, spec string) string {
	quoted, _ := json.Marshal(annotation)
	return fmt.Sprintf(`{"metadata":{"labels":{"cozystack.io/gpu-reference":"true"},"annotations":{"cozystack.io/gpus":%s}},"spec":%s}`, quoted, spec)
}

func admitObject(t *testing.T, raw string, reader Reader) *admissionv1.AdmissionResponse {
	t.Helper()
	request := &admissionv1.AdmissionRequest{
		Resource:  metav1.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"},
		Operation: admissionv1.Create,
		Namespace: "tenant-a",
	}
	request.Object.Raw = []byte(raw)
	return Admitter{Reader: reader}.Admit(t.Context(), request)
}

func TestPatchHoldsOnlyTheOperationsNeeded(t *testing.T) {
	for name, tc := range map[string]struct{ object, want string }{
		"devices for every unit in the order of the entries": {
			object(`[{"className":"h100","count":1},{"className":"l40s-24c","count":1},{"className":"h100","count":1}]`,
				`{"architecture":"amd64","volumes":[{"name":"root"}],"domain":{"devices":{"disks":[{"name":"root"}]}}}`),
			`[{"op":"add","path":"/spec/domain/devices/gpus","value":[
				{"name":"gpuclass-0","deviceName":"nvidia.com/H100"},
				{"name":"gpuclass-1","deviceName":"nvidia.com/L40S-24C"},
				{"name":"gpuclass-2","deviceName":"nvidia.com/H100"}]},
			  {"op":"add","path":"/spec/volumes/-","value":` + licenceVol + `},
			  {"op":"add","path":"/spec/domain/devices/disks/-","value":` + licenceDisk + `}]`,
		},
		"a CD-ROM on scsi where there is no sata": {
			object(oneVGPU, `{"architecture":"arm64","volumes":[{"name":"root"}],"domain":{"devices":{"disks":[{"name":"root"}]}}}`),
			`[{"op":"add","path":"/spec/domain/devices/gpus","value":[` + vgpuEntry + `]},
			  {"op":"add","path":"/spec/volumes/-","value":` + licenceVol + `},
			  {"op":"add","path":"/spec/domain/devices/disks/-","value":{"name":"gpu-license","cdrom":{"bus":"scsi","readonly":true,"tray":"closed"}}}]`,
		},
		"lists that are absent are made": {
			object(oneVGPU, `{"domain":{"devices":{}}}`),
			`[{"op":"add","path":"/spec/domain/devices/gpus","value":[` + vgpuEntry + `]},
			  {"op":"add","path":"/spec/volumes","value":[` + licenceVol + `]},
			  {"op":"add","path":"/spec/domain/devices/disks","value":[` + licenceDisk + `]}]`,
		},
		"lists that are null are made": {
			object(oneVGPU, `{"volumes":null,"domain":{"devices":{"gpus":null,"disks":null,"hostDevices":null}}}`),
			`[{"op":"add","path":"/spec/domain/devices/gpus","value":[` + vgpuEntry + `]},
			  {"op":"add","path":"/spec/volumes","value":[` + licenceVol + `]},
			  {"op":"add","path":"/spec/domain/devices/disks","value":[` + licenceDisk + `]}]`,
		},
		"devices that are absent are made": {
			object(twoH100, `{"domain":{}}`),
			`[{"op":"add","path":"/spec/domain/devices","value":{}},
			  {"op":"add","path":"/spec/domain/devices/gpus","value":[` + twoEntries + `]}]`,
		},
		"a null spec is made": {
			object(twoH100, `null`),
			`[{"op":"add","path":"/spec","value":{}},{"op":"add","path":"/spec/domain","value":{}},{"op":"add","path":"/spec/domain/devices","value":{}},
			  {"op":"add","path":"/spec/domain/devices/gpus","value":[` + twoEntries + `]}]`,
		},
		"an empty gpus list is filled": {
			object(twoH100, `{"domain":{"devices":{"gpus":[]}}}`),
			`[{"op":"add","path":"/spec/domain/devices/gpus","value":[` + twoEntries + `]}]`,
		},
		"only the disk where the volume is there": {
			object(oneVGPU, `{"volumes":[`+licenceVol+`],"domain":{"devices":{"gpus":[`+vgpuEntry+`]}}}`),
			`[{"op":"add","path":"/spec/domain/devices/disks","value":[` + licenceDisk + `]}]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			response := admitObject(t, tc.object, fixedReader{state: cluster()})
			require.True(t, response.Allowed, "%+v", response.Result)
			assert.Equal(t, admissionv1.PatchTypeJSONPatch, *response.PatchType)
			assert.JSONEq(t, tc.want, string(response.Patch))
		})
	}
}

func TestAdmittedWithoutAPatch(t *testing.T) {
	for name, raw := range map[string]string{
		"an empty list":                      object(`[]`, `{"domain":{"devices":{}}}`),
		"an empty list beside other devices": object(`[]`, `{"domain":{"devices":{"hostDevices":[{"name":"nic","deviceName":"example.com/nic"}]}}}`),
		"no label":                           `{"metadata":{"annotations":{"cozystack.io/gpus":"nonsense"}},"spec":{}}`,
		"a restored VMI": object(oneVGPU, `{"volumes":[`+licenceVol+`,{"name":"root"}],
			"domain":{"devices":{"gpus":[`+vgpuEntry+`],"disks":[`+licenceDisk+`,{"name":"root"}]}}}`),
		"a restored VMI with fields of other versions": object(oneVGPU, `{"volumes":[{"name":"gpu-license","new":1,"secret":{"secretName":"gpu-license-l40s-24c","volumeLabel":"vgpu-license","optional":false}}],
			"domain":{"devices":{"gpus":[{"name":"gpuclass-0","deviceName":"nvidia.com/L40S-24C","tag":"x"}],"disks":[{"name":"gpu-license","new":1,"cdrom":{"bus":"sata"}}]}}}`),
	} {
		t.Run(name, func(t *testing.T) {
			response := admitObject(t, raw, fixedReader{state: cluster()})
			require.True(t, response.Allowed, "%+v", response.Result)
			assert.Nil(t, response.Patch)
			assert.Nil(t, response.PatchType)
		})
	}
}

func TestRefusals(t *testing.T) {
	withClasses := func(classes ...v1alpha1.GPUClass) func(*State) {
		return func(s *State) { s.Classes = classes }
	}
	terminating := passthroughClass("h100", "nvidia.com/H100")
	terminating.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	conflicting := passthroughClass("h100", "nvidia.com/H100")
	conflicting.Status.Conditions = []metav1.Condition{{Type: gpu.ConditionResourceNameConflict, Status: metav1.ConditionTrue, Message: "an older class has it"}}
	younger := passthroughClass("h100", "nvidia.com/H100")
	younger.CreationTimestamp = metav1.Now()
	table := func(names ...string) *virtv1.PermittedHostDevices {
		devices := &virtv1.PermittedHostDevices{}
		for _, name := range names {
			devices.PciHostDevices = append(devices.PciHostDevices, virtv1.PciHostDevice{ResourceName: name})
		}
		return devices
	}
	const devices = `{"domain":{"devices":{}}}`
	for name, tc := range map[string]struct {
		object string
		state  func(*State)
		want   []metav1.StatusCause // Message holds a part of the message
	}{
		"no annotation": {
			object: `{"metadata":{"labels":{"cozystack.io/gpu-reference":"true"}},"spec":{}}`,
			want:   []metav1.StatusCause{{Type: CauseAnnotationMissing, Field: pathAnnotation, Message: "add the annotation or remove the label"}},
		},
		"an unknown class": {
			object: object(`[{"className":"a100","count":1}]`, devices),
			want:   []metav1.StatusCause{{Type: CauseClassNotFound, Field: pathAnnotation, Message: `GPU class "a100": there is no GPUClass`}},
		},
		"a class that is being deleted": {
			object: object(twoH100, devices),
			state:  withClasses(terminating),
			want:   []metav1.StatusCause{{Type: CauseClassTerminating, Field: pathAnnotation, Message: `GPU class "h100": is being deleted`}},
		},
		"a conflict by condition": {
			object: object(twoH100, devices),
			state:  withClasses(conflicting),
			want:   []metav1.StatusCause{{Type: CauseResourceNameConflict, Field: pathAnnotation, Message: "an older class has it"}},
		},
		"a conflict among the classes": {
			object: object(twoH100, devices),
			state:  withClasses(younger, passthroughClass("old", "nvidia.com/H100")),
			want:   []metav1.StatusCause{{Type: CauseResourceNameConflict, Field: pathAnnotation, Message: `its resource name nvidia.com/H100 belongs to the older class "old"`}},
		},
		"two vGPU classes": {
			object: object(`[{"className":"a","count":1},{"className":"b","count":1}]`, devices),
			state:  withClasses(vgpuClass("a", "x/a"), vgpuClass("b", "x/b")),
			want: []metav1.StatusCause{
				{Type: CauseSeveralVGPUClasses, Field: pathAnnotation, Message: `GPU class "a": a VM takes one vGPU class, and this one also names b`},
				{Type: CauseSeveralVGPUClasses, Field: pathAnnotation, Message: `GPU class "b": a VM takes one vGPU class, and this one also names a`},
			},
		},
		"units that exceed the limit only together": {
			object: object(`[{"className":"h100","count":16},{"className":"h100","count":1}]`, devices),
			want:   []metav1.StatusCause{{Type: CauseMaxCountExceeded, Field: pathAnnotation, Message: "17 units asked for, but one VM may take at most 16"}},
		},
		"the largest count": {
			object: object(`[{"className":"h100","count":2147483647},{"className":"h100","count":2147483647}]`, devices),
			want:   []metav1.StatusCause{{Type: CauseMaxCountExceeded, Field: pathAnnotation, Message: "4294967294 units asked for"}},
		},
		"a namespace that is not entitled": {
			object: object(oneVGPU, devices),
			state:  func(s *State) { s.NamespaceLabels = map[string]string{gpu.LabelNamespaceVGPU: "yes"} },
			want:   []metav1.StatusCause{{Type: CauseNotEntitled, Field: pathAnnotation, Message: `namespace "tenant-a" is not entitled to vGPU`}},
		},
		"a device that KubeVirt does not permit": {
			object: object(twoH100, devices),
			state:  func(s *State) { s.PermittedHostDevices = []*virtv1.PermittedHostDevices{table("nvidia.com/A100")} },
			want:   []metav1.StatusCause{{Type: CauseNotPermitted, Field: pathAnnotation, Message: "permittedHostDevices does not list its resource name nvidia.com/H100"}},
		},
		"an empty table": {
			object: object(twoH100, devices),
			state:  func(s *State) { s.PermittedHostDevices = []*virtv1.PermittedHostDevices{{}} },
			want:   []metav1.StatusCause{{Type: CauseNotPermitted, Field: pathAnnotation, Message: "nvidia.com/H100"}},
		},
		"one of two tables does not list it": {
			object: object(twoH100, devices),
			state: func(s *State) {
				s.PermittedHostDevices = []*virtv1.PermittedHostDevices{table("nvidia.com/H100"), table()}
			},
			want: []metav1.StatusCause{{Type: CauseNotPermitted, Field: pathAnnotation, Message: "nvidia.com/H100"}},
		},
		"a GPU of its own": {
			object: object(twoH100, `{"domain":{"devices":{"gpus":[{"name":"g","deviceName":"nvidia.com/T4"}]}}}`),
			want:   []metav1.StatusCause{{Type: CauseOwnDevices, Field: pathGPUs, Message: "g (nvidia.com/T4)"}},
		},
		"a GPU of its own beside an empty list": {
			object: object(`[]`, `{"domain":{"devices":{"gpus":[{"name":"gpuclass-0","deviceName":"nvidia.com/H100"}]}}}`),
			want:   []metav1.StatusCause{{Type: CauseOwnDevices, Field: pathGPUs, Message: "gpuclass-0 (nvidia.com/H100)"}},
		},
		"more devices than the classes stand for": {
			object: object(`[{"className":"h100","count":1}]`, `{"domain":{"devices":{"gpus":[`+twoEntries+`]}}}`),
			want:   []metav1.StatusCause{{Type: CauseOwnDevices, Field: pathGPUs}},
		},
		"fewer devices than the classes stand for": {
			object: object(`[{"className":"h100","count":3}]`, `{"domain":{"devices":{"gpus":[`+twoEntries+`]}}}`),
			want:   []metav1.StatusCause{{Type: CauseOwnDevices, Field: pathGPUs}},
		},
		"a class's device as a host device": {
			object: object(`[]`, `{"domain":{"devices":{"hostDevices":[{"name":"nic","deviceName":"example.com/nic"},{"name":"h","deviceName":"nvidia.com/H100"}]}}}`),
			want:   []metav1.StatusCause{{Type: CauseOwnDevices, Field: pathHostDevices + "[1]", Message: "nvidia.com/H100, the device of a GPU class"}},
		},
		"the licence's volume name for something else": {
			object: object(oneVGPU, `{"volumes":[{"name":"gpu-license","secret":{"secretName":"mine","volumeLabel":"vgpu-license"}}],"domain":{"devices":{}}}`),
			want:   []metav1.StatusCause{{Type: CauseNameReserved, Field: pathVolumes + "[0]", Message: "rename it"}},
		},
		"the licence's disk as a disk of another kind": {
			object: object(oneVGPU, `{"volumes":[`+licenceVol+`],"domain":{"devices":{"disks":[{"name":"x"},{"name":"gpu-license","disk":{"bus":"virtio"}}]}}}`),
			want:   []metav1.StatusCause{{Type: CauseNameReserved, Field: pathDisks + "[1]"}},
		},
		"the licence's disk on another bus": {
			object: object(oneVGPU, `{"volumes":[`+licenceVol+`],"domain":{"devices":{"disks":[{"name":"gpu-license","cdrom":{"bus":"scsi"}}]}}}`),
			want:   []metav1.StatusCause{{Type: CauseNameReserved, Field: pathDisks + "[0]"}},
		},
		"the licence's name where no licence is due": {
			object: object(twoH100, `{"volumes":[`+licenceVol+`],"domain":{"devices":{}}}`),
			want:   []metav1.StatusCause{{Type: CauseNameReserved, Field: pathVolumes + "[0]"}},
		},
		"lists of a wrong type, all at once": {
			object: object(oneVGPU, `{"volumes":{},"domain":{"devices":{"gpus":"none","disks":3,"hostDevices":true}}}`),
			want: []metav1.StatusCause{
				{Type: CauseWrongType, Field: pathVolumes, Message: "found object"},
				{Type: CauseWrongType, Field: pathGPUs, Message: "found string"},
				{Type: CauseWrongType, Field: pathHostDevices, Message: "found bool"},
				{Type: CauseWrongType, Field: pathDisks, Message: "found number"},
			},
		},
		"list items of a wrong type": {
			object: object(oneVGPU, `{"volumes":["a"],"domain":{"devices":{}}}`),
			want:   []metav1.StatusCause{{Type: CauseWrongType, Field: pathVolumes + "[0]", Message: "found string"}},
		},
		"fields of list items of a wrong type": {
			object: object(oneVGPU, `{"volumes":[{"name":"a"},{"name":7}],"domain":{"devices":{}}}`),
			want:   []metav1.StatusCause{{Type: CauseWrongType, Field: pathVolumes + "[1].name", Message: "found number"}},
		},
		"a class's device among the resources": {
			object: object(twoH100, `{"domain":{"devices":{},"resources":{"limits":{"nvidia.com/H100":"2","cpu":"1"},"requests":{"nvidia.com/H100":2,"nvidia.com/L40S-24C":"1"}}}}`),
			want: []metav1.StatusCause{
				{Type: CauseOwnDevices, Field: pathResources + ".limits[nvidia.com/H100]", Message: "name the class instead"},
				{Type: CauseOwnDevices, Field: pathResources + ".requests[nvidia.com/H100]", Message: "name the class instead"},
				{Type: CauseOwnDevices, Field: pathResources + ".requests[nvidia.com/L40S-24C]", Message: "name the class instead"},
			},
		},
		"a class's device among the resources beside an empty list": {
			object: object(`[]`, `{"domain":{"resources":{"limits":{"nvidia.com/H100":"1"}}}}`),
			want:   []metav1.StatusCause{{Type: CauseOwnDevices, Field: pathResources + ".limits[nvidia.com/H100]"}},
		},
		"the licence as an optional volume": {
			object: object(oneVGPU, `{"volumes":[{"name":"gpu-license","secret":{"secretName":"gpu-license-l40s-24c","volumeLabel":"vgpu-license","optional":true}}],"domain":{"devices":{"gpus":[`+vgpuEntry+`],"disks":[`+licenceDisk+`]}}}`),
			want:   []metav1.StatusCause{{Type: CauseNameReserved, Field: pathVolumes + "[0]"}},
		},
		"the licence's disk to boot from": {
			object: object(oneVGPU, `{"volumes":[`+licenceVol+`],"domain":{"devices":{"gpus":[`+vgpuEntry+`],"disks":[{"name":"gpu-license","bootOrder":1,"cdrom":{"bus":"sata"}}]}}}`),
			want:   []metav1.StatusCause{{Type: CauseNameReserved, Field: pathDisks + "[0]"}},
		},
		"devices of a wrong type": {
			object: object(oneVGPU, `{"domain":{"devices":[]}}`),
			want:   []metav1.StatusCause{{Type: CauseWrongType, Field: "spec.domain.devices", Message: "found array"}},
		},
		"every reason at once": {
			object: object(`[{"className":"l40s-24c","count":2},{"className":"a100","count":1}]`,
				`{"domain":{"devices":{"gpus":[{"name":"g","deviceName":"nvidia.com/T4"}],"hostDevices":[{"name":"h","deviceName":"nvidia.com/H100"}],"disks":[{"name":"gpu-license","disk":{}}]}}}`),
			state: func(s *State) {
				s.NamespaceLabels = nil
				s.PermittedHostDevices = []*virtv1.PermittedHostDevices{table("nvidia.com/H100")}
			},
			want: []metav1.StatusCause{
				{Type: CauseMaxCountExceeded, Field: pathAnnotation, Message: "l40s-24c"},
				{Type: CauseNotEntitled, Field: pathAnnotation, Message: "l40s-24c"},
				{Type: CauseNotPermitted, Field: pathAnnotation, Message: "l40s-24c"},
				{Type: CauseClassNotFound, Field: pathAnnotation, Message: "a100"},
				{Type: CauseOwnDevices, Field: pathGPUs},
				{Type: CauseOwnDevices, Field: pathHostDevices + "[0]"},
				{Type: CauseNameReserved, Field: pathDisks + "[0]"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			state := cluster()
			if tc.state != nil {
				tc.state(&state)
			}
			response := admitObject(t, tc.object, fixedReader{state: state})
			require.False(t, response.Allowed)
			assert.EqualValues(t, 403, response.Result.Code)
			assert.Equal(t, metav1.StatusReasonForbidden, response.Result.Reason)
			causes := response.Result.Details.Causes
			require.Len(t, causes, len(tc.want), "%+v", causes)
			for i, want := range tc.want {
				assert.Equal(t, want.Type, causes[i].Type)
				assert.Equal(t, want.Field, causes[i].Field)
				assert.Contains(t, causes[i].Message, want.Message)
				assert.Contains(t, response.Result.Message, causes[i].Message)
			}
		})
	}
}

func TestMalformedAnnotationIsABadRequest(t *testing.T) {
	response := admitObject(t, object(`[{"classname":"h100","count":1}]`, `{}`), fixedReader{err: errors.New("must not be read")})
	require.False(t, response.Allowed)
	assert.EqualValues(t, 400, response.Result.Code)
	assert.Equal(t, metav1.StatusReasonBadRequest, response.Result.Reason)
	assert.Equal(t, CauseAnnotationMalformed, response.Result.Details.Causes[0].Type)
	assert.Contains(t, response.Result.Message, `annotation cozystack.io/gpus cannot be read: [0]: unknown field "classname"`)
}

func TestFailedReadIsAnInternalError(t *testing.T) {
	response := admitObject(t, object(oneVGPU, `{}`), fixedReader{err: errors.New("read gpuclasses: connection refused")})
	require.False(t, response.Allowed)
	assert.EqualValues(t, 500, response.Result.Code)
	assert.Contains(t, response.Result.Message, "read gpuclasses: connection refused")
}

func TestOtherRequestsAreRefusedAsMisconfigured(t *testing.T) {
	vmi := metav1.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}
	for name, request := range map[string]*admissionv1.AdmissionRequest{
		"an update":        {Resource: vmi, Operation: admissionv1.Update},
		"a subresource":    {Resource: vmi, Operation: admissionv1.Create, SubResource: "status"},
		"another resource": {Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, Operation: admissionv1.Create},
	} {
		t.Run(name, func(t *testing.T) {
			response := Admitter{Reader: fixedReader{}}.Admit(t.Context(), request)
			require.False(t, response.Allowed)
			assert.EqualValues(t, 400, response.Result.Code)
			assert.Contains(t, response.Result.Message, "correct the rules of the webhook configuration")
		})
	}
}

func TestRefusalStaysShortWhateverIsRefused(t *testing.T) {
	const devices = 20000
	items := strings.Repeat(`{"name":"h","deviceName":"nvidia.com/H100"},`, devices-1) + `{"name":"h","deviceName":"nvidia.com/H100"}`
	response := admitObject(t, object(`[]`, `{"domain":{"devices":{"gpus":[`+items+`],"hostDevices":[`+items+`]}}}`), fixedReader{state: cluster()})
	require.False(t, response.Allowed)
	assert.Contains(t, response.Result.Message, "h (nvidia.com/H100) and 19992 more")
	assert.Contains(t, response.Result.Message, "; and 19969 faults more")
	assert.Len(t, response.Result.Details.Causes, shownFaults)
	assert.Less(t, len(response.Result.Message), 8<<10)
}

// The VMI is whatever a tenant sent: no object may bring the webhook down, a
// refusal says why, and a patch is JSON.
func FuzzAdmit(f *testing.F) {
	f.Add(object(oneVGPU, `{"volumes":[`+licenceVol+`],"domain":{"devices":{"gpus":[`+vgpuEntry+`]}}}`))
	f.Add(object(twoH100, `{"domain":{"devices":{"gpus":[null],"disks":[null]}}}`))
	f.Add(object(`[]`, `{"volumes":[{"secret":null}],"domain":null}`))
	f.Add(`[]`)
	f.Add(`{"metadata":{"labels":[]}}`)
	f.Fuzz(func(t *testing.T, raw string) {
		response := admitObject(t, raw, fixedReader{state: cluster()})
		if !response.Allowed {
			assert.GreaterOrEqual(t, response.Result.Code, int32(400))
			assert.NotEmpty(t, response.Result.Message)
			return
		}
		if response.Patch != nil {
			assert.True(t, json.Valid(response.Patch))
		}
	})
}
