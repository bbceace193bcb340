// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"cozystack.io/gpu/hack/e2e/suite"
	"cozystack.io/gpu/pkg/gpu"
)

const (
	ourConfiguration      = "vmi-webhook.gpu.cozystack.io"
	kubevirtConfiguration = "virt-api-mutator"
)

func TestConfigurationIsCalledAfterKubeVirts(t *testing.T) {
	client := env.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations()
	for _, name := range []string{ourConfiguration, kubevirtConfiguration} {
		_, err := client.Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
	}
	assert.Greater(t, ourConfiguration, kubevirtConfiguration, "the API server calls them in the order of their names")
}

// disksOf returns the names of the VMI's disks.
func disksOf(vmi *unstructured.Unstructured) []string {
	disks, _ := nested(vmi, "spec", "domain", "devices", "disks").([]any)
	var names []string
	for _, disk := range disks {
		names = append(names, disk.(map[string]any)["name"].(string))
	}
	return names
}

// The licence disk as KubeVirt stores it, beside every kind of disk.
func TestLicenceDiskIsTheLastOne(t *testing.T) {
	classes(t)
	ns := namespace(t)
	gates(t, "MultiArchitecture", "")
	for name, tc := range map[string]struct {
		spec string
		want []string
	}{
		"usual": {usualSpec, []string{"root", "cloudinit", "gpu-license"}},
		"boot-order": {`
domain:
  memory: {guest: 1Gi}
  devices:
    disks:
    - {name: data, bootOrder: 2, disk: {bus: virtio}}
    - {name: root, bootOrder: 1, disk: {bus: virtio}}
volumes:
- {name: root, containerDisk: {image: example.com/debian:13}}
- {name: data, emptyDisk: {capacity: 1Gi}}
`, []string{"data", "root", "gpu-license"}},
		"no-disks": {`
domain: {memory: {guest: 1Gi}, devices: {}}
volumes:
- {name: root, containerDisk: {image: example.com/debian:13}}
- {name: cloudinit, cloudInitNoCloud: {userData: "#cloud-config"}}
`, []string{"root", "cloudinit", "gpu-license"}},
		"some-disks": {`
domain: {memory: {guest: 1Gi}, devices: {disks: [{name: cloudinit, cdrom: {bus: sata}}]}}
volumes:
- {name: root, containerDisk: {image: example.com/debian:13}}
- {name: cloudinit, cloudInitNoCloud: {userData: "#cloud-config"}}
`, []string{"cloudinit", "root", "gpu-license"}},
		"nothing": {`{domain: {memory: {guest: 1Gi}, devices: {}}}`, []string{"gpu-license"}},
		"arm64":   {"architecture: arm64\n" + usualSpec, []string{"root", "cloudinit", "gpu-license"}},
	} {
		t.Run(name, func(t *testing.T) {
			object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance"}}
			for field, value := range template(t, oneL40S, tc.spec) {
				object.Object[field] = value
			}
			object.SetName(name)
			object.SetNamespace(ns)
			eventually(t, func(c *assert.CollectT) { // until virt-api knows of the gate
				_, err := env.Dynamic.Resource(suite.VMIs).Namespace(ns).Create(context.Background(), object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				assert.NoError(c, err)
			})
			vmi := env.Create(t, suite.VMIs, object)
			assert.Equal(t, tc.want, disksOf(vmi))
			disks := nested(vmi, "spec", "domain", "devices", "disks").([]any)
			bus := "sata"
			if name == "arm64" {
				bus = "scsi"
			}
			assert.Equal(t, any(licenseDiskOn(bus)), disks[len(disks)-1])
			assert.Contains(t, nested(vmi, "spec", "volumes"), any(licenseVolume))
		})
	}
}

// If somebody renames the configuration so that it comes first, VMs are
// refused or get what they ask for, with the licence disk in another place.
func TestOtherOrderDoesNothingWorseThanRefuse(t *testing.T) {
	classes(t)
	ns := namespace(t)
	ctx := context.WithoutCancel(t.Context())
	client := env.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations()
	original, err := client.Get(ctx, ourConfiguration, metav1.GetOptions{})
	require.NoError(t, err)
	rename := func(from, to string) {
		renamed := original.DeepCopy()
		renamed.ObjectMeta = metav1.ObjectMeta{Name: to}
		_, err := client.Create(ctx, renamed, metav1.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, client.Delete(ctx, from, metav1.DeleteOptions{}))
	}
	// probe is an object by which the order shows: KubeVirt adds a disk for
	// the volume, before ours or after it.
	probe := func(t require.TestingT, name string) (*unstructured.Unstructured, error) {
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
			"spec": map[string]any{
				"domain":  map[string]any{"memory": map[string]any{"guest": "1Gi"}, "devices": map[string]any{}},
				"volumes": []any{map[string]any{"name": "root", "containerDisk": map[string]any{"image": "example.com/debian:13"}}},
			},
		}}
		object.SetName(name)
		object.SetLabels(map[string]string{gpu.LabelGPUReference: gpu.LabelValueTrue})
		object.SetAnnotations(map[string]string{gpu.AnnotationGPUs: oneL40S})
		return env.Dynamic.Resource(suite.VMIs).Namespace(ns).Create(ctx, object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	}
	const first = "a-vmi-webhook.gpu.cozystack.io"
	rename(ourConfiguration, first)
	t.Cleanup(func() {
		rename(first, ourConfiguration)
		eventually(t, func(c *assert.CollectT) {
			vmi, err := probe(c, "restored")
			if assert.NoError(c, err) {
				assert.Equal(c, []string{"root", "gpu-license"}, disksOf(vmi))
			}
		})
	})
	eventually(t, func(c *assert.CollectT) {
		vmi, err := probe(c, "probe")
		if err != nil {
			assert.Contains(c, err.Error(), "denied the request")
			return
		}
		assert.Equal(c, entries(l40sResource, 1), nested(vmi, "spec", "domain", "devices", "gpus"))
		disks := nested(vmi, "spec", "domain", "devices", "disks").([]any)
		assert.Equal(c, any(licenseDisk), disks[0], "the order did not change yet")
		assert.True(c, slices.Contains(disksOf(vmi), "root"))
	})
}
