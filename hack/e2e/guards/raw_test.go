// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"cozystack.io/gpu/hack/e2e/suite"
)

func TestRawDevicesOfClassesAreRefused(t *testing.T) {
	class(t, "h100", h100Resource)
	namespace, admin := tenant(t)
	for way, tc := range map[string]struct{ spec, field string }{
		"a gpus entry":                      {gpus(h100Resource), "spec.domain.devices.gpus"},
		"a gpus entry with the hook's name": {domain("{gpus: [{name: gpuclass-0, deviceName: nvidia.com/H100}]}", noResources), "spec.domain.devices.gpus"},
		"a hostDevices entry":               {domain("{hostDevices: [{name: mine, deviceName: nvidia.com/H100}]}", noResources), "spec.domain.devices.hostDevices"},
		"a limit":                           {domain("{}", "{limits: {nvidia.com/H100: 1}}"), "spec.domain.resources"},
		"a request":                         {domain("{}", "{requests: {nvidia.com/H100: '1'}}"), "spec.domain.resources"},
	} {
		for name, kind := range kinds {
			t.Run(name+" with "+way, func(t *testing.T) {
				for _, client := range []dynamic.Interface{admin, helm, virtController, env.Dynamic} {
					assertForbidden(t, try(client, kind.resource, machine(t, name, namespace, plain, tc.spec)),
						kind.at+tc.field+" names nvidia.com/H100", `GPU class "h100"`, "ask for the class by its name")
				}
				assert.NoError(t, try(env.Dynamic, kind.resource, machine(t, name, "outside", plain, tc.spec)), "outside of tenants")
				other := strings.ReplaceAll(tc.spec, h100Resource, "example.com/nobodys")
				assert.NoError(t, try(admin, kind.resource, machine(t, name, namespace, plain, other)), "a device of no class")
			})
		}
	}
}

func TestOddShapesAreNoErrors(t *testing.T) {
	class(t, "h100", h100Resource)
	namespace, admin := tenant(t)
	for name, metadata := range map[string]string{
		"null metadata": "null",
		"null labels":   "{labels: null, annotations: null, creationTimestamp: null}",
	} {
		t.Run(name, func(t *testing.T) {
			err := try(admin, replicaSets, machine(t, "VirtualMachineInstanceReplicaSet", namespace, metadata, noDevices))
			require.Error(t, err) // of KubeVirt, which asks after the policies
			assert.Contains(t, err.Error(), "admission webhook")
		})
	}
	for name, tc := range map[string]struct{ metadata, spec string }{
		"no metadata":             {"{}", noDevices},
		"empty lists":             {"{}", domain("{gpus: [], hostDevices: []}", "{limits: {}, requests: {}}")},
		"no resources":            {"{}", "{domain: {devices: {}}}"},
		"a resource as a number":  {"{}", domain("{}", "{limits: {memory: 1073741824}}")},
		"hundreds of GPU entries": {"{}", domain("{gpus: ["+strings.Repeat("{name: x, deviceName: example.com/nobodys}, ", 500)+"]}", noResources)},
	} {
		t.Run(name, func(t *testing.T) {
			assert.NoError(t, try(admin, vms, machine(t, "VirtualMachine", namespace, tc.metadata, tc.spec)))
		})
	}
}

func TestInstancetypeBringsNoDeviceOfAClass(t *testing.T) {
	class(t, "h100", h100Resource)
	namespace, admin := tenant(t)
	create(t, admin, instancetypes, suite.Object(t, `
apiVersion: instancetype.kubevirt.io/v1beta1
kind: VirtualMachineInstancetype
metadata: {name: with-gpu, namespace: %s}
spec: {cpu: {guest: 1}, memory: {guest: 1Gi}, gpus: [{name: gpuclass-0, deviceName: nvidia.com/H100}]}
`, namespace))
	object := running(t, machine(t, "VirtualMachine", namespace, plain, "{domain: {devices: {}}}"))
	require.NoError(t, unstructured.SetNestedStringMap(object.Object, map[string]string{"name": "with-gpu", "kind": "VirtualMachineInstancetype"}, "spec", "instancetype"))
	create(t, admin, vms, object)
	eventually(t, func(c *assert.CollectT) {
		// The condition may hold on to an earlier failure of the same reason.
		events, err := env.Kube.CoreV1().Events(namespace).List(context.Background(), metav1.ListOptions{FieldSelector: "involvedObject.kind=VirtualMachine"})
		require.NoError(c, err)
		messages := ""
		for _, event := range events.Items {
			messages += event.Message + "\n"
		}
		assert.Contains(c, messages, `spec.domain.devices.gpus names nvidia.com/H100, the device of GPU class "h100"; remove it, also from the instancetype`)
	})
	_, err := env.Dynamic.Resource(suite.VMIs).Namespace(namespace).Get(t.Context(), "vm", metav1.GetOptions{})
	assert.Error(t, err)
}

// unguarded creates the object while the guard is not bound.
func unguarded(t *testing.T, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	const name = "raw-devices.gpu.cozystack.io"
	client := env.Dynamic.Resource(bindings)
	binding, err := client.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, client.Delete(t.Context(), name, metav1.DeleteOptions{}))
	binding.SetResourceVersion("")
	binding.SetUID("")
	bind := func() {
		_, err := client.Create(context.WithoutCancel(t.Context()), binding, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	defer bind()
	waitNoGuard(t, h100Resource)
	return create(t, env.Dynamic, kinds[object.GetKind()].resource, object)
}

func TestExistingRawVMsRunOn(t *testing.T) {
	class(t, "h100", h100Resource)
	namespace, admin := tenant(t)
	const spec = `{domain: {memory: {guest: 1Gi}, devices: {gpus: [{name: mine, deviceName: nvidia.com/H100}]}, resources: {limits: {nvidia.com/H100: 2}}}}`
	object := unguarded(t, running(t, machine(t, "VirtualMachine", namespace, plain, spec)))
	eventually(t, func(c *assert.CollectT) {
		vmi, err := env.Dynamic.Resource(suite.VMIs).Namespace(namespace).Get(context.Background(), "vm", metav1.GetOptions{})
		if assert.NoError(c, err) {
			assert.NotEmpty(c, nested(vmi, "status", "phase"))
		}
	})
	waitGuarded(t, "h100", h100Resource)

	edit := func(patch string) error { return merge(t, admin, vms, namespace, "vm", patch) }
	inDomain := func(patch string) error {
		return edit("{spec: {template: {spec: {domain: " + patch + "}}}}")
	}
	require.NoError(t, edit("{metadata: {labels: {a: b}}, spec: {template: {spec: {terminationGracePeriodSeconds: 7}}}}"))
	require.NoError(t, merge(t, virtController, vms, namespace, "vm", "{status: {printableStatus: Running}}", "status"))
	require.NoError(t, merge(t, admin, suite.VMIs, namespace, "vm", "{metadata: {annotations: {a: b}}}"))
	mine := apply(t, admin, vms, suite.Object(t, "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: vm, namespace: %s, labels: {c: d}}}", namespace))
	require.NoError(t, mine)

	const gpusField, resourcesField = "spec.template.spec.domain.devices.gpus names", "spec.template.spec.domain.resources names"
	two := "{gpus: [{name: mine, deviceName: nvidia.com/H100}, {name: more, deviceName: nvidia.com/H100}]}"
	assertForbidden(t, inDomain("{devices: "+two+"}"), gpusField)
	assertForbidden(t, inDomain("{devices: {hostDevices: [{name: more, deviceName: nvidia.com/H100}]}}"), "spec.template.spec.domain.devices.hostDevices names")
	assertForbidden(t, inDomain("{resources: {limits: {nvidia.com/H100: 3}}}"), resourcesField)
	assertForbidden(t, inDomain("{resources: {requests: {nvidia.com/H100: 1}}}"), resourcesField)
	changed := machine(t, "VirtualMachine", namespace, plain, domain(two, noResources))
	assertForbidden(t, apply(t, admin, vms, changed), gpusField)

	require.NoError(t, inDomain("{resources: {limits: {nvidia.com/H100: '1'}}}"), "fewer units")
	require.NoError(t, inDomain("{devices: {gpus: [{name: renamed, deviceName: nvidia.com/H100}]}}"))
	require.NoError(t, inDomain("{devices: {gpus: null}, resources: {limits: {nvidia.com/H100: null}}}"))
	assertForbidden(t, inDomain("{devices: {gpus: [{name: mine, deviceName: nvidia.com/H100}]}}"), gpusField)

	require.NoError(t, edit("{metadata: {finalizers: [example.com/hold]}}"))
	require.NoError(t, admin.Resource(vms).Namespace(namespace).Delete(t.Context(), "vm", metav1.DeleteOptions{}))
	require.NoError(t, edit("{metadata: {finalizers: null}}"))
	env.Delete(t, vms, object)
}

func TestRawVMThatIsBeingDeletedPasses(t *testing.T) {
	class(t, "h100", h100Resource)
	namespace, admin := tenant(t)
	held := machine(t, "VirtualMachine", namespace, plain, gpus(h100Resource))
	held.SetFinalizers([]string{"example.com/hold"})
	unguarded(t, held)
	waitGuarded(t, "h100", h100Resource)
	require.NoError(t, admin.Resource(vms).Namespace(namespace).Delete(t.Context(), "vm", metav1.DeleteOptions{}))
	require.NoError(t, merge(t, admin, vms, namespace, "vm", "{spec: {template: {spec: {domain: {resources: {limits: {nvidia.com/H100: 1}}}}}}}"), "nothing is judged any more")
	require.NoError(t, merge(t, admin, vms, namespace, "vm", "{metadata: {finalizers: null}}"))
}

func TestClassesThatComeChangeAndGo(t *testing.T) {
	waitNoGuard(t, "example.com/a") // there is no class
	object := class(t, "changing", "example.com/a")
	waitNoGuard(t, "example.com/b")
	_, err := env.Dynamic.Resource(suite.GPUClasses).Patch(t.Context(), "changing", "application/merge-patch+json",
		fmt.Appendf(nil, `{"spec":{"resourceName":%q}}`, "example.com/b"), metav1.PatchOptions{})
	require.NoError(t, err)
	waitGuarded(t, "changing", "example.com/b")
	waitNoGuard(t, "example.com/a")
	env.Delete(t, suite.GPUClasses, object)
	waitNoGuard(t, "example.com/b")
}
