// SPDX-License-Identifier: Apache-2.0

package review

import (
	"fmt"
	"math"
	"net/http"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cozystack.io/gpu/services/budget-checker/internal/budget"
)

// The causes of a refusal, as they stand in the status's details. They are part
// of the service's interface: machines match on them, and they are the values
// of a metric's label. The verdicts of package budget are causes too.
const (
	CauseWrongType        metav1.CauseType = "FieldTypeInvalid"
	CauseFieldCase        metav1.CauseType = "FieldCaseInvalid"
	CauseDuplicateField   metav1.CauseType = "DuplicateField"
	CauseEntriesMalformed metav1.CauseType = "GPUEntriesMalformed"
	CauseReplicasInvalid  metav1.CauseType = "ReplicasInvalid"
	CauseQuotaInvalid     metav1.CauseType = "QuotaInvalid"
)

// An answer goes into statuses, events and logs and is repeated with each try, so
// it must not grow with what was sent.
const (
	shownFaults  = 32
	shownMessage = 1024
	shownPath    = 128 // holds the path of every valid quota key
	shownName    = 64
	shownValue   = 64
)

// shorten cuts the text to a number of bytes, at a character's end.
func shorten(text string, length int) string {
	const ellipsis = "…"
	if len(text) <= length {
		return text
	}
	return strings.ToValidUTF8(text[:length-len(ellipsis)], "") + ellipsis
}

// wrongObject is the cause of an object that is none.
func wrongObject(err error) metav1.StatusCause {
	return metav1.StatusCause{Type: CauseWrongType, Message: fmt.Sprintf("the object cannot be read: %v", err)}
}

func causes(faults []fault) []metav1.StatusCause {
	list := make([]metav1.StatusCause, len(faults))
	for i, f := range faults {
		list[i] = metav1.StatusCause{Type: f.cause, Field: f.path, Message: f.message}
	}
	return list
}

// malformed answers with 400 to what cannot be read.
func malformed(request *admissionv1.AdmissionRequest, faults ...metav1.StatusCause) *admissionv1.AdmissionResponse {
	return respond(request, http.StatusBadRequest, metav1.StatusReasonBadRequest, faults)
}

// refused answers with the decision that refuses a write.
func refused(request *admissionv1.AdmissionRequest, resource budget.Resource, decision budget.Decision) *admissionv1.AdmissionResponse {
	switch decision.Verdict {
	case budget.Exceeded:
		faults := make([]metav1.StatusCause, len(decision.Faults))
		for i, fault := range decision.Faults {
			field := pathGPUs
			if resource == budget.Tenants {
				field = pathQuotas + "[" + fault.QuotaKey + "]"
			}
			faults[i] = metav1.StatusCause{Type: metav1.CauseType(decision.Verdict), Field: field, Message: fault.Message}
		}
		return respond(request, http.StatusForbidden, metav1.StatusReasonForbidden, faults)
	case budget.Busy:
		return later(request, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, decision)
	case budget.Unavailable:
		return later(request, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, decision)
	default:
		return respond(request, http.StatusInternalServerError, metav1.StatusReasonInternalError, []metav1.StatusCause{{
			Type: metav1.CauseTypeInternal, Message: fmt.Sprintf("the GPU budgets gave no decision (%q)", decision.Verdict),
		}})
	}
}

// later answers that the write may be tried again, and when, if the decision
// says so. Clients of the API server then do it by themselves, up to ten times,
// and do not show the answer before.
func later(request *admissionv1.AdmissionRequest, code int32, reason metav1.StatusReason, decision budget.Decision) *admissionv1.AdmissionResponse {
	message := shorten(decision.Message, shownMessage/2)
	seconds := int32(math.Ceil(decision.RetryAfter.Seconds()))
	if seconds > 0 {
		message += fmt.Sprintf("; try again in %d s", seconds)
	}
	response := respond(request, code, reason, []metav1.StatusCause{{Type: metav1.CauseType(decision.Verdict), Message: message}})
	response.Result.Details.RetryAfterSeconds = seconds
	return response
}

func respond(request *admissionv1.AdmissionRequest, code int32, reason metav1.StatusReason, faults []metav1.StatusCause) *admissionv1.AdmissionResponse {
	more := len(faults) - shownFaults
	faults = faults[:min(len(faults), shownFaults)]
	messages := make([]string, len(faults))
	for i := range faults {
		faults[i].Field = shorten(faults[i].Field, shownPath)
		faults[i].Message = shorten(faults[i].Message, shownMessage)
		messages[i] = faults[i].Message
	}
	if more > 0 {
		messages = append(messages, fmt.Sprintf("and %d faults more", more))
	}
	return &admissionv1.AdmissionResponse{Result: &metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    code,
		Reason:  reason,
		Message: strings.Join(messages, "; "),
		Details: &metav1.StatusDetails{Group: group, Kind: request.Resource.Resource, Causes: faults},
	}}
}
