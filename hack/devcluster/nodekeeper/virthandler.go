// SPDX-License-Identifier: Apache-2.0

package nodekeeper

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// syncVMI does what virt-handler would for a VMI whose pod runs: it reports
// the guest as running, or as ended once the VMI is being deleted.
func (k *keeper) syncVMI(ctx context.Context, key string) error {
	vmi, phase, err := k.vmi(key)
	if err != nil || vmi == nil {
		return err
	}
	if vmi.GetDeletionTimestamp() != nil {
		return k.endVMI(ctx, key)
	}
	if phase == "Scheduled" {
		return k.bootVMI(ctx, vmi.DeepCopy())
	}
	return nil
}

// vmi returns a VMI and its phase, or nil if there is none.
func (k *keeper) vmi(key string) (*unstructured.Unstructured, string, error) {
	object, exists, err := k.vmis.GetIndexer().GetByKey(key)
	if err != nil || !exists {
		return nil, "", err
	}
	vmi := object.(*unstructured.Unstructured)
	phase, _, err := unstructured.NestedString(vmi.Object, "status", "phase")
	return vmi, phase, err
}

// bootVMI reports what virt-handler would after a boot. Without the SELinux
// context migrations wait, and without times in the conditions
// virt-controller's own patches of them fail.
func (k *keeper) bootVMI(ctx context.Context, vmi *unstructured.Unstructured) error {
	status, _, err := unstructured.NestedMap(vmi.Object, "status")
	if err != nil {
		return err
	}
	status["selinuxContext"] = "none"
	setPhase(status, "Running")
	conditions, _ := status["conditions"].([]any)
	var kept []any
	for _, condition := range conditions {
		if c, ok := condition.(map[string]any); ok && c["type"] != "Ready" {
			kept = append(kept, c)
		}
	}
	for _, kind := range []string{"LiveMigratable", "StorageLiveMigratable", "Ready"} {
		kept = append(kept, map[string]any{"type": kind, "status": "True", "lastProbeTime": now(), "lastTransitionTime": now()})
	}
	status["conditions"] = kept
	vmi.Object["status"] = status
	return k.report(ctx, vmi)
}

// endVMI reports a VMI that is being deleted as ended. Until then its pods must
// not go, which would look like a crash to KubeVirt.
func (k *keeper) endVMI(ctx context.Context, key string) error {
	vmi, phase, err := k.vmi(key)
	if err != nil || vmi == nil || vmi.GetDeletionTimestamp() == nil || phase != "Scheduled" && phase != "Running" {
		return err
	}
	vmi = vmi.DeepCopy()
	status, _, err := unstructured.NestedMap(vmi.Object, "status")
	if err != nil {
		return err
	}
	setPhase(status, "Succeeded")
	vmi.Object["status"] = status
	return k.report(ctx, vmi)
}

// setPhase also notes the time: a VMI that ends without ever having been
// running counts as a failed start.
func setPhase(status map[string]any, phase string) {
	status["phase"] = phase
	timestamps, _ := status["phaseTransitionTimestamps"].([]any)
	status["phaseTransitionTimestamps"] = append(timestamps, map[string]any{"phase": phase, "phaseTransitionTimestamp": now()})
}

// report writes the VMI as virt-handler. It has no status subresource.
func (k *keeper) report(ctx context.Context, vmi *unstructured.Unstructured) error {
	_, err := k.handler.Namespace(vmi.GetNamespace()).Update(ctx, vmi, metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return errors.New("changed in the meantime")
	}
	return err
}
