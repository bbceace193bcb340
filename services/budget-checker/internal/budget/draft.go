// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// draft is the next state of a ledger, as this replica's view has it.
type draft struct {
	namespace string
	base      *ledger
	view      *View
	// dirty drafts hold a decision, so they must be written.
	dirty    bool
	holds    []v1alpha1.GPUBudgetHold
	barrier  types.UID
	observed map[string]string
	// pending is what the holds may change, objects what each object counts
	// for: the larger of what is stored and of all its holds.
	pending *model.Pending
	objects map[Key]model.Amounts
}

// newDraft returns the ledger without the holds that have been seen or have
// expired. The view must have seen what the ledger reflects.
func newDraft(namespace string, base *ledger, view *View, now time.Time) *draft {
	status := base.budget.Status
	d := &draft{namespace: namespace, base: base, view: view, holds: slices.Clone(status.Holds), barrier: status.Barrier, observed: map[string]string{}}
	for resource, progress := range view.seen {
		observed := parseVersion(status.Observed[string(resource)])
		for _, transition := range view.since(resource, observed) {
			// One event shows one write. The oldest such hold goes, so that
			// the others, whichever was really seen, live on for longer.
			seen := slices.IndexFunc(d.holds, func(hold v1alpha1.GPUBudgetHold) bool {
				return holdKey(hold) == transition.key && maps.Equal(hold.Amounts, transition.amounts)
			})
			if seen >= 0 {
				d.holds = slices.Delete(d.holds, seen, seen+1)
			}
		}
		if version := max(observed, progress.changed); version > 0 {
			d.observed[string(resource)] = strconv.FormatUint(version, 10)
		}
	}
	// Only now: what is seen at last must not be taken for a later write.
	d.holds = slices.DeleteFunc(d.holds, func(hold v1alpha1.GPUBudgetHold) bool {
		return base.expired(hold.UID, now)
	})
	if base.expired(d.barrier, now) {
		d.barrier = ""
	}
	d.recount()
	return d
}

// recount derives what the holds may change.
func (d *draft) recount() {
	d.pending, d.objects = model.NewPending(), map[Key]model.Amounts{}
	for _, hold := range d.holds {
		d.count(hold)
	}
}

func (d *draft) count(hold v1alpha1.GPUBudgetHold) {
	key := holdKey(hold)
	if key.Resource == Tenants {
		if namespace, ok := model.TenantNamespace(key.Namespace, key.Name); ok {
			d.pending.Declare(namespace, hold.Amounts)
		}
		return
	}
	if d.objects[key] == nil {
		d.objects[key] = model.Amounts{}
	}
	for quotaKey, amount := range hold.Amounts {
		if more := amount - d.counted(key, quotaKey); more > 0 {
			d.pending.Reserve(key.Namespace, quotaKey, more)
			d.objects[key][quotaKey] = amount
		}
	}
}

// counted returns the units that the object counts for.
func (d *draft) counted(key Key, quotaKey string) int64 {
	return max(d.view.objects[key].Amounts[quotaKey], d.objects[key][quotaKey])
}

// add enters a write, once.
func (d *draft) add(hold v1alpha1.GPUBudgetHold) {
	if !d.has(hold.UID) {
		d.holds, d.dirty = append(d.holds, hold), true
		d.count(hold)
	}
}

func (d *draft) has(uid types.UID) bool {
	return slices.ContainsFunc(d.holds, func(hold v1alpha1.GPUBudgetHold) bool { return hold.UID == uid })
}

// drop takes a write out again.
func (d *draft) drop(uid types.UID) {
	if d.has(uid) {
		d.holds = slices.DeleteFunc(d.holds, func(hold v1alpha1.GPUBudgetHold) bool { return hold.UID == uid })
		d.dirty = true
		d.recount()
	}
}

// pool returns the state of the key's pool that is rooted in the namespace.
func (d *draft) pool(quotaKey string) model.Pool {
	return d.view.tree.Pool(d.namespace, quotaKey, d.pending)
}

// next returns the GPUBudget to write, and whether it says anything new. How
// far the view has got is no news by itself.
func (d *draft) next() (*v1alpha1.GPUBudget, bool) {
	budget := d.base.budget.DeepCopy()
	status := &budget.Status
	status.Holds, status.Barrier = d.holds, d.barrier
	keys := map[string]bool{}
	for quotaKey := range d.view.tree.Declared(d.namespace) {
		keys[quotaKey] = true
	}
	for _, declared := range d.pending.Declarations(d.namespace) {
		for quotaKey := range declared {
			keys[quotaKey] = true
		}
	}
	status.Pools = nil
	var left []string
	for _, quotaKey := range slices.Sorted(maps.Keys(keys)) {
		pool := d.pool(quotaKey)
		free := max(0, pool.Left())
		status.Pools = append(status.Pools, v1alpha1.GPUBudgetPool{
			Key: quotaKey, Limit: pool.Limit, CarvedOut: pool.CarvedOut, Used: pool.Used, Reserved: pool.Reserved, Free: free,
		})
		left = append(left, fmt.Sprintf("%s %d of %d", strings.TrimPrefix(quotaKey, gpu.QuotaKeyPrefix), free, pool.Limit))
	}
	status.Left = strings.Join(left, ", ")
	changed := !apiequality.Semantic.DeepEqual(d.base.budget.Status, *status)
	status.Observed = d.observed
	return budget, changed
}
