// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"cozystack.io/gpu/hack/e2e/suite"
)

// network returns a network whose pods are to have the device.
func network(t testing.TB, namespace, resourceName string) *unstructured.Unstructured {
	t.Helper()
	return suite.Object(t, "{apiVersion: k8s.cni.cncf.io/v1, kind: NetworkAttachmentDefinition, metadata: {name: net, namespace: %s, annotations: {k8s.v1.cni.cncf.io/resourceName: %s}}, spec: {config: '{}'}}", namespace, resourceName)
}

// That KubeVirt does so is what the guard is for.
func TestKubeVirtRequestsTheDeviceOfANetwork(t *testing.T) {
	create(t, env.Dynamic, networks, network(t, "outside", h100Resource))
	const spec = "{domain: {memory: {guest: 1Gi}, devices: {interfaces: [{name: net, bridge: {}}]}}, networks: [{name: net, multus: {networkName: net}}]}"
	create(t, env.Dynamic, vms, running(t, machine(t, "VirtualMachine", "outside", plain, spec)))
	eventually(t, func(c *assert.CollectT) {
		pods, err := env.Kube.CoreV1().Pods("outside").List(context.Background(), metav1.ListOptions{LabelSelector: "kubevirt.io=virt-launcher"})
		require.NoError(c, err)
		if assert.Len(c, pods.Items, 1) {
			assert.Contains(c, pods.Items[0].Spec.Containers[0].Resources.Limits, corev1.ResourceName(h100Resource))
		}
	})
}

func TestNetworksNameNoDeviceOfAClass(t *testing.T) {
	namespace, admin := tenant(t)
	older := create(t, admin, networks, network(t, namespace, h100Resource))
	class(t, "h100", h100Resource)
	const refusal = "metadata.annotations[k8s.v1.cni.cncf.io/resourceName] names nvidia.com/H100, the device of GPU class"
	assertForbidden(t, try(admin, networks, network(t, namespace, h100Resource)), refusal)
	assert.NoError(t, try(env.Dynamic, networks, network(t, "outside", h100Resource)), "outside of tenants")

	edit := func(patch string) error { return merge(t, admin, networks, namespace, older.GetName(), patch) }
	require.NoError(t, edit("{metadata: {labels: {a: b}}}"), "it was there before")
	require.NoError(t, edit("{metadata: {annotations: {k8s.v1.cni.cncf.io/resourceName: example.com/nobodys}}}"))
	assertForbidden(t, edit("{metadata: {annotations: {k8s.v1.cni.cncf.io/resourceName: nvidia.com/H100}}}"), refusal)
	require.NoError(t, edit("{metadata: {annotations: null}, spec: null}"))
	assertForbidden(t, apply(t, admin, networks, network(t, namespace, h100Resource)), refusal)
}
