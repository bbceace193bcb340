// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// mostRefreshed bounds the ledgers of one refresh, since writes wait for it.
const mostRefreshed = 64

// refresh brings ledgers up to date with what was seen, and makes those that
// tenants with a budget lack.
func (b *Book) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	t := &attempt{book: b, current: map[string]bool{}}
	var missing map[string]bool
	t.next, missing = b.outdated()
	t.each(missing, func(namespace string) {
		budget, err := b.ledgers.Ensure(ctx, namespace)
		switch {
		case err == nil:
			b.Put(budget)
		case !apierrors.IsNotFound(err): // the namespace may be yet to come
			t.fail("make", namespace, err)
		}
	})
	t.write(ctx)
}

// outdated returns the next state of ledgers that no longer say what this
// replica has seen, and the namespaces that lack one.
func (b *Book) outdated() (next map[string]*v1alpha1.GPUBudget, missing map[string]bool) {
	next, missing = map[string]*v1alpha1.GPUBudget{}, map[string]bool{}
	b.view.mu.RLock()
	defer b.view.mu.RUnlock()
	p := b.newPass()
	for namespace := range p.left {
		o := newOutcome()
		err := p.handOver(namespace, &o)
		if e, ok := errors.AsType[errMissing](err); ok {
			missing[e.namespace] = true
		}
		if err != nil {
			continue
		}
		for above, d := range o.drafts {
			next[above], _ = d.next()
		}
	}
	for namespace := range p.ledgers {
		if p.left[namespace] {
			continue // or handed over by now
		}
		if len(next) >= mostRefreshed {
			return next, missing
		}
		d, err := p.open(namespace)
		if err != nil {
			continue // another replica has seen more
		}
		if budget, changed := d.next(); changed {
			next[namespace] = budget
		}
	}
	for _, namespace := range b.view.tree.Declaring() {
		if p.ledgers[namespace] == nil && len(missing) < mostRefreshed {
			missing[namespace] = true
		}
	}
	return next, missing
}
