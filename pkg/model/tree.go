// SPDX-License-Identifier: Apache-2.0

package model

import "maps"

// Tree holds what is stored of a cloud's tenants: by namespace, the units that
// its objects use and the budget that its tenant declares. Namespaces that can
// belong to no tenant are not held.
//
// For each key on its own, the tenants that declare it are the roots of pools.
// A namespace is in the pool of the nearest root among its own tenant and those
// above; what a root declares is carved out of the pool that it would
// otherwise be in.
type Tree struct {
	nodes map[string]*node
}

type node struct {
	children map[string]struct{}
	used     Amounts
	declared Amounts
}

// NewTree returns a tree of a cloud without tenants.
func NewTree() *Tree {
	return &Tree{nodes: map[string]*node{}}
}

// Use replaces what one object in the namespace uses, from before to after.
func (t *Tree) Use(namespace string, before, after Amounts) {
	n := t.grow(namespace)
	if n == nil {
		return
	}
	for key, amount := range before {
		if n.used[key] -= amount; n.used[key] == 0 {
			delete(n.used, key)
		}
	}
	for key, amount := range after {
		n.used[key] += amount
	}
	t.prune(namespace)
}

// Declare replaces the budget that the namespace's tenant declares; nil
// declares nothing.
func (t *Tree) Declare(namespace string, budget Amounts) {
	n := t.grow(namespace)
	if n == nil {
		return
	}
	n.declared = maps.Clone(budget)
	t.prune(namespace)
}

// Declared returns the budget that the namespace's tenant declares. It must not
// be changed.
func (t *Tree) Declared(namespace string) Amounts {
	if n := t.nodes[namespace]; n != nil {
		return n.declared
	}
	return nil
}

// grow returns the namespace's node, which it makes if need be, or nil for a
// namespace that can belong to no tenant.
func (t *Tree) grow(namespace string) *node {
	if n := t.nodes[namespace]; n != nil {
		return n
	}
	if !isTenantNamespace(namespace) {
		return nil
	}
	n := &node{children: map[string]struct{}{}, used: Amounts{}}
	t.nodes[namespace] = n
	if parent, ok := ParentTenantNamespace(namespace); ok {
		t.grow(parent).children[namespace] = struct{}{}
	}
	return n
}

// prune takes out nodes that say nothing, from the namespace upwards.
func (t *Tree) prune(namespace string) {
	n := t.nodes[namespace]
	if n == nil || len(n.children) > 0 || len(n.used) > 0 || len(n.declared) > 0 {
		return
	}
	delete(t.nodes, namespace)
	if parent, ok := ParentTenantNamespace(namespace); ok {
		delete(t.nodes[parent].children, namespace)
		t.prune(parent)
	}
}

// Declarations are the budgets that a namespace's tenant may come to declare
// through writes in flight, besides the one that is stored.
type Declarations func(namespace string) []Amounts

// Roots returns the namespaces in which the pool of the namespace is rooted for
// the key, or may come to be by writes in flight, the nearest first. If none of
// them is sure to declare the key, the last is the topmost tenant's: its pool
// has no limit unless it declares one. A namespace that can belong to no
// tenant has no roots.
func (t *Tree) Roots(namespace, key string, inFlight Declarations) []string {
	if !isTenantNamespace(namespace) {
		return nil
	}
	var roots []string
	for {
		_, surely := t.Declared(namespace)[key]
		possibly := surely
		for _, budget := range inFlight(namespace) {
			_, declares := budget[key]
			surely, possibly = surely && declares, possibly || declares
		}
		parent, ok := ParentTenantNamespace(namespace)
		if possibly || !ok {
			roots = append(roots, namespace)
		}
		if surely || !ok {
			return roots
		}
		namespace = parent
	}
}

// Declaring returns the namespaces whose tenants declare a budget.
func (t *Tree) Declaring() []string {
	var namespaces []string
	for namespace, n := range t.nodes {
		if len(n.declared) > 0 {
			namespaces = append(namespaces, namespace)
		}
	}
	return namespaces
}
