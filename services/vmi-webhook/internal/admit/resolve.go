// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// byName indexes the classes.
func byName(classes []v1alpha1.GPUClass) map[string]*v1alpha1.GPUClass {
	index := make(map[string]*v1alpha1.GPUClass, len(classes))
	for i := range classes {
		index[classes[i].Name] = &classes[i]
	}
	return index
}

// resolve returns every reason why a VMI in the namespace cannot have the
// classes that the entries name, in the order of the entries. It counts units
// without expanding them, so that a large count costs nothing.
func resolve(entries []model.Entry, classes map[string]*v1alpha1.GPUClass, namespace string, state State) []metav1.StatusCause {
	permitted := permittedByAll(state)
	units := model.Units(entries)
	entitled := model.Entitled(state.NamespaceLabels)
	conflicts := model.Conflicts(state.Classes)

	var faults []metav1.StatusCause
	fault := func(class string, cause metav1.CauseType, format string, args ...any) {
		faults = append(faults, metav1.StatusCause{
			Type:    cause,
			Field:   pathAnnotation,
			Message: fmt.Sprintf("GPU class %q: ", class) + fmt.Sprintf(format, args...),
		})
	}
	var vgpu []string
	for _, name := range model.ClassNames(entries) {
		class, ok := classes[name]
		if !ok {
			fault(name, CauseClassNotFound, "there is no GPUClass of this name")
			continue
		}
		if class.Spec.Mode == v1alpha1.ModeVGPU {
			vgpu = append(vgpu, name)
		}
		if class.DeletionTimestamp != nil {
			fault(name, CauseClassTerminating, "is being deleted")
		}
		if holder, conflict := conflicts[name]; conflict {
			fault(name, CauseResourceNameConflict, "its resource name %s belongs to the older class %q", class.Spec.ResourceName, holder)
		} else if condition := meta.FindStatusCondition(class.Status.Conditions, gpu.ConditionResourceNameConflict); condition != nil && condition.Status == metav1.ConditionTrue {
			fault(name, CauseResourceNameConflict, "its condition %s is True: %s", condition.Type, condition.Message)
		}
		if limit := model.EffectiveMaxCount(class); units[name] > limit {
			fault(name, CauseMaxCountExceeded, "%d units asked for, but one VM may take at most %d", units[name], limit)
		}
		if class.Spec.Mode == v1alpha1.ModeVGPU && !entitled {
			fault(name, CauseNotEntitled, "namespace %q is not entitled to vGPU, which its label %s=%s would show", namespace, gpu.LabelNamespaceVGPU, gpu.LabelValueTrue)
		}
		if !permitted(class.Spec.ResourceName) {
			fault(name, CauseNotPermitted, "KubeVirt's permittedHostDevices does not list its resource name %s", class.Spec.ResourceName)
		}
	}
	if len(vgpu) > 1 {
		for _, name := range vgpu {
			others := slices.DeleteFunc(slices.Clone(vgpu), func(other string) bool { return other == name })
			fault(name, CauseSeveralVGPUClasses, "a VM takes one vGPU class, and this one also names %s", enumerate(others))
		}
	}
	return faults
}

// permittedByAll returns whether every KubeVirt CR that has a table lists a
// resource name.
func permittedByAll(state State) func(resourceName string) bool {
	var tables []sets.Set[string]
	for _, table := range state.PermittedHostDevices {
		if names, restricted := model.PermittedResourceNames(table); restricted {
			tables = append(tables, names)
		}
	}
	return func(resourceName string) bool {
		return !slices.ContainsFunc(tables, func(table sets.Set[string]) bool { return !table.Has(resourceName) })
	}
}
