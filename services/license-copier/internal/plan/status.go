// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// The reasons of conditions; those of a fault are the reasons of events too.
const (
	ReasonResourceNameTaken  = "ResourceNameTaken"
	ReasonResourceNameUnique = "ResourceNameUnique"
	ReasonSecretNotFound     = "SecretNotFound"
	ReasonTokenMissing       = "TokenMissing"
	ReasonCopiesBlocked      = "CopiesBlocked"
	ReasonSecretFound        = "SecretFound"
	ReasonNoLicenseNeeded    = "NoLicenseNeeded"
)

// shownNamespaces bounds how many namespaces a message lists.
const shownNamespaces = 5

// Facts are what a class's status says of it, apart from its own spec.
type Facts struct {
	// Holder is the older class that has the resource name, or nothing.
	Holder string
	// Sources are the hoster's Secrets.
	Sources Sources
	// Blocked are the namespaces where a Secret that is not ours stands in
	// the copy's place.
	Blocked []string
	// Capacity is to be published. Without it, what the class bears is kept.
	Capacity *v1alpha1.Capacity
}

// Status returns the class's status as the facts have it, and whether that
// differs from what the class bears. Conditions that are not ours are kept.
func Status(class *v1alpha1.GPUClass, facts Facts, now time.Time) (v1alpha1.GPUClassStatus, bool) {
	status := *class.Status.DeepCopy()
	status.ObservedGeneration = class.Generation
	for _, condition := range []metav1.Condition{conflict(class, facts.Holder), licence(class, facts)} {
		condition.ObservedGeneration = class.Generation
		condition.LastTransitionTime = metav1.NewTime(now)
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	if facts.Capacity != nil {
		status.Capacity = facts.Capacity
	}
	return status, !equality.Semantic.DeepEqual(status, class.Status)
}

// Faults returns the conditions of the status that a hoster must act on and
// that are not the same in the status before.
func Faults(before, after v1alpha1.GPUClassStatus) []metav1.Condition {
	var faults []metav1.Condition
	for _, condition := range after.Conditions {
		fault := condition.Status == metav1.ConditionTrue || condition.Reason == ReasonCopiesBlocked
		old := meta.FindStatusCondition(before.Conditions, condition.Type)
		known := old != nil && old.Status == condition.Status && old.Reason == condition.Reason && old.Message == condition.Message
		if fault && !known {
			faults = append(faults, condition)
		}
	}
	return faults
}

func conflict(class *v1alpha1.GPUClass, holder string) metav1.Condition {
	if holder != "" {
		return metav1.Condition{
			Type: gpu.ConditionResourceNameConflict, Status: metav1.ConditionTrue, Reason: ReasonResourceNameTaken,
			Message: fmt.Sprintf("the older GPU class %q has the resource name %s; delete one of the two", holder, class.Spec.ResourceName),
		}
	}
	return metav1.Condition{
		Type: gpu.ConditionResourceNameConflict, Status: metav1.ConditionFalse, Reason: ReasonResourceNameUnique,
		Message: "no older GPU class has this resource name",
	}
}

func licence(class *v1alpha1.GPUClass, facts Facts) metav1.Condition {
	condition := func(status metav1.ConditionStatus, reason, format string, a ...any) metav1.Condition {
		return metav1.Condition{
			Type: gpu.ConditionLicenseSecretMissing, Status: status, Reason: reason, Message: fmt.Sprintf(format, a...),
		}
	}
	name := licenseOf(class)
	if name == "" {
		return condition(metav1.ConditionFalse, ReasonNoLicenseNeeded, "the class names no licence Secret")
	}
	full := facts.Sources.Namespace + "/" + name
	const kept = "copies that exist are kept, no new ones are made"
	switch source := facts.Sources.Secret(name); {
	case source == nil:
		return condition(metav1.ConditionTrue, ReasonSecretNotFound, "there is no Secret %s; %s", full, kept)
	case !source.HasToken():
		return condition(metav1.ConditionTrue, ReasonTokenMissing, "Secret %s has no value under %s; %s", full, gpu.LicenseTokenKey, kept)
	case len(facts.Blocked) > 0:
		return condition(metav1.ConditionFalse, ReasonCopiesBlocked, "a Secret %s that is no copy stands in the way in %s; the copy follows once it is gone",
			gpu.LicenseSecretName(class.Name), list(facts.Blocked))
	default:
		return condition(metav1.ConditionFalse, ReasonSecretFound, "Secret %s holds a token", full)
	}
}

// list names the first namespaces in the order of their names, and counts the
// rest.
func list(namespaces []string) string {
	namespaces = slices.Sorted(slices.Values(namespaces))
	shown := namespaces[:min(len(namespaces), shownNamespaces)]
	text := strings.Join(shown, ", ")
	if more := len(namespaces) - len(shown); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
