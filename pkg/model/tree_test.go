// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// cloud is a random cloud, kept plainly: what is stored, what is in flight, and
// the tree that was told of the stored part.
type cloud struct {
	parents  map[string]string // of each tenant's namespace; the topmost has ""
	used     map[string]Amounts
	declared map[string]Amounts
	reserved map[string]Amounts
	inFlight map[string][]Amounts
	tree     *Tree
	pending  *Pending
}

var cloudKeys = []string{"k", "l"}

func randomAmounts(r *rand.Rand) Amounts {
	amounts := Amounts{}
	for _, key := range cloudKeys {
		if r.IntN(2) == 0 {
			amounts[key] = r.Int64N(8)
		}
	}
	return amounts
}

// pick returns one of the namespaces. Not all that are used belong to a tenant
// that was ever written, so a cloud has gaps.
func (c *cloud) pick(r *rand.Rand) string {
	namespaces := slices.Sorted(maps.Keys(c.parents))
	return namespaces[r.IntN(len(namespaces))]
}

func newCloud(t *testing.T, r *rand.Rand) *cloud {
	t.Helper()
	c := &cloud{
		parents: map[string]string{RootTenantNamespace: ""},
		used:    map[string]Amounts{}, declared: map[string]Amounts{}, reserved: map[string]Amounts{}, inFlight: map[string][]Amounts{},
		tree: NewTree(), pending: NewPending(),
	}
	for range r.IntN(8) {
		parent := c.pick(r)
		namespace, ok := TenantNamespace(parent, string(rune('a'+r.IntN(3))))
		require.True(t, ok)
		c.parents[namespace] = parent
	}
	for range r.IntN(20) {
		c.store(r)
	}
	for range r.IntN(4) {
		namespace := c.pick(r)
		if c.reserved[namespace] == nil {
			c.reserved[namespace] = Amounts{}
		}
		for key, amount := range randomAmounts(r) {
			c.reserved[namespace][key] += amount
			c.pending.Reserve(namespace, key, amount)
		}
	}
	for range r.IntN(5) {
		namespace, budget := c.pick(r), randomAmounts(r)
		c.inFlight[namespace] = append(c.inFlight[namespace], budget)
		c.pending.Declare(namespace, budget)
	}
	return c
}

// store stores one write. A namespace stands for its one object.
func (c *cloud) store(r *rand.Rand) {
	namespace, amounts := c.pick(r), randomAmounts(r)
	if r.IntN(2) == 0 {
		c.tree.Use(namespace, c.used[namespace], amounts)
		c.used[namespace] = amounts
	} else {
		c.tree.Declare(namespace, amounts)
		c.declared[namespace] = amounts
	}
}

// takes returns what the namespace and those below take of a pool, beside what
// the namespace itself declares.
func (c *cloud) takes(namespace, key string, declared map[string]Amounts, reserved map[string]Amounts) int64 {
	taken := c.used[namespace][key] + reserved[namespace][key]
	for child, parent := range c.parents {
		if parent != namespace {
			continue
		}
		if amount, carved := declared[child][key]; carved {
			taken += amount
		} else {
			taken += c.takes(child, key, declared, reserved)
		}
	}
	return taken
}

// outcomes calls visit with the declarations that each combination of writes in
// flight would leave.
func (c *cloud) outcomes(visit func(declared map[string]Amounts)) {
	namespaces := slices.Sorted(maps.Keys(c.inFlight))
	declared := maps.Clone(c.declared)
	var choose func(i int)
	choose = func(i int) {
		if i == len(namespaces) {
			visit(declared)
			return
		}
		choose(i + 1)
		namespace := namespaces[i]
		stored := declared[namespace]
		for _, budget := range c.inFlight[namespace] {
			declared[namespace] = budget
			choose(i + 1)
		}
		declared[namespace] = stored
	}
	choose(0)
}

func (c *cloud) declarations(namespace string) []Amounts { return c.inFlight[namespace] }

func eachCloud(t *testing.T, check func(t *testing.T, r *rand.Rand, c *cloud)) {
	t.Helper()
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		check(t, r, newCloud(t, r))
		if t.Failed() {
			t.Fatalf("with seed %d", seed)
		}
	}
}

// A pool must be reckoned for the worst that the writes in flight can come to,
// and for no worse than that.
func TestPoolIsTheWorstOfAllOutcomes(t *testing.T) {
	eachCloud(t, func(t *testing.T, _ *rand.Rand, c *cloud) {
		for root := range c.parents {
			for _, key := range cloudKeys {
				var worst, lowest int64
				limited := false
				c.outcomes(func(declared map[string]Amounts) {
					worst = max(worst, c.takes(root, key, declared, c.reserved))
					if limit, ok := declared[root][key]; ok && (!limited || limit < lowest) {
						lowest, limited = limit, true
					}
				})
				pool := c.tree.Pool(root, key, c.pending)
				assert.Equal(t, limited, pool.Limited)
				assert.Equal(t, lowest, pool.Limit)
				assert.Equal(t, c.takes(root, key, c.declared, nil), pool.CarvedOut+pool.Used, "of what is stored")
				assert.Equal(t, worst, pool.CarvedOut+pool.Used+pool.Reserved, "%s of %s", key, root)
				assert.GreaterOrEqual(t, pool.Reserved, int64(0))
				assert.Equal(t, lowest-worst, pool.Left())
			}
		}
	})
}

func TestAssumedShareReplacesWhatIsKnown(t *testing.T) {
	eachCloud(t, func(t *testing.T, r *rand.Rand, c *cloud) {
		namespace, key := c.pick(r), cloudKeys[0]
		above, ok := c.parents[namespace]
		if above == "" {
			assert.True(t, ok)
			return
		}
		before := c.tree.Pool(above, key, c.pending)
		share := c.tree.share(namespace, key, c.pending).total()
		amount := r.Int64N(20)
		c.pending.Assume(namespace, key, amount)
		assumed := c.tree.Pool(above, key, c.pending)
		assert.Equal(t, before.Left()+share-amount, assumed.Left())
		c.pending.Forget(namespace, key)
		assert.Equal(t, before, c.tree.Pool(above, key, c.pending))
	})
}

// Before a budget is declared, anything may have been.
func TestSumsDoNotOverflow(t *testing.T) {
	const many = 3000
	for name, fill := range map[string]func(*Tree, *Pending, string){
		"carve-outs": func(tree *Tree, _ *Pending, below string) { tree.Declare(below, Amounts{"k": MaxAmount}) },
		"uses":       func(tree *Tree, _ *Pending, below string) { tree.Use(below, nil, Amounts{"k": MaxUsage}) },
		"writes":     func(_ *Tree, pending *Pending, below string) { pending.Reserve(below, "k", MaxAmount) },
		"budgets in flight, written by hand": func(_ *Tree, pending *Pending, below string) {
			pending.Declare(below, Amounts{"k": math.MaxInt64})
		},
		"writes written by hand": func(_ *Tree, pending *Pending, _ string) { pending.Reserve("tenant-x", "k", math.MaxInt64) },
	} {
		t.Run(name, func(t *testing.T) {
			tree, pending := NewTree(), NewPending()
			tree.Declare("tenant-x", Amounts{"k": 1000})
			for i := range many {
				fill(tree, pending, fmt.Sprintf("tenant-x-t%d", i))
				if i%100 == 0 {
					assert.Negative(t, tree.Pool("tenant-x", "k", pending).Left())
				}
			}
		})
	}
}

func TestRootsAreThoseOfAllOutcomes(t *testing.T) {
	eachCloud(t, func(t *testing.T, _ *rand.Rand, c *cloud) {
		for namespace := range c.parents {
			for _, key := range cloudKeys {
				possible := map[string]bool{}
				c.outcomes(func(declared map[string]Amounts) {
					root := namespace
					for root != RootTenantNamespace {
						if _, ok := declared[root][key]; ok {
							break
						}
						root = c.parents[root]
					}
					possible[root] = true
				})
				var want []string // the nearest first
				for above := namespace; above != ""; above = c.parents[above] {
					if possible[above] {
						want = append(want, above)
					}
				}
				assert.Equal(t, want, c.tree.Roots(namespace, key, c.declarations), "%s of %s", key, namespace)
			}
		}
	})
}

func TestTreeKeepsNothingOfWhatIsGone(t *testing.T) {
	eachCloud(t, func(t *testing.T, _ *rand.Rand, c *cloud) {
		var declaring []string
		for namespace, budget := range c.declared {
			assert.Equal(t, len(budget), len(c.tree.Declared(namespace)))
			if len(budget) > 0 {
				declaring = append(declaring, namespace)
			}
		}
		assert.ElementsMatch(t, declaring, c.tree.Declaring())
		for namespace := range c.parents {
			c.tree.Use(namespace, c.used[namespace], nil)
			c.tree.Declare(namespace, nil)
		}
		assert.Empty(t, c.tree.nodes)
	})
}

func TestTreeIgnoresNamespacesOfNoTenant(t *testing.T) {
	tree := NewTree()
	for _, namespace := range []string{"default", "tenant-", "tenant-a-", "tenant--a", ""} {
		tree.Use(namespace, nil, Amounts{"k": 1})
		tree.Declare(namespace, Amounts{"k": 1})
		assert.Nil(t, tree.Declared(namespace))
		assert.Nil(t, tree.Roots(namespace, "k", func(string) []Amounts { return nil }))
	}
	assert.Empty(t, tree.nodes)
	assert.Equal(t, Pool{}, tree.Pool(RootTenantNamespace, "k", NewPending()))
}

func TestBelowIsSomewhereInTheChainOfParents(t *testing.T) {
	eachCloud(t, func(t *testing.T, _ *rand.Rand, c *cloud) {
		for namespace := range c.parents {
			for above := range c.parents {
				below := false
				for n := c.parents[namespace]; n != ""; n = c.parents[n] {
					below = below || n == above
				}
				assert.Equal(t, below, IsTenantBelow(namespace, above), "%s below %s", namespace, above)
			}
		}
	})
}

func TestTenantNamespace(t *testing.T) {
	for _, tc := range []struct{ namespace, name, want string }{
		{"tenant-root", "root", "tenant-root"},
		{"tenant-root", "x", "tenant-x"},
		{"tenant-x", "y", "tenant-x-y"},
		{"tenant-x-y", "z", "tenant-x-y-z"},
		{"tenant-x", "root", "tenant-x-root"},
		{"tenant-root", "", ""},
		{"tenant-root", "x-y", ""},
		{"tenant-x", "-", ""},
		{"tenant-", "x", ""},
		{"tenant-x-", "y", ""},
		{"tenant--x", "y", ""},
		{"tenant", "x", ""},
		{"default", "x", ""},
		{"", "x", ""},
	} {
		got, ok := TenantNamespace(tc.namespace, tc.name)
		assert.Equal(t, tc.want, got, "%s in %s", tc.name, tc.namespace)
		assert.Equal(t, tc.want != "", ok, "%s in %s", tc.name, tc.namespace)
	}
}

func TestParentTenantNamespace(t *testing.T) {
	for namespace, want := range map[string]string{
		"tenant-root": "", "tenant-x": "tenant-root", "tenant-x-y": "tenant-x", "tenant-x-y-z": "tenant-x-y", "tenant-x-root": "tenant-x",
		"tenant-": "", "tenant": "", "default": "", "": "", "tenant-x-": "", "tenant-x--y": "", "tenant--x": "", "x-tenant-y": "",
	} {
		got, ok := ParentTenantNamespace(namespace)
		assert.Equal(t, want, got, namespace)
		assert.Equal(t, want != "", ok, namespace)
	}
}

// The two functions undo each other, also for names that no test thought of.
func FuzzTenantNamespace(f *testing.F) {
	f.Add("tenant-root", "root")
	f.Add("tenant-root", "x")
	f.Add("tenant-x", "y")
	f.Add("tenant-root-x", "y")
	f.Fuzz(func(t *testing.T, namespace, name string) {
		owned, ok := TenantNamespace(namespace, name)
		if !ok || owned == RootTenantNamespace {
			return
		}
		parent, ok := ParentTenantNamespace(owned)
		assert.True(t, ok)
		assert.Equal(t, namespace, parent)
		assert.True(t, IsTenantBelow(owned, namespace))
	})
}
