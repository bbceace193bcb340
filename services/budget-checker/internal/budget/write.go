// SPDX-License-Identifier: Apache-2.0

// Package budget decides which writes fit the budgets of a cloud's tenants, and
// enters them in the ledgers by which the service's replicas agree.
package budget

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/pkg/model"
)

// Resource is one of the resources of apps.cozystack.io that are counted.
type Resource string

// The resources that use units, and the one that declares budgets.
const (
	VMInstances Resource = "vminstances"
	// KubernetesNodes are the worker pools. Their kind is a plural already,
	// and Cozystack forms the resource's name from it once more.
	KubernetesNodes Resource = "kubernetesnodeses"
	Tenants         Resource = "tenants"
)

// Key names an object. UIDs play no part: a creation carries none.
type Key struct {
	Resource        Resource
	Namespace, Name string
}

func (k Key) String() string { return fmt.Sprintf("%s %s/%s", k.Resource, k.Namespace, k.Name) }

// Write is a creation or update that asks for admission.
type Write struct {
	UID types.UID // the admission request's
	Key Key
	// New is what the object will use, or declare, by quota key.
	New model.Amounts
	// Old is the same of the stored object as the API server shows it, which
	// may be stale; nil for a creation. OldVersion is its resource version.
	Old        model.Amounts
	OldVersion string
	DryRun     bool
}

// Verdict is how a write was decided.
type Verdict string

// The verdicts. All but Admitted are refusals.
const (
	Admitted Verdict = "Admitted"
	// Exceeded means that the budget does not hold what is asked for: 403.
	Exceeded Verdict = "BudgetExceeded"
	// Busy means that too many writes are in flight for one more raise: 429.
	Busy Verdict = "TooManyWrites"
	// Unavailable means that the state could not be known or changed in
	// time: 503.
	Unavailable Verdict = "Unavailable"
)

// Decision is the answer to a write. The zero value is no answer.
type Decision struct {
	Verdict Verdict
	// Faults hold one message per quota key of an Exceeded write.
	Faults []Fault
	// Message explains a Busy or Unavailable verdict.
	Message string
	// RetryAfter is when a Busy or Unavailable write may be tried again, or 0 if
	// that is not known, or too long for a client to wait in silence.
	RetryAfter time.Duration
	// Warnings are for an admitted write.
	Warnings []string
}

// Fault is one quota key that does not hold what a write asks for.
type Fault struct {
	QuotaKey, Message string
}
