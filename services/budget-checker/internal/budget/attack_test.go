// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// limited returns a world of so many replicas in which tenant x has a budget of
// that many units.
func limited(t *testing.T, replicas int, limit int64) *world {
	t.Helper()
	w := newWorld(t, replicas, tree...)
	w.store(tenant("tenant-root", "x"), total(limit))
	w.landAll()
	return w
}

// A replica that still knows the lost ledger meets its replacement while
// another one has made it, but not yet given it its barrier.
func TestReplacementOfALostLedgerIsNotUsedBeforeItsBarrier(t *testing.T) {
	w := limited(t, 2, 1)
	r := w.replicas[0]
	require.Equal(t, Admitted, r.ask(vm("tenant-x", "in-flight"), total(1)).Verdict)
	w.ledgers["tenant-x"] = &v1alpha1.GPUBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-x", UID: w.uid(), ResourceVersion: w.next()}}
	assert.Equal(t, Unavailable, r.ask(vm("tenant-x", "more"), total(1)).Verdict)
	w.landAll()
	w.check("after all has landed")
}

// Writes to what is being deleted are not decided. So none of them frees
// anything, since one that was sent before may be stored after it.
func TestTerminatingObjectsGiveNothingBackUntilTheyAreGone(t *testing.T) {
	w := limited(t, 1, 3)
	r, going := w.replicas[0], vm("tenant-x", "going")
	w.store(going, total(3))
	r.seeAll()
	r.view.Set(going, Stored{Amounts: total(3), Version: w.next(), Terminating: true})
	r.view.Set(going, Stored{Amounts: total(1), Version: w.next(), Terminating: true})
	r.view.Set(going, Stored{Version: w.next(), Terminating: true})
	assert.Equal(t, Exceeded, r.ask(vm("tenant-x", "next"), total(1)).Verdict)
	r.view.Remove(going, w.next())
	assert.Equal(t, Admitted, r.ask(vm("tenant-x", "next"), total(3)).Verdict)
}
