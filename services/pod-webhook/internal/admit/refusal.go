// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"fmt"
	"net/http"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The causes of a refusal, as they stand in the status's details. They are part
// of the service's interface: machines match on them, and they are the values
// of a metric's label.
const (
	CauseAnnotationMissing   metav1.CauseType = "AnnotationMissing"
	CauseAnnotationMalformed metav1.CauseType = "AnnotationMalformed"
	CauseClassNotFound       metav1.CauseType = "ClassNotFound"
)

// refuse answers with 403 and a cause per fault.
func refuse(faults ...metav1.StatusCause) *admissionv1.AdmissionResponse {
	return respond(http.StatusForbidden, metav1.StatusReasonForbidden, faults)
}

// malformed answers with 400 to input that cannot be read.
func malformed(fault metav1.StatusCause) *admissionv1.AdmissionResponse {
	return respond(http.StatusBadRequest, metav1.StatusReasonBadRequest, []metav1.StatusCause{fault})
}

// failed answers with 500: the pod could not be judged.
func failed(err error) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Result: &metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Reason:  metav1.StatusReasonInternalError,
		Message: fmt.Sprintf("cannot tell the tolerations of this pod: %v", err),
	}}
}

// shownFaults bounds an answer, which goes into statuses, events and logs and is
// repeated with each try.
const shownFaults = 32

func respond(code int32, reason metav1.StatusReason, faults []metav1.StatusCause) *admissionv1.AdmissionResponse {
	more := len(faults) - shownFaults
	faults = faults[:min(len(faults), shownFaults)]
	messages := make([]string, len(faults))
	for i, fault := range faults {
		messages[i] = fault.Message
	}
	if more > 0 {
		messages = append(messages, fmt.Sprintf("and %d faults more", more))
	}
	return &admissionv1.AdmissionResponse{Result: &metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    code,
		Reason:  reason,
		Message: strings.Join(messages, "; "),
		Details: &metav1.StatusDetails{Kind: resource, Causes: faults},
	}}
}
