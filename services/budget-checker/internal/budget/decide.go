// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// errStale means that a ledger reflects more than this replica has seen.
var errStale = errors.New("this replica has not yet seen all that another one counted")

// errMissing means that the namespace's ledger has to be read or made.
type errMissing struct{ namespace string }

func (e errMissing) Error() string { return "no ledger in namespace " + e.namespace }

// errNoNamespace means that a budget is declared for a namespace that does not
// exist or is being deleted, so that nobody can enter what it holds.
type errNoNamespace struct{ namespace string }

func (e errNoNamespace) Error() string {
	return fmt.Sprintf("the budget of namespace %s cannot be checked, since the namespace does not exist or is being deleted", e.namespace)
}

// pass decides any number of writes, one after the other, on one state of the
// view and of the ledgers. What it decides holds once its drafts are written.
type pass struct {
	view    *View // held still for as long as the pass decides
	ledgers shelf
	now     time.Time
	newUID  func() types.UID

	drafts map[string]*draft
	// absent are namespaces that were found not to exist for the write that
	// is being decided.
	absent map[string]bool
	// inFlight are the budgets that tenants may come to declare, by namespace.
	inFlight map[string][]model.Amounts
	// left are the ledgers that still show a pool for a key that their tenant
	// no longer declares.
	left map[string]bool
}

func newPass(view *View, ledgers shelf, now time.Time, newUID func() types.UID) *pass {
	p := &pass{
		view: view, ledgers: ledgers, now: now, newUID: newUID,
		drafts: map[string]*draft{}, inFlight: map[string][]model.Amounts{}, left: map[string]bool{},
	}
	for _, ledger := range ledgers {
		for _, hold := range ledger.budget.Status.Holds {
			if !ledger.expired(hold.UID, now) {
				p.fly(hold)
			}
		}
	}
	for namespace, ledger := range ledgers {
		for _, pool := range ledger.budget.Status.Pools {
			if !p.declares(namespace, pool.Key) {
				p.left[namespace] = true
			}
		}
	}
	return p
}

// fly notes a tenant's write in flight.
func (p *pass) fly(hold v1alpha1.GPUBudgetHold) {
	if hold.Resource != string(Tenants) {
		return
	}
	if namespace, ok := model.TenantNamespace(hold.Namespace, hold.Name); ok {
		p.inFlight[namespace] = append(p.inFlight[namespace], hold.Amounts)
	}
}

func (p *pass) declarations(namespace string) []model.Amounts { return p.inFlight[namespace] }

// declares reports whether the namespace's tenant declares the key, or may come
// to.
func (p *pass) declares(namespace, quotaKey string) bool {
	_, ok := p.view.tree.Declared(namespace)[quotaKey]
	return ok || slices.ContainsFunc(p.inFlight[namespace], func(budget model.Amounts) bool {
		_, ok := budget[quotaKey]
		return ok
	})
}

// open returns the draft of the namespace's ledger, or nil if the namespace does
// not exist: nothing can be written in it either.
func (p *pass) open(namespace string) (*draft, error) {
	if d := p.drafts[namespace]; d != nil {
		return d, nil
	}
	if p.absent[namespace] {
		return nil, nil
	}
	base := p.ledgers[namespace]
	if base == nil {
		return nil, errMissing{namespace}
	}
	for resource, progress := range p.view.seen {
		if progress.version < parseVersion(base.budget.Status.Observed[string(resource)]) {
			return nil, errStale
		}
	}
	d := newDraft(namespace, base, p.view, p.now)
	p.drafts[namespace] = d
	return d, nil
}

// root returns the draft of a pool's root, or nil if it needs none: its
// namespace does not exist and it has no limit.
func (p *pass) root(namespace, quotaKey string, o *outcome) (*draft, error) {
	d, err := p.open(namespace)
	switch {
	case err != nil:
		return nil, err
	case d == nil && p.declares(namespace, quotaKey):
		return nil, errNoNamespace{namespace}
	case d == nil:
		return nil, nil
	}
	o.needs(d)
	o.enters[d] = true
	return d, p.takeOver(d, o)
}

// takeOver has each ledger below the draft's, whose tenant has ceased to be a
// root, hand over its writes in flight.
func (p *pass) takeOver(d *draft, o *outcome) error {
	for below := range p.left {
		if model.IsTenantBelow(below, d.namespace) {
			if err := p.handOver(below, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// handOver enters the writes in flight of a ledger in the pools that its own
// have become parts of. Only then it is written again, without those: a replica
// that has not heard of it yet must not enter more there.
func (p *pass) handOver(namespace string, o *outcome) error {
	old, err := p.open(namespace)
	if old == nil || err != nil {
		return err
	}
	for _, pool := range old.base.budget.Status.Pools {
		if p.declares(namespace, pool.Key) {
			continue
		}
		for _, root := range p.view.tree.Roots(namespace, pool.Key, p.declarations) {
			d, err := p.open(root)
			switch {
			case err != nil:
				return err
			case d == nil && p.declares(root, pool.Key):
				return errNoNamespace{root}
			case d == nil:
				continue
			}
			for _, hold := range old.holds {
				d.add(hold)
			}
			o.needs(d)
		}
	}
	old.dirty = true
	o.needs(old)
	return nil
}

// outcome is what a pass makes of a write.
type outcome struct {
	decision Decision
	// drafts are the ledgers that the decision rests on, by namespace; the write
	// is entered in some of them.
	drafts map[string]*draft
	enters map[*draft]bool
}

func newOutcome() outcome {
	return outcome{drafts: map[string]*draft{}, enters: map[*draft]bool{}}
}

func (o *outcome) needs(d *draft) { o.drafts[d.namespace] = d }

// decide decides a write and enters it in the drafts. An error means that the
// write cannot be judged now. Of the absent namespaces it is known that they do
// not exist.
func (p *pass) decide(w Write, absent map[string]bool) (outcome, error) {
	p.absent = absent
	if w.Key.Resource == Tenants {
		return p.decideTenant(w)
	}
	return p.decideUse(w)
}

// decideUse decides the write of an object that uses units.
func (p *pass) decideUse(w Write) (outcome, error) {
	o := newOutcome()
	raises := false
	for _, quotaKey := range slices.Sorted(maps.Keys(w.New)) {
		amount := w.New[quotaKey]
		for _, root := range p.view.tree.Roots(w.Key.Namespace, quotaKey, p.declarations) {
			d, err := p.root(root, quotaKey, &o)
			if err != nil {
				return o, err
			}
			if d == nil {
				continue
			}
			d.drop(w.UID) // it may be there from an earlier try
			if amount <= p.before(w)[quotaKey] {
				continue
			}
			raises = true
			more := max(0, amount-d.counted(w.Key, quotaKey))
			d.pending.Reserve(w.Key.Namespace, quotaKey, more)
			pool := d.pool(quotaKey)
			d.pending.Reserve(w.Key.Namespace, quotaKey, -more)
			if pool.Limited && pool.Left() < 0 {
				pool.Reserved -= more
				o.refuse(exceeded(w, quotaKey, amount, more, root, pool))
			}
		}
	}
	return p.finish(w, o, raises), nil
}

// decideTenant decides the write of a tenant's budget: in the pools that it
// carves out of, and in those that it is the root of.
func (p *pass) decideTenant(w Write) (outcome, error) {
	o := newOutcome()
	own, ok := model.TenantNamespace(w.Key.Namespace, w.Key.Name)
	if !ok {
		return p.finish(w, o, false), nil
	}
	ownDraft, err := p.open(own)
	if err != nil {
		return o, err
	}
	if ownDraft != nil {
		ownDraft.drop(w.UID)
		o.needs(ownDraft)
		o.enters[ownDraft] = true
	}
	quotaKeys := map[string]bool{}
	for _, budget := range append([]model.Amounts{w.New, p.view.tree.Declared(own)}, p.inFlight[own]...) {
		for quotaKey := range budget {
			quotaKeys[quotaKey] = true
		}
	}
	parent, _ := model.ParentTenantNamespace(own)
	raises := false
	for _, quotaKey := range slices.Sorted(maps.Keys(quotaKeys)) {
		amount, declared := w.New[quotaKey]
		for _, root := range p.view.tree.Roots(parent, quotaKey, p.declarations) {
			d, err := p.root(root, quotaKey, &o)
			if err != nil {
				return o, err
			}
			if d == nil {
				continue
			}
			d.drop(w.UID)
			p.share(w, own, quotaKey, ownDraft, d)
			if !declared || amount <= p.before(w)[quotaKey] {
				continue
			}
			raises = true
			share := max(amount, d.carved(own, quotaKey))
			d.pending.Assume(own, quotaKey, share)
			pool := d.pool(quotaKey)
			d.pending.Forget(own, quotaKey)
			if pool.Limited && pool.Left() < 0 {
				pool.Reserved -= share
				o.refuse(exceeded(w, quotaKey, amount, amount, root, pool))
			}
		}
		if stored, ok := p.view.tree.Declared(own)[quotaKey]; declared && ownDraft != nil && (!ok || amount < stored) {
			if warning := lowered(quotaKey, amount, ownDraft.pool(quotaKey)); warning != "" {
				o.decision.Warnings = append(o.decision.Warnings, warning)
			}
		}
	}
	return p.finish(w, o, raises), nil
}

// share lets the pools that a tenant's write may join or part know of the
// writes in flight in each other: they count in one pool now, and in the other
// once it is stored.
func (p *pass) share(w Write, own, quotaKey string, ownDraft, above *draft) {
	if ownDraft == nil {
		return
	}
	_, stored := p.view.tree.Declared(own)[quotaKey]
	_, declared := w.New[quotaKey]
	if !stored && declared {
		for _, hold := range above.holds {
			if model.IsTenantBelow(hold.Namespace, own) || hold.Namespace == own {
				ownDraft.add(hold)
			}
		}
	}
	for _, hold := range ownDraft.holds {
		if !declared || holdKey(hold) == w.Key {
			above.add(hold)
		}
	}
}

// carved returns the most that the tenant may already take out of the pool for
// itself.
func (d *draft) carved(own, quotaKey string) int64 {
	amount := d.view.tree.Declared(own)[quotaKey]
	for _, budget := range d.pending.Declarations(own) {
		amount = max(amount, budget[quotaKey])
	}
	return amount
}

// before returns what the object amounts to before the write: nothing if it is
// created, or else what the API server shows, unless this replica has seen a
// newer object. A write that raises none of it passes, also over budget.
func (p *pass) before(w Write) model.Amounts {
	seen, ok := p.view.objects[w.Key]
	if w.Old != nil && ok && parseVersion(seen.Version) > parseVersion(w.OldVersion) {
		return seen.Amounts
	}
	return w.Old
}

func (o *outcome) refuse(fault Fault) {
	o.decision.Verdict = Exceeded
	o.decision.Faults = append(o.decision.Faults, fault)
}

// finish enters a write that fits in its drafts.
func (p *pass) finish(w Write, o outcome, raises bool) outcome {
	if o.decision.Verdict != "" {
		o.decision.Warnings = nil
		return o
	}
	full := false
	for d := range o.enters {
		switch {
		case raises && d.barrier != "":
			// Without RetryAfter: clients would wait for it, and say nothing.
			o.decision = Decision{Verdict: Unavailable, Message: fmt.Sprintf(
				"writes in flight may be missing from the GPUBudget of namespace %s: nothing is raised until they have ended, in %d seconds",
				d.namespace, int(max(time.Second, holdLifetime-p.now.Sub(d.base.first[d.barrier])).Seconds()))}
			return o
		case len(d.holds) >= maxHolds:
			full = true
		}
	}
	if raises && full {
		o.decision = Decision{Verdict: Busy, RetryAfter: time.Second, Message: "too many GPU writes of these tenants are in flight"}
		return o
	}
	o.decision.Verdict = Admitted
	if w.DryRun {
		return o
	}
	hold := v1alpha1.GPUBudgetHold{UID: w.UID, Resource: string(w.Key.Resource), Namespace: w.Key.Namespace, Name: w.Key.Name, Amounts: w.New}
	for d := range o.enters {
		if len(d.holds) >= maxHolds {
			d.barrier, d.dirty = p.newUID(), true
		} else {
			d.add(hold)
		}
	}
	p.fly(hold)
	return o
}
