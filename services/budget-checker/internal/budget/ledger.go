// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/pkg/model/v1alpha1"
)

const (
	// holdLifetime is how long an admitted write is expected to be seen. The
	// API server gives up on a request after a minute, webhooks included
	// (--request-timeout), so by then it is stored or never will be.
	holdLifetime = 90 * time.Second
	// maxHolds bounds a ledger. Beyond it nothing more is raised, and writes
	// that raise nothing leave a barrier in place of their hold.
	maxHolds = 512
)

// ledger is a GPUBudget as it was last read.
type ledger struct {
	budget *v1alpha1.GPUBudget
	// first says when this replica first saw each hold, and the barrier. It
	// is never compared with the clock of another.
	first map[types.UID]time.Time
}

// shelf holds the ledgers by namespace. It is not safe for concurrent use.
type shelf map[string]*ledger

// put takes in a ledger that was read or written, unless a newer state of it is
// known.
func (s shelf) put(budget *v1alpha1.GPUBudget, now time.Time) {
	known := s[budget.Namespace]
	if known != nil && known.budget.UID == budget.UID && parseVersion(known.budget.ResourceVersion) >= parseVersion(budget.ResourceVersion) {
		return
	}
	next := &ledger{budget: budget, first: make(map[types.UID]time.Time, len(budget.Status.Holds)+1)}
	note := func(uid types.UID) {
		next.first[uid] = now
		if known != nil {
			if first, ok := known.first[uid]; ok {
				next.first[uid] = first
			}
		}
	}
	for _, hold := range budget.Status.Holds {
		note(hold.UID)
	}
	if budget.Status.Barrier != "" {
		note(budget.Status.Barrier)
	}
	s[budget.Namespace] = next
}

// expired reports whether the hold or barrier has lived its time.
func (l *ledger) expired(uid types.UID, now time.Time) bool {
	return now.Sub(l.first[uid]) >= holdLifetime
}

func holdKey(hold v1alpha1.GPUBudgetHold) Key {
	return Key{Resource: Resource(hold.Resource), Namespace: hold.Namespace, Name: hold.Name}
}
