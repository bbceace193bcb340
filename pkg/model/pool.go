// SPDX-License-Identifier: Apache-2.0

package model

// Pool is the state of the pool of one key, in units.
type Pool struct {
	// Limited is false for a pool whose root declares no amount.
	Limited bool
	Limit   int64
	// CarvedOut is what tenants below declare for themselves.
	CarvedOut int64
	// Used is what the stored objects of the pool's namespaces use.
	Used int64
	// Reserved is what writes in flight may take beyond that.
	Reserved int64
}

// Left returns what is left of the limit. It is negative when a limit was
// lowered below what was in use.
func (p Pool) Left() int64 { return p.Limit - p.CarvedOut - p.Used - p.Reserved }

// Pending is what writes in flight may change about a tree. Any of them may
// still be stored or not, so the larger outcome of each counts, and the lower
// limit.
type Pending struct {
	reserved map[string]Amounts
	declared map[string][]Amounts
	shares   map[string]Amounts
	// children are the namespaces above, by parent, of all that this holds.
	children map[string]map[string]struct{}
}

// NewPending returns a Pending without writes.
func NewPending() *Pending {
	return &Pending{
		reserved: map[string]Amounts{}, declared: map[string][]Amounts{},
		shares: map[string]Amounts{}, children: map[string]map[string]struct{}{},
	}
}

// Reserve adds units that objects of the namespace may come to use beyond what
// is stored. A negative amount takes back.
func (p *Pending) Reserve(namespace, key string, amount int64) {
	if p.reserved[namespace] == nil {
		p.reserved[namespace] = Amounts{}
		p.link(namespace)
	}
	p.reserved[namespace][key] = plus(p.reserved[namespace][key], amount)
}

// Declare adds a budget that the namespace's tenant may come to declare.
func (p *Pending) Declare(namespace string, budget Amounts) {
	p.declared[namespace] = append(p.declared[namespace], budget)
	p.link(namespace)
}

// Declarations returns the budgets that were added for the namespace.
func (p *Pending) Declarations(namespace string) []Amounts { return p.declared[namespace] }

// Assume has the namespace's tenant, and all below, count as the amount for the
// key in the pools above, whatever else is known of them.
func (p *Pending) Assume(namespace, key string, amount int64) {
	if p.shares[namespace] == nil {
		p.shares[namespace] = Amounts{}
		p.link(namespace)
	}
	p.shares[namespace][key] = amount
}

// Forget ends an assumption.
func (p *Pending) Forget(namespace, key string) { delete(p.shares[namespace], key) }

func (p *Pending) link(namespace string) {
	for {
		parent, ok := ParentTenantNamespace(namespace)
		if !ok {
			return
		}
		if p.children[parent] == nil {
			p.children[parent] = map[string]struct{}{}
		}
		p.children[parent][namespace] = struct{}{}
		namespace = parent
	}
}

// Pool returns the state of the key's pool that is rooted in the namespace.
func (t *Tree) Pool(root, key string, p *Pending) Pool {
	limit, limited := t.Declared(root)[key]
	for _, budget := range p.declared[root] {
		if amount, ok := budget[key]; ok && (!limited || amount < limit) {
			limit, limited = amount, true
		}
	}
	sum := t.sum(root, key, p)
	return Pool{Limited: limited, Limit: limit, CarvedOut: sum.carvedOut, Used: sum.used, Reserved: sum.reserved}
}

type sum struct{ carvedOut, used, reserved int64 }

func (s sum) total() int64 { return s.carvedOut + s.used + s.reserved }

func (s *sum) add(other sum) {
	s.carvedOut = plus(s.carvedOut, other.carvedOut)
	s.used = plus(s.used, other.used)
	s.reserved = plus(s.reserved, other.reserved)
}

// sum returns what the namespace and those below take of a pool when the
// namespace's own declaration does not matter.
func (t *Tree) sum(namespace, key string, p *Pending) sum {
	s := sum{reserved: p.reserved[namespace][key]}
	n := t.nodes[namespace]
	if n != nil {
		s.used = n.used[key]
		for child := range n.children {
			s.add(t.share(child, key, p))
		}
	}
	for child := range p.children[namespace] {
		if n != nil {
			if _, counted := n.children[child]; counted {
				continue
			}
		}
		s.add(t.share(child, key, p))
	}
	return s
}

// share returns what the namespace and those below take of the pool above.
func (t *Tree) share(namespace, key string, p *Pending) sum {
	if amount, ok := p.shares[namespace][key]; ok {
		return sum{reserved: amount}
	}
	stored, declared := t.Declared(namespace)[key]
	most, undeclared := stored, !declared
	for _, budget := range p.declared[namespace] {
		amount, ok := budget[key]
		undeclared = undeclared || !ok
		most = max(most, min(amount, maxSum))
	}
	s := sum{carvedOut: stored}
	if undeclared {
		inner := t.sum(namespace, key, p)
		most = max(most, inner.total())
		if !declared {
			s = inner
		}
	}
	s.reserved += most - s.total()
	return s
}
