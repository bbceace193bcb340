// SPDX-License-Identifier: Apache-2.0

package review

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	admissionv1 "k8s.io/api/admission/v1"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// The API server cuts what exceeds its own limits for warnings.
const (
	maxWarnings     = 8
	maxWarningBytes = 256
)

// admitted admits the write with the first of the warnings.
func admitted(warnings ...[]string) *admissionv1.AdmissionResponse {
	all := slices.Concat(warnings...)
	if more := len(all) - maxWarnings; more > 0 {
		all = append(all[:maxWarnings-1], fmt.Sprintf("and %d warnings more", more+1))
	}
	for i := range all {
		all[i] = shorten(strings.Map(printable, all[i]), maxWarningBytes)
	}
	return &admissionv1.AdmissionResponse{Allowed: true, Warnings: all}
}

// printable returns a space for what a warning must not hold: it travels in the
// header of a response, and the API server drops it if it cannot.
func printable(r rune) rune {
	if unicode.IsControl(r) {
		return ' '
	}
	return r
}

// toleratedWarnings tells of faults that were there before.
func toleratedWarnings(faults []fault) []string {
	const effect = "; it is as it was, so it is let pass, but counts as 0"
	var warnings []string
	for _, f := range faults {
		warnings = append(warnings, shorten(f.message, maxWarningBytes-len(effect))+effect)
	}
	return warnings
}

// classWarnings tells why VMs that the object stands for will not start.
func (a Admitter) classWarnings(namespace string, r reading) []string {
	if a.Classes == nil || !a.Classes.Known() {
		return nil
	}
	var warnings, vgpu []string
	warn := func(format string, args ...any) {
		warnings = append(warnings, pathGPUs+": "+fmt.Sprintf(format, args...)+", so the VM will be refused when it starts")
	}
	for _, quotaKey := range slices.Sorted(maps.Keys(r.perVM)) {
		name, isClass := strings.CutPrefix(quotaKey, model.ClassQuotaKey(""))
		if !isClass {
			continue
		}
		class, known := a.Classes.Class(name)
		if !known {
			warn("there is no GPUClass %q", name)
			continue
		}
		if units, limit := r.perVM[quotaKey], model.EffectiveMaxCount(class); units > limit {
			warn("%d units of class %q are asked for, but one VM may take at most %d", units, name, limit)
		}
		if class.Spec.Mode != v1alpha1.ModeVGPU {
			continue
		}
		vgpu = append(vgpu, name)
		if !a.Classes.Entitled(namespace) {
			warn("namespace %s lacks label %s=%s for vGPU class %q", namespace, gpu.LabelNamespaceVGPU, gpu.LabelValueTrue, name)
		}
	}
	if len(vgpu) > 1 {
		warn("a VM takes one vGPU class, but %d are named (%s and %s)", len(vgpu), vgpu[0], vgpu[1])
	}
	return warnings
}
