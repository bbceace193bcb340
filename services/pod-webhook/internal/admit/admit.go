// SPDX-License-Identifier: Apache-2.0

// Package admit decides which tolerations the launcher pod of a VM gets for
// the GPU classes the VM names. It sees data only; the classes come through
// Reader.
package admit

import (
	"context"
	"encoding/json"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/pkg/model/v1alpha1"
)

const (
	resource = "pods"

	// KubeVirt's mark on the pods that run a VM: those of a migration's target
	// and the temporary ones that bind a VM's volumes have it too.
	labelKubeVirt      = "kubevirt.io"
	labelValueLauncher = "virt-launcher"

	pathAnnotation = "metadata.annotations[" + gpu.AnnotationGPUs + "]"
)

// Reader reads all GPUClasses, as the API server has them now.
type Reader interface {
	Classes(ctx context.Context) ([]v1alpha1.GPUClass, error)
}

// Admitter answers admission requests for pods.
type Admitter struct {
	Reader Reader
}

// Admit answers the creation of a launcher pod with the patch that adds its
// tolerations, or with a refusal that holds a cause per fault: 403 for a class
// that does not exist, 400 for an annotation that cannot be read, 500 for a
// failed read. Other pods are admitted as they are.
func (a Admitter) Admit(ctx context.Context, request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	if request.Resource.Group != "" || request.Resource.Resource != resource || request.SubResource != "" || request.Operation != admissionv1.Create {
		return malformed(metav1.StatusCause{
			Type: metav1.CauseTypeFieldValueNotSupported,
			Message: fmt.Sprintf("asked about %s of %s.%s, but judges only CREATE of %s: correct the rules of the webhook configuration",
				request.Operation, request.Resource.Resource, request.Resource.Group, resource),
		})
	}
	p, err := decode(request.Object.Raw)
	if err != nil {
		return malformed(metav1.StatusCause{
			Type:    metav1.CauseTypeFieldValueInvalid,
			Message: fmt.Sprintf("the pod cannot be read: %v", err),
		})
	}
	if _, labelled := p.Metadata.Labels[gpu.LabelGPUReference]; !labelled || p.Metadata.Labels[labelKubeVirt] != labelValueLauncher {
		return &admissionv1.AdmissionResponse{Allowed: true}
	}
	annotation, ok := p.Metadata.Annotations[gpu.AnnotationGPUs]
	if !ok {
		return refuse(metav1.StatusCause{
			Type:  CauseAnnotationMissing,
			Field: pathAnnotation,
			Message: fmt.Sprintf("label %s says that this VM takes GPU classes, but annotation %s does not name them: restore the annotation on the VM and on its running instance, or remove the label",
				gpu.LabelGPUReference, gpu.AnnotationGPUs),
		})
	}
	entries, err := model.ParseEntries(annotation)
	if err != nil {
		return malformed(metav1.StatusCause{
			Type:    CauseAnnotationMalformed,
			Field:   pathAnnotation,
			Message: fmt.Sprintf("annotation %s cannot be read: %v", gpu.AnnotationGPUs, err),
		})
	}
	if len(entries) == 0 {
		return &admissionv1.AdmissionResponse{Allowed: true}
	}
	classes, err := a.Reader.Classes(ctx)
	if err != nil {
		return failed(err)
	}
	named, faults := resolve(entries, classes)
	if len(faults) > 0 {
		return refuse(faults...)
	}
	return patched(patch(p, missing(p, named)))
}

// resolve returns each class that the entries name once, in their order, or a
// fault for each that does not exist. A class that is being deleted still
// counts, since the VMs that run on it may have to move.
func resolve(entries []model.Entry, classes []v1alpha1.GPUClass) (named []*v1alpha1.GPUClass, faults []metav1.StatusCause) {
	index := make(map[string]*v1alpha1.GPUClass, len(classes))
	for i := range classes {
		index[classes[i].Name] = &classes[i]
	}
	for _, name := range model.ClassNames(entries) {
		class, ok := index[name]
		if !ok {
			faults = append(faults, metav1.StatusCause{
				Type:    CauseClassNotFound,
				Field:   pathAnnotation,
				Message: fmt.Sprintf("GPU class %q: there is no GPUClass of this name", name),
			})
			continue
		}
		named = append(named, class)
	}
	return named, faults
}

// patched admits the pod with the operations, without a patch if there are none.
func patched(ops []operation) *admissionv1.AdmissionResponse {
	response := &admissionv1.AdmissionResponse{Allowed: true}
	if len(ops) == 0 {
		return response
	}
	raw, err := json.Marshal(ops)
	if err != nil {
		return failed(fmt.Errorf("encode the patch: %w", err))
	}
	jsonPatch := admissionv1.PatchTypeJSONPatch
	response.Patch, response.PatchType = raw, &jsonPatch
	return response
}
