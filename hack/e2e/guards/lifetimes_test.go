// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"cozystack.io/gpu/hack/e2e/suite"
)

// What a budget counts goes by the deletion of a VM: a VMI that outlived it would
// keep GPUs that are counted as free.
func TestNoVMIOutlivesItsVM(t *testing.T) {
	class(t, "h100", h100Resource)
	namespace, admin := tenant(t)
	create(t, helm, vms, running(t, machine(t, "VirtualMachine", namespace, takesTwo, noDevices)))
	waitDevices(t, namespace)
	client := admin.Resource(vms).Namespace(namespace)
	const orphan = "propagation policy Orphan"

	for what, options := range map[string]metav1.DeleteOptions{
		"the policy":         {PropagationPolicy: new(metav1.DeletePropagationOrphan)},
		"its older spelling": {OrphanDependents: new(true)},
	} {
		assertForbidden(t, client.Delete(t.Context(), "vm", options), orphan, "GPU classes")
		assertForbidden(t, client.DeleteCollection(t.Context(), options, metav1.ListOptions{}), orphan)
		assert.Nil(t, get(t, vms, namespace, "vm").GetDeletionTimestamp(), what)
	}
	assertForbidden(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		vm := get(t, vms, namespace, "vm") // virt-controller writes its status
		vm.SetFinalizers(append(vm.GetFinalizers(), metav1.FinalizerOrphanDependents))
		_, err := client.Update(t.Context(), vm, metav1.UpdateOptions{})
		return err
	}), orphan)

	inVMI := func(patch string) error { return merge(t, admin, suite.VMIs, namespace, "vm", patch) }
	const owners = "stays with the VM or set that controls it"
	owner := get(t, vms, namespace, "vm")
	reference := func(controller bool, uid any) string {
		return fmt.Sprintf("{metadata: {ownerReferences: [{apiVersion: kubevirt.io/v1, kind: VirtualMachine, name: vm, uid: %s, controller: %t}]}}", uid, controller)
	}
	assertForbidden(t, inVMI("{metadata: {ownerReferences: null}}"), owners)
	assertForbidden(t, inVMI(reference(false, owner.GetUID())), owners)
	assertForbidden(t, inVMI(reference(true, "00000000-0000-0000-0000-000000000001")), owners)
	assertForbidden(t, merge(t, virtController, suite.VMIs, namespace, "vm", "{metadata: {ownerReferences: []}}"), owners)
	assertForbidden(t, merge(t, admin, suite.VMIs, namespace, "vm", fmt.Sprintf(`
metadata:
  ownerReferences:
  - {apiVersion: kubevirt.io/v1, kind: VirtualMachine, name: vm, uid: %s, controller: true}
  - {apiVersion: v1, kind: ServiceAccount, name: admin, uid: 00000000-0000-0000-0000-000000000001}
`, owner.GetUID())), owners)
	require.NoError(t, inVMI(reference(true, owner.GetUID())))
	assertForbidden(t, merge(t, virtController, suite.VMIs, namespace, "vm", "{spec: {terminationGracePeriodSeconds: 3600}}"), "terminationGracePeriodSeconds")

	grace := func(value string) error {
		return merge(t, admin, vms, namespace, "vm", "{spec: {template: {spec: {terminationGracePeriodSeconds: "+value+"}}}}")
	}
	assertForbidden(t, grace("31"), "terminationGracePeriodSeconds")
	require.NoError(t, grace("5"))
	assertForbidden(t, grace("6"), "terminationGracePeriodSeconds")
	assertForbidden(t, grace("null"), "terminationGracePeriodSeconds")
	require.NoError(t, merge(t, helm, vms, namespace, "vm", "{spec: {template: {spec: {terminationGracePeriodSeconds: 60}}}}"))

	// All else about deletion is as ever.
	require.NoError(t, merge(t, admin, vms, namespace, "vm", "{metadata: {labels: {a: b}}}"))
	require.NoError(t, client.Delete(t.Context(), "vm", metav1.DeleteOptions{}))
	eventually(t, func(c *assert.CollectT) {
		_, err := env.Dynamic.Resource(suite.VMIs).Namespace(namespace).Get(context.Background(), "vm", metav1.GetOptions{})
		assert.True(c, apierrors.IsNotFound(err), "%v", err)
	})
}

func TestNothingThatNamesClassesIsOrphaned(t *testing.T) {
	class(t, "h100", h100Resource)
	namespace, admin := tenant(t)
	for _, name := range []string{"VirtualMachine", "VirtualMachineInstance", "VirtualMachineInstanceReplicaSet"} {
		t.Run(name, func(t *testing.T) {
			resource := kinds[name].resource
			object := create(t, helm, resource, machine(t, name, namespace, takesTwo, noDevices))
			err := admin.Resource(resource).Namespace(namespace).Delete(t.Context(), object.GetName(), metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationOrphan)})
			assertForbidden(t, err, "propagation policy Orphan")
		})
	}
}

func TestDeletionAgainMayNotOrphanEither(t *testing.T) {
	class(t, "h100", h100Resource)
	namespace, admin := tenant(t)
	held := machine(t, "VirtualMachine", namespace, takesTwo, noDevices)
	held.SetFinalizers([]string{"example.com/hold"})
	create(t, helm, vms, held)
	client := admin.Resource(vms).Namespace(namespace)
	require.NoError(t, client.Delete(t.Context(), "vm", metav1.DeleteOptions{}))
	assertForbidden(t, client.Delete(t.Context(), "vm", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationOrphan)}), "propagation policy Orphan")
	require.NoError(t, merge(t, admin, vms, namespace, "vm", "{metadata: {finalizers: null}}"))
}

func TestOthersMayOrphan(t *testing.T) {
	namespace, admin := tenant(t)
	orphan := metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationOrphan)}
	for name, metadata := range map[string]string{"no label": plain, "a hoster": takesTwo} {
		t.Run(name, func(t *testing.T) {
			client := admin
			if name == "a hoster" {
				client = env.Dynamic
			}
			object := machine(t, "VirtualMachine", namespace, metadata, noDevices)
			_, err := env.Dynamic.Resource(vms).Namespace(namespace).Create(t.Context(), object, metav1.CreateOptions{})
			require.NoError(t, err)
			require.NoError(t, client.Resource(vms).Namespace(namespace).Delete(t.Context(), "vm", orphan))
			eventually(t, func(c *assert.CollectT) {
				_, err := env.Dynamic.Resource(vms).Namespace(namespace).Get(context.Background(), "vm", metav1.GetOptions{})
				assert.True(c, apierrors.IsNotFound(err), "%v", err)
			})
		})
	}
}

// That KubeVirt lets the VMI run on is what the guard is for. A hoster may want it,
// and KubeVirt gives such a VMI to the next VM of its name.
func TestAHosterOrphansAVMI(t *testing.T) {
	class(t, "h100", h100Resource)
	namespace, _ := tenant(t)
	vm := running(t, machine(t, "VirtualMachine", namespace, takesTwo, noDevices))
	create(t, helm, vms, vm)
	before := waitDevices(t, namespace)
	require.NoError(t, env.Dynamic.Resource(vms).Namespace(namespace).Delete(t.Context(), "vm", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationOrphan)}))
	eventually(t, func(c *assert.CollectT) {
		_, err := env.Dynamic.Resource(vms).Namespace(namespace).Get(context.Background(), "vm", metav1.GetOptions{})
		assert.True(c, apierrors.IsNotFound(err), "%v", err)
	})
	left := get(t, suite.VMIs, namespace, "vm")
	assert.Empty(t, left.GetOwnerReferences())
	assert.Nil(t, left.GetDeletionTimestamp())

	again := create(t, helm, vms, vm)
	eventually(t, func(c *assert.CollectT) {
		adopted, err := env.Dynamic.Resource(suite.VMIs).Namespace(namespace).Get(context.Background(), "vm", metav1.GetOptions{})
		require.NoError(c, err)
		assert.Equal(c, before.GetUID(), adopted.GetUID())
		if assert.Len(c, adopted.GetOwnerReferences(), 1) {
			assert.Equal(c, again.GetUID(), adopted.GetOwnerReferences()[0].UID)
		}
	})
}
