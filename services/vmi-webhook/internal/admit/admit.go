// SPDX-License-Identifier: Apache-2.0

// Package admit decides which GPU devices a VirtualMachineInstance gets for
// the classes it names. It sees data only; what it needs of the cluster comes
// through Reader.
package admit

import (
	"context"
	"encoding/json"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	virtv1 "kubevirt.io/api/core/v1"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/pkg/model/v1alpha1"
)

const (
	group    = "kubevirt.io"
	resource = "virtualmachineinstances"

	pathAnnotation  = "metadata.annotations[" + gpu.AnnotationGPUs + "]"
	pathVolumes     = "spec.volumes"
	pathGPUs        = "spec.domain.devices.gpus"
	pathHostDevices = "spec.domain.devices.hostDevices"
	pathDisks       = "spec.domain.devices.disks"
	pathResources   = "spec.domain.resources"
)

// State is what a decision depends on besides the VMI.
type State struct {
	// Classes are all GPUClasses: a conflict shows only among all of them.
	Classes []v1alpha1.GPUClass
	// PermittedHostDevices holds the table of each KubeVirt CR that has one.
	PermittedHostDevices []*virtv1.PermittedHostDevices
	// NamespaceLabels are the labels of the VMI's namespace.
	NamespaceLabels map[string]string
}

// Reader reads the State for a VMI in the namespace, as the API server has it
// now. An error says which read failed.
type Reader interface {
	Read(ctx context.Context, namespace string) (State, error)
}

// Admitter answers admission requests for VirtualMachineInstances.
type Admitter struct {
	Reader Reader
}

// Admit answers the creation of a VMI with the patch that gives it its devices,
// or with a refusal that holds a cause per fault: 403 for what the cluster does
// not allow, 400 for an annotation that cannot be read, 500 for a failed read.
func (a Admitter) Admit(ctx context.Context, request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	if request.Resource.Group != group || request.Resource.Resource != resource || request.SubResource != "" || request.Operation != admissionv1.Create {
		return malformed(metav1.StatusCause{
			Type: metav1.CauseTypeFieldValueNotSupported,
			Message: fmt.Sprintf("asked about %s of %s.%s, but judges only CREATE of %s.%s: correct the rules of the webhook configuration",
				request.Operation, request.Resource.Resource, request.Resource.Group, resource, group),
		})
	}
	v, faults := decode(request.Object.Raw)
	if len(faults) > 0 {
		return refuse(faults...)
	}
	if _, labelled := v.Metadata.Labels[gpu.LabelGPUReference]; !labelled {
		return &admissionv1.AdmissionResponse{Allowed: true}
	}
	annotation, ok := v.Metadata.Annotations[gpu.AnnotationGPUs]
	if !ok {
		return refuse(metav1.StatusCause{
			Type:  CauseAnnotationMissing,
			Field: pathAnnotation,
			Message: fmt.Sprintf("label %s says that this VMI takes GPU classes, but annotation %s does not name them: add the annotation or remove the label",
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
	state, err := a.Reader.Read(ctx, request.Namespace)
	if err != nil {
		return failed(err)
	}
	classes := byName(state.Classes)
	license := licenseFor(entries, classes, v.architecture())
	faults = resolve(entries, classes, request.Namespace, state)
	faults = append(faults, ownDevices(v, entries, classes)...)
	faults = append(faults, reservedNames(v, license)...)
	if len(faults) > 0 {
		return refuse(faults...)
	}
	return patched(patch(v, expand(entries, classes), license))
}

// patched admits the VMI with the operations, without a patch if there are none.
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
