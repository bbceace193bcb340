// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model"
)

var tree = []string{"tenant-root", "tenant-x", "tenant-x-y", "tenant-x-y-z", "tenant-x-w"}

// Whatever the timing, no pool comes to hold more than its limit: over random
// writes by three replicas that see events and ledgers late, restart, and lose
// the race for a ledger in the middle of a decision.
func TestNoTimingOverspends(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 1))
			w := newWorld(t, 3, tree...)
			w.store(tenant("tenant-root", "x"), model.Amounts{gpu.QuotaKeyTotal: 8, model.ClassQuotaKey("a"): 6})
			w.store(tenant("tenant-x", "y"), total(3))
			for _, r := range w.replicas {
				r.seeAll()
			}
			simulate(w, random, 400, false)
		})
	}
}

// The same while tenants become and cease to be roots: what is admitted fits
// every pool that it may come to be in, with all that was admitted before.
func TestNoTimingOverspendsWhileBudgetsChange(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 2))
			w := newWorld(t, 3, tree...)
			simulate(w, random, 400, true)
		})
	}
}

func simulate(w *world, random *rand.Rand, steps int, budgets bool) {
	pick := func() *replica { return w.replicas[random.IntN(len(w.replicas))] }
	depth := 0
	w.before = func(writer *replica) {
		// Another replica decides while this one is about to write.
		if depth > 0 || !chance(random, 30) {
			return
		}
		depth++
		defer func() { depth-- }()
		if r := pick(); !r.busy {
			step(w, random, r, budgets)
		}
	}
	for range steps {
		r := pick()
		switch random.IntN(10) {
		case 0, 1, 2:
			step(w, random, r, budgets)
		case 3, 4:
			r.see(1 + random.IntN(5))
		case 5:
			r.readAll()
		case 6:
			if len(w.flights) > 0 {
				f := w.flights[random.IntN(len(w.flights))]
				if chance(random, 20) { // a later webhook refuses it
					w.flights = slices.DeleteFunc(w.flights, func(other *flight) bool { return other == f })
				} else {
					w.land(f)
				}
			}
		case 7:
			for key := range w.objects {
				if key.Resource != Tenants && chance(random, 30) {
					w.remove(key)
					break
				}
				if key.Resource != Tenants && chance(random, 20) { // somebody writes a status
					w.store(key, w.objects[key].Amounts)
					break
				}
			}
		case 8:
			w.clock = w.clock.Add(time.Duration(random.IntN(20)) * time.Second)
			for _, f := range slices.Clone(w.flights) {
				if w.clock.Sub(f.admitted) > time.Minute {
					w.land(f) // too late
				}
			}
			for _, r := range w.replicas {
				r.see(20) // no watch is as late as a hold is old
			}
		case 9:
			switch {
			case chance(random, 10):
				w.replicas[random.IntN(len(w.replicas))] = w.start(time.Duration(random.IntN(100)) * time.Hour)
			case chance(random, 5):
				namespace := tree[random.IntN(len(tree))]
				delete(w.ledgers, namespace)
				for _, r := range w.replicas {
					r.forget(namespace)
				}
			default:
				r.refresh(w.t.Context())
			}
		}
		if !budgets {
			w.check("after a step")
		}
	}
}

// step has the replica decide a random write.
func step(w *world, random *rand.Rand, r *replica, budgets bool) {
	if budgets && chance(random, 15) {
		own := 1 + random.IntN(3)
		parent := tree[own-1]
		key := tenant(parent, []string{"x", "y", "z"}[own-1])
		var amounts model.Amounts
		if chance(random, 70) {
			amounts = total(int64(random.IntN(10)))
		}
		if chance(random, 30) {
			amounts = units(int64(random.IntN(10)))
		}
		r.ask(key, amounts)
		return
	}
	namespace := tree[random.IntN(len(tree))]
	key := vm(namespace, fmt.Sprint(random.IntN(3)))
	write := w.write(key, units(int64(random.IntN(5))))
	if write.New[gpu.QuotaKeyTotal] == 0 {
		write.New = nil
	}
	before := slices.Clone(w.flights)
	decision := r.send(write)
	if decision.Verdict == Admitted && budgets && w.raises(write) {
		// Budgets that came in the meantime may have been judged later.
		tree, pending := w.truth(slices.DeleteFunc(slices.Clone(w.flights), func(f *flight) bool {
			return f.Key.Resource == Tenants && !slices.Contains(before, f)
		}))
		for quotaKey := range write.New {
			for _, root := range tree.Roots(namespace, quotaKey, pending.Declarations) {
				pool := tree.Pool(root, quotaKey, pending)
				if pool.Limited {
					require.GreaterOrEqual(w.t, pool.Left(), int64(0), "%+v was admitted to %s of %s: %+v", write, quotaKey, root, pool)
				}
			}
		}
	}
}

// raises reports whether the admitted write has more units than the object
// counts for by anything else.
func (w *world) raises(write Write) bool {
	counted := w.objects[write.Key].Amounts[gpu.QuotaKeyTotal]
	for _, f := range w.flights {
		if f.Key == write.Key && f.UID != write.UID {
			counted = max(counted, f.New[gpu.QuotaKeyTotal])
		}
	}
	return write.New[gpu.QuotaKeyTotal] > counted
}

// Once all is seen and all holds have ended, a write is refused if and only if
// it does not fit.
func TestRefusalsAreNotSpurious(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 3))
			w := newWorld(t, 3, tree...)
			simulate(w, random, 100, true)
			w.before = func(*replica) {}
			for range 20 {
				w.landAll()
				w.clock = w.clock.Add(holdLifetime)
				w.flights = nil
				r := w.replicas[random.IntN(3)]
				namespace := tree[random.IntN(len(tree))]
				write := w.write(vm(namespace, fmt.Sprint(random.IntN(9))), units(1+int64(random.IntN(6))))
				stored, pending := w.truth(w.flights)
				fits := true
				for quotaKey, amount := range write.New {
					more := amount - w.objects[write.Key].Amounts[quotaKey]
					for _, root := range stored.Roots(namespace, quotaKey, pending.Declarations) {
						pool := stored.Pool(root, quotaKey, pending)
						fits = fits && (more <= 0 || !pool.Limited || pool.Left() >= more)
					}
				}
				decision := r.send(write)
				want := Admitted
				if !fits {
					want = Exceeded
				}
				assert.Equal(t, want, decision.Verdict, "%+v: %+v", write, decision)
			}
		})
	}
}
