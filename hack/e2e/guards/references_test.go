// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"cozystack.io/gpu/hack/e2e/suite"
)

const (
	mayNot = "may not set or change label cozystack.io/gpu-reference"
	stays  = "of an existing VirtualMachineInstance stay as they are"
)

func TestOnlyNamedAccountsGiveVMsTheirClasses(t *testing.T) {
	class(t, "h100", h100Resource)
	namespace, admin := tenant(t)
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			written := map[string]string{"annotation": annotated, "both": takesTwo}
			if name != "VirtualMachineInstance" { // vmi-webhook refuses such a one first
				written["label"] = labelled
			}
			for what, metadata := range written {
				for who, client := range map[string]dynamic.Interface{"admin": admin, "kubevirt-controller": virtController} {
					assertForbidden(t, try(client, kind.resource, machine(t, name, namespace, metadata, noDevices)), kind.at+"metadata: system:serviceaccount:", who+" "+mayNot)
				}
				for who, client := range map[string]dynamic.Interface{"helm": helm, "cluster api": clusterAPI, "hoster": env.Dynamic} {
					assert.NoError(t, try(client, kind.resource, machine(t, name, namespace, metadata, noDevices)), "%s writes %s", who, what)
				}
				assert.NoError(t, try(virtController, kind.resource, machine(t, name, "outside", metadata, noDevices)))
			}
			assert.NoError(t, try(admin, kind.resource, machine(t, name, namespace, plain, noDevices)))
		})
	}
}

func TestVirtControllerCopiesFromOwnersOnly(t *testing.T) {
	class(t, "h100", h100Resource)
	namespace, admin := tenant(t)
	for name, tc := range map[string]struct {
		kind, apiVersion, owner string
		controller, allowed     bool
	}{
		"a VMI of a VM":                           {"VirtualMachineInstance", "kubevirt.io/v1", "VirtualMachine", true, true},
		"a VMI of a foreign owner":                {"VirtualMachineInstance", "example.com/v1", "VirtualMachine", true, false},
		"a VMI of an owner that does not control": {"VirtualMachineInstance", "kubevirt.io/v1", "VirtualMachine", false, false},
		"a VMI of an owner with a longer name":    {"VirtualMachineInstance", "kubevirt.io.example.com/v1", "VirtualMachine", true, false},
		"a VM of a VM":                            {"VirtualMachine", "kubevirt.io/v1", "VirtualMachine", true, false},
		"a VM of a pool":                          {"VirtualMachine", "pool.kubevirt.io/v1beta1", "VirtualMachinePool", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			object := machine(t, tc.kind, namespace, takesTwo, noDevices)
			object.SetOwnerReferences([]metav1.OwnerReference{{
				APIVersion: tc.apiVersion, Kind: tc.owner, Name: "owner", UID: "00000000-0000-0000-0000-000000000001", Controller: &tc.controller,
			}})
			err := try(virtController, kinds[tc.kind].resource, object)
			if tc.allowed {
				assert.NoError(t, err)
			} else {
				assertForbidden(t, err, mayNot)
			}
			assertForbidden(t, try(admin, kinds[tc.kind].resource, object), mayNot)
		})
	}
}

// A restore has virt-controller write a snapshot's template over that of a VM,
// whose owners stay as the tenant set them; so are the snapshot's contents. Here
// both come in one write, or the garbage collector would find the owner missing.
func TestRestoreOverAVMWithAForgedOwnerGivesNoClasses(t *testing.T) {
	class(t, "h100", h100Resource)
	namespace, admin := tenant(t)
	create(t, admin, vms, machine(t, "VirtualMachine", namespace, plain, noDevices))
	for apiVersion, kind := range map[string]string{"kubevirt.io/v1": "VirtualMachine", "pool.kubevirt.io/v1beta1": "VirtualMachinePool"} {
		owner := fmt.Sprintf("{apiVersion: %s, kind: %s, name: owner, uid: 00000000-0000-0000-0000-000000000001, controller: true}", apiVersion, kind)
		restored := "{metadata: {ownerReferences: [" + owner + "]}, spec: {template: {metadata: " + takesTwo + "}}}"
		assertForbidden(t, merge(t, virtController, vms, namespace, "vm", restored), mayNot)
	}
}

// The whole way: the Helm controller writes, virt-controller copies, vmi-webhook
// adds the devices. A younger class of the same device does not stand in the way.
func TestClassesReachTheVMI(t *testing.T) {
	class(t, "h100", h100Resource)
	env.Create(t, suite.GPUClasses, suite.Object(t, "{apiVersion: cozystack.io/v1alpha1, kind: GPUClass, metadata: {name: twin}, spec: {mode: Passthrough, resourceName: nvidia.com/H100}}"))
	waitGuarded(t, "twin", h100Resource)
	for _, kind := range []string{"VirtualMachine", "VirtualMachineInstanceReplicaSet"} {
		t.Run(kind, func(t *testing.T) {
			namespace, _ := tenant(t)
			create(t, helm, kinds[kind].resource, running(t, machine(t, kind, namespace, takesTwo, noDevices)))
			waitDevices(t, namespace)
		})
	}
}

// waitDevices waits until the namespace has a VMI with two units of h100.
func waitDevices(t testing.TB, namespace string) *unstructured.Unstructured {
	t.Helper()
	var vmi *unstructured.Unstructured
	eventually(t, func(c *assert.CollectT) {
		list, err := env.Dynamic.Resource(suite.VMIs).Namespace(namespace).List(context.Background(), metav1.ListOptions{})
		require.NoError(c, err)
		if assert.Len(c, list.Items, 1) {
			vmi = &list.Items[0]
			assert.Equal(c, []any{
				map[string]any{"name": "gpuclass-0", "deviceName": h100Resource},
				map[string]any{"name": "gpuclass-1", "deviceName": h100Resource},
			}, nested(vmi, "spec", "domain", "devices", "gpus"))
			assert.NotEmpty(c, nested(vmi, "status", "phase"))
		}
	})
	return vmi
}

func TestEditsOfVMsWithClasses(t *testing.T) {
	class(t, "h100", h100Resource)
	namespace, admin := tenant(t)
	create(t, helm, vms, machine(t, "VirtualMachine", namespace, takesTwo, noDevices))
	inMetadata := func(client dynamic.Interface, patch string) error {
		return merge(t, client, vms, namespace, "vm", "{spec: {template: {metadata: "+patch+"}}}")
	}
	const three = `{annotations: {cozystack.io/gpus: '[{"className":"h100","count":3}]'}}`

	require.NoError(t, inMetadata(admin, "{labels: {a: b}, annotations: {c: d}}"))
	require.NoError(t, merge(t, admin, vms, namespace, "vm", "{spec: {template: {spec: {domain: {cpu: {sockets: 2}}}}}}"))
	require.NoError(t, apply(t, admin, vms, machine(t, "VirtualMachine", namespace, takesTwo, noDevices)), "unchanged")

	assertForbidden(t, inMetadata(admin, three), "spec.template.metadata", mayNot)
	assertForbidden(t, inMetadata(admin, "{annotations: {cozystack.io/gpus: null}}"), mayNot)
	assertForbidden(t, inMetadata(admin, "{labels: {cozystack.io/gpu-reference: null}}"), mayNot)
	assertForbidden(t, inMetadata(admin, `{labels: {cozystack.io/gpu-reference: "yes"}}`), mayNot)
	assertForbidden(t, inMetadata(admin, "null"), mayNot)
	assertForbidden(t, apply(t, admin, vms, machine(t, "VirtualMachine", namespace, three, noDevices)), mayNot)
	assertForbidden(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		object := get(t, vms, namespace, "vm") // virt-controller writes its status
		require.NoError(t, unstructured.SetNestedField(object.Object, map[string]any{}, "spec", "template", "metadata"))
		_, err := admin.Resource(vms).Namespace(namespace).Update(t.Context(), object, metav1.UpdateOptions{})
		return err
	}), mayNot)

	require.NoError(t, inMetadata(clusterAPI, three))
	require.NoError(t, inMetadata(helm, "null"))
	assertForbidden(t, inMetadata(admin, takesTwo), mayNot)
}

func TestExistingVMIKeepsItsClasses(t *testing.T) {
	class(t, "h100", h100Resource)
	namespace, admin := tenant(t)
	create(t, helm, vms, running(t, machine(t, "VirtualMachine", namespace, takesTwo, noDevices)))
	before := waitDevices(t, namespace)
	for who, client := range map[string]dynamic.Interface{"admin": admin, "helm": helm, "virt-controller": virtController, "hoster": env.Dynamic} {
		t.Run("against "+who, func(t *testing.T) {
			edit := func(patch string) error { return merge(t, client, suite.VMIs, namespace, "vm", patch) }
			assertForbidden(t, edit(`{metadata: {annotations: {cozystack.io/gpus: '[]'}}}`), stays)
			assertForbidden(t, edit(`{metadata: {annotations: {cozystack.io/gpus: null}}}`), stays)
			assertForbidden(t, edit(`{metadata: {labels: {cozystack.io/gpu-reference: null}}}`), stays)
			assertForbidden(t, edit("{metadata: {annotations: {cozystack.io/gpus: '[]', a: b}, labels: {c: d}}}"), stays)
			require.NoError(t, edit("{metadata: {annotations: {a: b}, labels: {c: d}}}"))
		})
	}

	// virt-controller carries what it may from a changed template to the VMI, and
	// the annotation is nothing of that.
	require.NoError(t, merge(t, helm, vms, namespace, "vm", `
spec:
  template:
    metadata: {annotations: {cozystack.io/gpus: '[{"className":"h100","count":1}]'}}
    spec: {tolerations: [{key: example.com/own, operator: Exists}]}
`))
	eventually(t, func(c *assert.CollectT) {
		vmi, err := env.Dynamic.Resource(suite.VMIs).Namespace(namespace).Get(context.Background(), "vm", metav1.GetOptions{})
		require.NoError(c, err)
		assert.Equal(c, []any{map[string]any{"key": "example.com/own", "operator": "Exists"}}, nested(vmi, "spec", "tolerations"))
		assert.Equal(c, before.GetAnnotations()["cozystack.io/gpus"], vmi.GetAnnotations()["cozystack.io/gpus"])
	})
}

func TestWithoutItsRoleNobodyGivesClasses(t *testing.T) {
	class(t, "h100", h100Resource)
	namespace, admin := tenant(t)
	client := env.Dynamic.Resource(clusterBindings)
	binding, err := client.Get(t.Context(), "gpu-class-assign", metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, client.Delete(t.Context(), binding.GetName(), metav1.DeleteOptions{}))
	t.Cleanup(func() {
		binding.SetResourceVersion("")
		_, err := client.Create(context.WithoutCancel(t.Context()), binding, metav1.CreateOptions{})
		require.NoError(t, err)
		eventually(t, func(c *assert.CollectT) {
			assert.NoError(c, try(helm, vms, machine(t, "VirtualMachine", namespace, takesTwo, noDevices)))
		})
	})
	eventually(t, func(c *assert.CollectT) {
		err := try(helm, vms, machine(t, "VirtualMachine", namespace, takesTwo, noDevices))
		if assert.Error(c, err) {
			assert.Contains(c, err.Error(), "flux "+mayNot)
		}
	})
	for _, client := range []dynamic.Interface{admin, helm, virtController} {
		assert.NoError(t, try(client, vms, machine(t, "VirtualMachine", namespace, plain, noDevices)), "all else passes")
	}
}
