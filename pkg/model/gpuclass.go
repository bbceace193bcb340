// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	virtv1 "kubevirt.io/api/core/v1"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// Most vGPU profiles allow one per VM; the limit of a profile that allows more
// is set as the class's maxCount. The most devices a class may hand a VM at
// all is the schema's maximum of maxCount.
const (
	defaultMaxCountVGPU        = 1
	defaultMaxCountPassthrough = 16
)

// EffectiveMaxCount returns how many units of the class one VM may take.
func EffectiveMaxCount(class *v1alpha1.GPUClass) int64 {
	switch {
	case class.Spec.MaxCount != nil:
		return int64(*class.Spec.MaxCount)
	case class.Spec.Mode == v1alpha1.ModePassthrough:
		return defaultMaxCountPassthrough
	default:
		return defaultMaxCountVGPU
	}
}

// Entitled reports whether a namespace with these labels may use vGPU classes
// and gets copies of their licences.
func Entitled(namespaceLabels map[string]string) bool {
	return namespaceLabels[gpu.LabelNamespaceVGPU] == gpu.LabelValueTrue
}

// PermittedResourceNames returns the resource names that a KubeVirt CR's
// permittedHostDevices lets VMs use as GPUs. Without a table (nil) restricted
// is false and every name is permitted; a table that lists nothing permits
// nothing.
//
// KubeVirt makes no difference between the PCI, mediated and USB lists when it
// renders a launcher pod, so neither does this.
func PermittedResourceNames(table *virtv1.PermittedHostDevices) (names sets.Set[string], restricted bool) {
	if table == nil {
		return nil, false
	}
	names = sets.New[string]()
	for _, d := range table.PciHostDevices {
		names.Insert(d.ResourceName)
	}
	for _, d := range table.MediatedDevices {
		names.Insert(d.ResourceName)
	}
	for _, d := range table.USB {
		names.Insert(d.ResourceName)
	}
	return names, true
}

// Conflicts returns, for each class whose resource name an older class has,
// the name of the oldest class that has it. Older is by creation time, then by
// name. A class that is being deleted keeps its resource name until it is gone.
func Conflicts(classes []v1alpha1.GPUClass) map[string]string {
	byAge := make([]*v1alpha1.GPUClass, len(classes))
	for i := range classes {
		byAge[i] = &classes[i]
	}
	slices.SortFunc(byAge, func(a, b *v1alpha1.GPUClass) int {
		return cmp.Or(
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name),
		)
	})
	conflicts := map[string]string{}
	holders := make(map[string]string, len(byAge))
	for _, class := range byAge {
		if holder, taken := holders[class.Spec.ResourceName]; taken {
			conflicts[class.Name] = holder
		} else {
			holders[class.Spec.ResourceName] = class.Name
		}
	}
	return conflicts
}
