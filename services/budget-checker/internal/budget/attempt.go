// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// parallelCalls bounds the calls to the API server at once.
const parallelCalls = 16

// attempt is one try to decide a number of writes and to write their ledgers.
type attempt struct {
	book  *Book
	cases []*decided
	// next are the ledgers to write, by namespace.
	next map[string]*v1alpha1.GPUBudget

	mu sync.Mutex
	// current are the ledgers that are known to be as they were decided on,
	// since they were written or read again.
	current map[string]bool
	// failed is set when a call failed for another reason than a conflict.
	failed bool
}

// decided is a request with what was decided about it.
type decided struct {
	*request
	outcome
	err error
}

// judge decides all requests on one state of the view and the ledgers.
func (b *Book) judge(requests []*request) *attempt {
	t := &attempt{book: b, next: map[string]*v1alpha1.GPUBudget{}, current: map[string]bool{}}
	if len(requests) == 0 {
		return t
	}
	b.view.mu.RLock()
	defer b.view.mu.RUnlock()
	p := b.newPass()
	for _, r := range requests {
		c := &decided{request: r}
		if r.ctx.Err() == nil {
			c.outcome, c.err = p.decide(r.Write, r.absent)
		}
		if c.err != nil || c.decision.Verdict != Admitted {
			// What an earlier try entered must not last.
			for namespace := range r.entered {
				if d, err := p.open(namespace); d != nil && err == nil {
					d.drop(r.UID)
				}
			}
		}
		t.cases = append(t.cases, c)
	}
	for namespace, d := range p.drafts {
		if d.dirty {
			t.next[namespace], _ = d.next()
		}
	}
	return t
}

// newPass returns a pass over the view, which the caller holds, and the ledgers
// as they are known.
func (b *Book) newPass() *pass {
	b.mu.Lock()
	defer b.mu.Unlock()
	return newPass(b.view, maps.Clone(b.shelf), b.now(), b.newUID)
}

// run makes the ledgers that are missing, writes those that were decided on,
// and makes sure that the others are still as they were.
func (t *attempt) run(ctx context.Context) {
	missing := map[string]bool{}
	for _, c := range t.cases {
		if e, ok := errors.AsType[errMissing](c.err); ok {
			missing[e.namespace] = true
		}
	}
	t.each(missing, func(namespace string) { t.ensure(ctx, namespace) })
	t.write(ctx)
	unsure := map[string]bool{}
	for _, c := range t.cases {
		for namespace := range c.drafts {
			if t.next[namespace] == nil {
				unsure[namespace] = true
			}
		}
	}
	t.each(unsure, func(namespace string) { t.confirm(ctx, namespace) })
	for _, c := range t.cases {
		c.note(t)
	}
}

// write writes the ledgers, those of tenants above before those below. Below
// one that fails nothing is written: what needs both is decided again.
func (t *attempt) write(ctx context.Context) {
	levels := map[int]map[string]bool{}
	deepest := 0
	for namespace := range t.next {
		depth := strings.Count(namespace, "-")
		if namespace == model.RootTenantNamespace {
			depth = 0
		}
		if levels[depth] == nil {
			levels[depth] = map[string]bool{}
		}
		levels[depth][namespace] = true
		deepest = max(deepest, depth)
	}
	for depth := range deepest + 1 {
		level := levels[depth]
		maps.DeleteFunc(level, func(namespace string, _ bool) bool {
			for above := range t.next {
				if !t.current[above] && model.IsTenantBelow(namespace, above) {
					return true
				}
			}
			return false
		})
		t.each(level, func(namespace string) { t.update(ctx, namespace) })
	}
}

// each calls do for each namespace, many at once.
func (t *attempt) each(namespaces map[string]bool, do func(namespace string)) {
	slots := make(chan struct{}, parallelCalls)
	var wg sync.WaitGroup
	for namespace := range namespaces {
		slots <- struct{}{}
		wg.Go(func() {
			do(namespace)
			<-slots
		})
	}
	wg.Wait()
}

func (t *attempt) ensure(ctx context.Context, namespace string) {
	budget, err := t.book.ledgers.Ensure(ctx, namespace)
	switch {
	case err == nil:
		t.book.Put(budget)
	case apierrors.IsNotFound(err):
		for _, c := range t.cases {
			if e, ok := errors.AsType[errMissing](c.err); ok && e.namespace == namespace {
				c.absent[namespace] = true
			}
		}
	default:
		t.fail("make", namespace, err)
	}
}

// update writes a ledger by compare-and-swap. If it has changed, its new state
// is read.
func (t *attempt) update(ctx context.Context, namespace string) {
	budget, err := t.book.ledgers.Update(ctx, t.next[namespace])
	if err == nil {
		ledgerWrites.WithLabelValues("success").Inc()
		t.book.Put(budget)
		t.mark(namespace)
		return
	}
	if apierrors.IsConflict(err) {
		ledgerWrites.WithLabelValues("conflict").Inc()
	} else {
		ledgerWrites.WithLabelValues("error").Inc()
		t.fail("write", namespace, err)
	}
	t.reload(ctx, namespace)
}

// confirm reads the ledger, and finds out whether it is the one that was
// decided on.
func (t *attempt) confirm(ctx context.Context, namespace string) {
	budget := t.reload(ctx, namespace)
	if budget == nil {
		return
	}
	for _, c := range t.cases {
		if d := c.drafts[namespace]; d != nil && d.base.budget.UID == budget.UID && d.base.budget.ResourceVersion == budget.ResourceVersion {
			t.mark(namespace)
		}
	}
}

// reload reads the ledger anew. It returns nil if there is none, or another one
// in its place: whether that lacks what was in flight is for Ensure to find out.
func (t *attempt) reload(ctx context.Context, namespace string) *v1alpha1.GPUBudget {
	budget, err := t.book.ledgers.Get(ctx, namespace)
	switch {
	case err == nil && t.book.knows(budget):
		t.book.Put(budget)
		return budget
	case err == nil || apierrors.IsNotFound(err):
		t.book.forget(namespace)
	default:
		t.fail("read", namespace, err)
	}
	return nil
}

func (t *attempt) mark(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current[namespace] = true
}

func (t *attempt) fail(verb, namespace string, err error) {
	t.book.log.Warn("cannot "+verb+" a ledger", zap.String("namespace", namespace), zap.Error(err))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = true
}

// note notes in which ledgers the write is entered now.
func (c *decided) note(t *attempt) {
	if c.err == nil && c.decision.Verdict == Admitted && !c.DryRun {
		for d := range c.enters {
			if t.current[d.namespace] {
				c.entered[d.namespace] = true
			}
		}
		return
	}
	maps.DeleteFunc(c.entered, func(namespace string, _ bool) bool {
		return t.next[namespace] != nil && t.current[namespace]
	})
}

// settled reports whether what was decided holds: every ledger that it rests on
// was written, or is still as it was.
func (t *attempt) settled(c *decided) bool {
	for namespace := range c.drafts {
		if !t.current[namespace] {
			return false
		}
	}
	return true
}
