// SPDX-License-Identifier: Apache-2.0

package vmiwebhook

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"cozystack.io/gpu/hack/e2e/suite"
)

const (
	vgpuEntry     = `{"name":"gpuclass-0","deviceName":"nvidia.com/L40S-24C"}`
	h100Entries   = `{"name":"gpuclass-0","deviceName":"nvidia.com/H100"},{"name":"gpuclass-1","deviceName":"nvidia.com/H100"}`
	licenseVolume = `{"name":"gpu-license","secret":{"secretName":"gpu-license-l40s","volumeLabel":"vgpu-license"}}`
	sataDisk      = `{"name":"gpu-license","cdrom":{"bus":"sata","readonly":true,"tray":"closed"}}`
	rootVolume    = `{"name":"root","emptyDisk":{"capacity":"1Gi"}}`
	rootDisk      = `{"name":"root","disk":{"bus":"virtio"}}`
)

// What the API server stores for what a tenant sent.
func TestStoredSpec(t *testing.T) {
	classes(t)
	namespace := env.Namespace(t, entitled)
	for name, tc := range map[string]struct{ annotation, spec, want string }{
		"vGPU on amd64: the licence after all other disks": {
			oneVGPU,
			`{"architecture":"amd64","volumes":[` + rootVolume + `],"domain":{"devices":{"disks":[` + rootDisk + `]}}}`,
			`{"architecture":"amd64","volumes":[` + rootVolume + `,` + licenseVolume + `],"domain":{"devices":{"disks":[` + rootDisk + `,` + sataDisk + `],"gpus":[` + vgpuEntry + `]}}}`,
		},
		"vGPU on arm64": {
			oneVGPU,
			`{"architecture":"arm64","volumes":[` + rootVolume + `],"domain":{"devices":{"disks":[` + rootDisk + `]}}}`,
			`{"architecture":"arm64","volumes":[` + rootVolume + `,` + licenseVolume + `],"domain":{"devices":{"disks":[` + rootDisk + `,{"name":"gpu-license","cdrom":{"bus":"scsi","readonly":true,"tray":"closed"}}],"gpus":[` + vgpuEntry + `]}}}`,
		},
		"passthrough brings no licence": {
			twoH100,
			`{"volumes":[` + rootVolume + `],"domain":{"devices":{"disks":[` + rootDisk + `]}}}`,
			`{"volumes":[` + rootVolume + `],"domain":{"devices":{"disks":[` + rootDisk + `],"gpus":[` + h100Entries + `]}}}`,
		},
		"two entries of one class add up": {
			`[{"className":"h100","count":1},{"className":"h100","count":1}]`,
			`{"domain":{"devices":{}}}`,
			`{"domain":{"devices":{"gpus":[` + h100Entries + `]}}}`,
		},
		"classes mix in the order of the entries": {
			`[{"className":"h100","count":1},{"className":"l40s","count":1}]`,
			`{"domain":{"devices":{}}}`,
			`{"volumes":[` + licenseVolume + `],"domain":{"devices":{"disks":[` + sataDisk + `],"gpus":[{"name":"gpuclass-0","deviceName":"nvidia.com/H100"},{"name":"gpuclass-1","deviceName":"nvidia.com/L40S-24C"}]}}}`,
		},
		"absent lists": {
			oneVGPU,
			`{"domain":{"devices":{}}}`,
			`{"volumes":[` + licenseVolume + `],"domain":{"devices":{"disks":[` + sataDisk + `],"gpus":[` + vgpuEntry + `]}}}`,
		},
		"null lists": {
			oneVGPU,
			`{"volumes":null,"domain":{"devices":{"gpus":null,"disks":null}}}`,
			`{"volumes":[` + licenseVolume + `],"domain":{"devices":{"disks":[` + sataDisk + `],"gpus":[` + vgpuEntry + `]}}}`,
		},
		"absent devices": {
			twoH100,
			`{"domain":{}}`,
			`{"domain":{"devices":{"gpus":[` + h100Entries + `]}}}`,
		},
		"an empty list of classes": {
			`[]`,
			`{"domain":{"devices":{"hostDevices":[{"name":"nic","deviceName":"example.com/nic"}]}}}`,
			`{"domain":{"devices":{"hostDevices":[{"name":"nic","deviceName":"example.com/nic"}]}}}`,
		},
		"a restored VMI": {
			oneVGPU,
			`{"volumes":[` + licenseVolume + `,` + rootVolume + `],"domain":{"devices":{"disks":[` + sataDisk + `,` + rootDisk + `],"gpus":[` + vgpuEntry + `]}}}`,
			`{"volumes":[` + licenseVolume + `,` + rootVolume + `],"domain":{"devices":{"disks":[` + sataDisk + `,` + rootDisk + `],"gpus":[` + vgpuEntry + `]}}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			stored, err := create(t, vmi(t, namespace, tc.annotation, tc.spec))
			require.NoError(t, err)
			assert.Regexp(t, "^vm-.+", stored.GetName())
			assert.JSONEq(t, tc.want, spec(t, stored))
		})
	}
}

func TestStoredVMIIsCreatedAgainWithoutAChange(t *testing.T) {
	classes(t)
	namespace := env.Namespace(t, entitled)
	first, err := create(t, vmi(t, namespace, oneVGPU, `{"domain":{"devices":{}}}`))
	require.NoError(t, err)
	second, err := create(t, vmi(t, namespace, oneVGPU, spec(t, first)))
	require.NoError(t, err)
	assert.JSONEq(t, spec(t, first), spec(t, second))
}

func TestUnlabelledVMIIsLeftAlone(t *testing.T) {
	object := vmi(t, env.Namespace(t, nil), `nonsense`, `{"domain":{"devices":{}}}`)
	object.SetLabels(nil)
	stored, err := create(t, object)
	require.NoError(t, err)
	assert.JSONEq(t, `{"domain":{"devices":{}}}`, spec(t, stored))
}

func TestVMIThroughAnotherAPIVersion(t *testing.T) {
	classes(t)
	object := vmi(t, env.Namespace(t, entitled), twoH100, `{"domain":{"devices":{}}}`)
	object.SetAPIVersion("kubevirt.io/v1alpha3")
	stored, err := env.Dynamic.Resource(suite.VMIs.GroupResource().WithVersion("v1alpha3")).Namespace(object.GetNamespace()).
		Create(t.Context(), object, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.JSONEq(t, `{"domain":{"devices":{"gpus":[`+h100Entries+`]}}}`, spec(t, stored))
}

func TestDryRunIsAnsweredAndStoresNothing(t *testing.T) {
	classes(t)
	namespace := env.Namespace(t, entitled)
	answer, err := create(t, vmi(t, namespace, twoH100, `{"domain":{"devices":{}}}`), metav1.DryRunAll)
	require.NoError(t, err)
	assert.JSONEq(t, `{"domain":{"devices":{"gpus":[`+h100Entries+`]}}}`, spec(t, answer))
	list, err := env.Dynamic.Resource(suite.VMIs).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Empty(t, list.Items)
}

// KubeVirt will have fields that this build has never heard of.
func TestFieldsOfNewerVersionsSurvive(t *testing.T) {
	classes(t)
	crds := env.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	const name = "virtualmachineinstances.kubevirt.io"
	original, err := crds.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	newer := original.DeepCopy()
	versions, _, err := unstructured.NestedSlice(newer.Object, "spec", "versions")
	require.NoError(t, err)
	for _, version := range versions {
		anything := map[string]any{"x-kubernetes-preserve-unknown-fields": true}
		require.NoError(t, unstructured.SetNestedMap(version.(map[string]any), anything, "schema", "openAPIV3Schema", "properties", "spec", "properties", "fromTheFuture"))
		disks := []string{"schema", "openAPIV3Schema", "properties", "spec", "properties", "domain", "properties", "devices", "properties", "disks", "items", "properties", "fromTheFuture"}
		require.NoError(t, unstructured.SetNestedMap(version.(map[string]any), anything, disks...))
	}
	require.NoError(t, unstructured.SetNestedSlice(newer.Object, versions, "spec", "versions"))
	_, err = crds.Update(t.Context(), newer, metav1.UpdateOptions{})
	require.NoError(t, err)

	const sent = `{"fromTheFuture":{"a":[1,2.5,null]},"domain":{"devices":{"disks":[{"name":"root","fromTheFuture":"kept"}]}}}`
	namespace := env.Namespace(t, entitled)
	assert.EventuallyWithT(t, func(c *assert.CollectT) {
		stored, err := create(t, vmi(t, namespace, oneVGPU, sent), metav1.DryRunAll)
		if assert.NoError(c, err) {
			assert.JSONEq(c, `{"fromTheFuture":{"a":[1,2.5,null]},"volumes":[`+licenseVolume+`],
				"domain":{"devices":{"gpus":[`+vgpuEntry+`],"disks":[{"name":"root","fromTheFuture":"kept"},`+sataDisk+`]}}}`, spec(t, stored))
		}
	}, pollTimeout, pollInterval)
}

func TestFiftyVMIsAtOnce(t *testing.T) {
	classes(t)
	namespace := env.Namespace(t, entitled)
	var wg sync.WaitGroup
	errs := make([]error, 50)
	stored := make([]*unstructured.Unstructured, len(errs))
	for i := range errs {
		object := vmi(t, namespace, oneVGPU, `{"domain":{"devices":{}}}`)
		wg.Go(func() { stored[i], errs[i] = create(t, object) })
	}
	wg.Wait()
	for i, err := range errs {
		require.NoError(t, err)
		assert.JSONEq(t, `{"volumes":[`+licenseVolume+`],"domain":{"devices":{"disks":[`+sataDisk+`],"gpus":[`+vgpuEntry+`]}}}`, spec(t, stored[i]))
	}
}
