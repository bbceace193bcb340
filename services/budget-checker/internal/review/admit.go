// SPDX-License-Identifier: Apache-2.0

// Package review makes of an admission request the write that the budgets are
// asked about, and of their decision the answer.
package review

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/pkg/model/v1alpha1"
	"cozystack.io/gpu/services/budget-checker/internal/budget"
)

const group = "apps.cozystack.io"

// resources are those that are judged, by kind.
var resources = map[string]budget.Resource{
	"VMInstance":      budget.VMInstances,
	"KubernetesNodes": budget.KubernetesNodes,
	"Tenant":          budget.Tenants,
}

// Checker decides writes. It answers before ctx ends.
type Checker interface {
	Decide(ctx context.Context, w budget.Write) budget.Decision
}

// Classes tells what is known of the cloud's classes. It only serves warnings,
// so it may be a little behind.
type Classes interface {
	// Known reports whether anything can be told yet.
	Known() bool
	// Class returns the class of that name, which must not be changed.
	Class(name string) (*v1alpha1.GPUClass, bool)
	// Entitled reports whether the namespace may use vGPU classes.
	Entitled(namespace string) bool
}

// Admitter answers admission requests for the resources of apps.cozystack.io
// that use units or declare budgets.
type Admitter struct {
	Checker Checker
	// Classes may be nil; then nothing is said about classes.
	Classes Classes
}

// Admit answers a creation or update. A refusal holds a cause per fault: 400 for
// what cannot be read, 403 for what the budgets do not hold, 429 and 503, with
// the time to wait if it is short, for what could not be decided, 500 for no decision.
//
// A fault that the stored object has just like that does not stand in the way
// of its update: what it concerns counts as nothing, and a warning says so.
func (a Admitter) Admit(ctx context.Context, request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	resource, known := resources[request.Kind.Kind]
	update := request.Operation == admissionv1.Update
	if !known || request.Kind.Group != group || request.SubResource != "" || request.Operation != admissionv1.Create && !update {
		return misdirected(request)
	}
	object, err := decode(request.Object.Raw)
	if err != nil {
		return malformed(request, wrongObject(err))
	}
	spec := read(resource, object.Spec)
	w := budget.Write{
		UID:    request.UID,
		Key:    budget.Key{Resource: resource, Namespace: request.Namespace, Name: object.name(request)},
		New:    spec.amounts,
		DryRun: request.DryRun != nil && *request.DryRun,
	}
	var stored reading
	going := false
	if update {
		old, err := decode(request.OldObject.Raw)
		if err == nil {
			stored, w.OldVersion = read(resource, old.Spec), old.Metadata.ResourceVersion
			going = old.Metadata.DeletionTimestamp != nil
		}
		if w.Old = stored.amounts; w.Old == nil {
			w.Old = model.Amounts{}
		}
	}
	faults, tolerated := sift(spec.faults, stored.faults)
	if len(faults) > 0 {
		return malformed(request, causes(faults)...)
	}
	warnings := toleratedWarnings(tolerated)
	if without, warning := passes(w, going); without {
		return admitted(append(warnings, warning...), a.classWarnings(request.Namespace, spec))
	}
	decision := a.Checker.Decide(ctx, w)
	if decision.Verdict != budget.Admitted {
		return refused(request, resource, decision)
	}
	return admitted(append(warnings, decision.Warnings...), a.classWarnings(request.Namespace, spec))
}

// passes reports whether the write needs no decision, and what to say of that.
// Whether the object is going is what the API server shows: of itself a write
// can say anything.
func passes(w budget.Write, going bool) (without bool, warnings []string) {
	tenant := w.Key.Resource == budget.Tenants
	if tenant {
		if _, ok := model.TenantNamespace(w.Key.Namespace, w.Key.Name); !ok {
			if len(w.New) > 0 {
				warnings = []string{fmt.Sprintf("%s: no namespace belongs to a Tenant %q in namespace %s, so its GPU quotas have no effect",
					pathQuotas, shorten(w.Key.Name, shownName), w.Key.Namespace)}
			}
			return true, warnings
		}
	}
	// A budget that goes may put what it held into the pool above.
	if going && (maps.Equal(w.New, w.Old) || !tenant && !raises(w)) {
		return true, nil
	}
	return len(w.New) == 0 && (!tenant || len(w.Old) == 0), nil
}

func raises(w budget.Write) bool {
	for quotaKey, amount := range w.New {
		if amount > w.Old[quotaKey] {
			return true
		}
	}
	return false
}

func misdirected(request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	kinds := slices.Sorted(maps.Keys(resources))
	what := request.Resource.Resource
	if request.SubResource != "" {
		what += "/" + request.SubResource
	}
	return malformed(request, metav1.StatusCause{
		Type: metav1.CauseTypeFieldValueNotSupported,
		Message: fmt.Sprintf("asked about %s of %s.%s (%s), but judges only CREATE and UPDATE of %s of %s: correct the rules of the webhook configuration",
			request.Operation, what, request.Resource.Group, request.Kind.Kind, strings.Join(kinds, ", "), group),
	})
}
