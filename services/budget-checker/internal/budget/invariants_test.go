// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// cloud returns a world with tenant x, which may use so many units, and below
// it tenant y without a budget.
func cloud(t *testing.T, replicas int, limit int64) *world {
	w := newWorld(t, replicas, tree...)
	w.store(tenant("tenant-root", "x"), total(limit))
	w.landAll()
	return w
}

func verdict(d Decision) Verdict { return d.Verdict }

func TestStaleUpdateThatLandsAfterALowering(t *testing.T) {
	w := cloud(t, 2, 5)
	a, b := w.replicas[0], w.replicas[1]
	w.store(vm("tenant-x", "old"), units(5))
	w.landAll()
	require.Equal(t, Admitted, verdict(a.ask(vm("tenant-x", "old"), units(5))), "an edit of its labels")
	edit := w.flights[0]
	require.Equal(t, Admitted, verdict(b.ask(vm("tenant-x", "old"), units(2))))
	w.land(w.flights[1])
	a.seeAll()
	b.seeAll()
	assert.Equal(t, Exceeded, verdict(b.ask(vm("tenant-x", "new"), units(1))), "the edit may still bring all 5 back")
	w.land(edit)
	w.check("the edit was stored on the newer object")
	a.seeAll()
	assert.Equal(t, Exceeded, verdict(a.ask(vm("tenant-x", "new"), units(1))))
}

func TestOldObjectIsNotBelievedWhenANewerOneWasSeen(t *testing.T) {
	w := cloud(t, 1, 5)
	w.store(vm("tenant-x", "vm"), units(5))
	stale := w.write(vm("tenant-x", "vm"), units(5))
	w.store(vm("tenant-x", "vm"), units(2))
	w.store(vm("tenant-x", "other"), units(3))
	w.landAll()
	assert.Equal(t, Exceeded, verdict(w.replicas[0].send(stale)))
	assert.Equal(t, Admitted, verdict(w.replicas[0].ask(vm("tenant-x", "vm"), units(2))))
}

func TestReplicaThatHasSeenLessWaits(t *testing.T) {
	w := cloud(t, 2, 2)
	behind, ahead := w.replicas[0], w.replicas[1]
	require.Equal(t, Admitted, verdict(ahead.ask(vm("tenant-x", "one"), units(1))))
	w.land(w.flights[0])
	ahead.seeAll()
	ahead.refresh(t.Context())
	behind.readAll()
	assert.Equal(t, Unavailable, verdict(behind.ask(vm("tenant-x", "two"), units(1))))
	assert.EqualValues(t, 1, w.ledgers["tenant-x"].Status.Pools[0].Used, "no older use is written back")
	behind.seeAll()
	assert.Equal(t, Admitted, verdict(behind.ask(vm("tenant-x", "two"), units(1))))
}

func TestHoldLivesItsTimeByTheClockOfEachReplica(t *testing.T) {
	w := cloud(t, 2, 1) // their clocks are minutes apart
	require.Equal(t, Admitted, verdict(w.replicas[0].ask(vm("tenant-x", "slow"), units(1))))
	w.replicas[1].readAll()
	for _, r := range w.replicas {
		assert.Equal(t, Exceeded, verdict(r.ask(vm("tenant-x", "next"), units(1))))
	}
	w.clock = w.clock.Add(holdLifetime - time.Second)
	for _, r := range w.replicas {
		assert.Equal(t, Exceeded, verdict(r.ask(vm("tenant-x", "next"), units(1))))
	}
	w.clock = w.clock.Add(time.Second)
	assert.Equal(t, Admitted, verdict(w.replicas[1].ask(vm("tenant-x", "next"), units(1))))
}

func TestOnlyAChangeOfUnitsShowsAWrite(t *testing.T) {
	w := cloud(t, 1, 4)
	r := w.replicas[0]
	holds := func() int {
		r.seeAll()
		r.refresh(t.Context())
		return len(w.ledgers["tenant-x"].Status.Holds)
	}
	require.Equal(t, Admitted, verdict(r.ask(vm("tenant-x", "vm"), units(2))))
	require.Equal(t, 1, holds())
	w.land(w.flights[0])
	require.Zero(t, holds(), "seen")
	require.Equal(t, Admitted, verdict(r.ask(vm("tenant-x", "vm"), units(2))), "an edit of its labels")
	w.store(vm("tenant-x", "vm"), units(2))
	assert.Equal(t, 1, holds(), "that was a status")
	terminating := w.objects[vm("tenant-x", "vm")]
	terminating.Terminating, terminating.Version = true, w.next()
	r.view.Set(vm("tenant-x", "vm"), terminating)
	r.refresh(t.Context())
	assert.EqualValues(t, 2, w.ledgers["tenant-x"].Status.Pools[0].Used, "it counts until it is gone")
	assert.Len(t, w.ledgers["tenant-x"].Status.Holds, 1)
}

func TestDeletedAndCreatedAgainUnderOneName(t *testing.T) {
	w := cloud(t, 1, 3)
	r := w.replicas[0]
	w.store(vm("tenant-x", "vm"), units(1))
	w.landAll()
	require.Equal(t, Admitted, verdict(r.ask(vm("tenant-x", "vm"), units(3))), "an update of the first")
	update := w.flights[0]
	w.remove(vm("tenant-x", "vm"))
	r.seeAll()
	require.Equal(t, Admitted, verdict(r.ask(vm("tenant-x", "vm"), units(1))), "the second")
	w.land(w.flights[1])
	r.seeAll()
	assert.Equal(t, Exceeded, verdict(r.ask(vm("tenant-x", "other"), units(1))), "the update may land on the second")
	w.land(update)
	w.check("it did")
}

func TestKeysOfTwoPoolsAreReservedTogetherOrNotAtAll(t *testing.T) {
	w := newWorld(t, 2, tree...)
	w.store(tenant("tenant-root", "x"), model.Amounts{model.ClassQuotaKey("a"): 5})
	w.store(tenant("tenant-x", "y"), total(5))
	w.landAll()
	r, other := w.replicas[0], w.replicas[1]
	require.Equal(t, Admitted, verdict(other.ask(vm("tenant-x-y", "one"), units(4))))
	once := true
	w.before = func(writer *replica) {
		if writer == r && once { // while r writes the first of the two
			once = false
			require.Equal(t, Admitted, verdict(other.ask(vm("tenant-x-y", "two"), units(1))))
		}
	}
	decision := r.ask(vm("tenant-x-y", "three"), units(1))
	assert.Equal(t, Exceeded, decision.Verdict)
	for _, namespace := range []string{"tenant-x", "tenant-x-y"} {
		for _, hold := range w.ledgers[namespace].Status.Holds {
			assert.NotEqual(t, "three", hold.Name, "%s keeps what was refused", namespace)
		}
	}
}

func TestTenantThatBecomesARootWhileAWriteIsDecided(t *testing.T) {
	w := cloud(t, 2, 9)
	r, other := w.replicas[0], w.replicas[1]
	once := true
	w.before = func(writer *replica) {
		if writer == r && once {
			once = false
			require.Equal(t, Admitted, verdict(other.ask(tenant("tenant-x", "y"), total(1))))
		}
	}
	assert.Equal(t, Exceeded, verdict(r.ask(vm("tenant-x-y", "vm"), units(2))), "it would exceed the new root's budget")
	assert.Equal(t, Admitted, verdict(r.ask(vm("tenant-x-y", "vm"), units(1))))
	assert.Equal(t, Exceeded, verdict(r.ask(vm("tenant-x-y", "more"), units(1))))
}

func TestLostLedgerIsToldFromANewOne(t *testing.T) {
	w := cloud(t, 1, 3)
	r := w.replicas[0]
	require.Equal(t, Admitted, verdict(r.ask(vm("tenant-x", "first"), units(1))), "a new pool's first write is served at once")
	delete(w.ledgers, "tenant-x")
	r.forget("tenant-x")
	decision := r.ask(vm("tenant-x", "second"), units(1))
	assert.Equal(t, Unavailable, decision.Verdict)
	assert.Contains(t, decision.Message, "in 90 seconds")
	w.store(vm("tenant-x", "stored"), units(1))
	r.seeAll()
	assert.Equal(t, Admitted, verdict(r.ask(vm("tenant-x", "stored"), units(1))), "what raises nothing passes")
	w.clock = w.clock.Add(holdLifetime)
	assert.Equal(t, Admitted, verdict(r.ask(vm("tenant-x", "second"), units(1))))
}

func TestTooManyWritesInFlight(t *testing.T) {
	w := cloud(t, 1, 10*maxHolds)
	r := w.replicas[0]
	w.store(vm("tenant-x", "stored"), units(1))
	w.landAll()
	ledger, err := r.Ensure(t.Context(), "tenant-x")
	require.NoError(t, err)
	for i := range maxHolds {
		ledger.Status.Holds = append(ledger.Status.Holds, v1alpha1.GPUBudgetHold{
			UID: w.uid(), Resource: string(VMInstances), Namespace: "tenant-x", Name: fmt.Sprint(i), Amounts: units(1),
		})
	}
	_, err = r.Update(t.Context(), ledger)
	require.NoError(t, err)
	r.readAll()
	assert.Equal(t, Busy, verdict(r.ask(vm("tenant-x", "raise"), units(1))))
	assert.Equal(t, Admitted, verdict(r.ask(vm("tenant-x", "stored"), units(1))), "what raises nothing passes")
	assert.NotEmpty(t, w.ledgers["tenant-x"].Status.Barrier, "in place of its hold")
	w.clock = w.clock.Add(holdLifetime)
	assert.Equal(t, Admitted, verdict(r.ask(vm("tenant-x", "raise"), units(1))))
}

func TestDryRunReservesNothing(t *testing.T) {
	w := cloud(t, 1, 1)
	write := w.write(vm("tenant-x", "vm"), units(1))
	write.DryRun = true
	for range 3 {
		assert.Equal(t, Admitted, verdict(w.replicas[0].send(write)))
	}
	write.New = units(2)
	assert.Equal(t, Exceeded, verdict(w.replicas[0].send(write)))
	assert.Empty(t, w.ledgers["tenant-x"].Status.Holds)
}

// Writes that wait together cost one write of their ledger.
func TestWaitingWritesAreDecidedTogether(t *testing.T) {
	w := cloud(t, 1, 10)
	r := w.replicas[0]
	require.Equal(t, Admitted, verdict(r.ask(vm("tenant-x", "first"), total(1))))
	writes := 0
	w.before = func(*replica) { writes++ }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	decisions := make(chan Decision, 100)
	var ready sync.WaitGroup
	for i := range 100 {
		ready.Add(1)
		go func() {
			write := Write{UID: w.uid(), Key: vm("tenant-x", fmt.Sprint(i)), New: model.Amounts{gpu.QuotaKeyTotal: 1}}
			ready.Done()
			decisions <- r.Decide(ctx, write)
		}()
	}
	ready.Wait()
	require.Eventually(t, func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.queue) == 100 }, time.Minute, time.Millisecond)
	for again := true; again; {
		again, _ = r.round(ctx)
	}
	admitted := 0
	for range 100 {
		if (<-decisions).Verdict == Admitted {
			admitted++
		}
	}
	assert.Equal(t, 9, admitted)
	assert.Equal(t, 1, writes)
}

// A write that was given up while its ledgers were written is taken back.
func TestGivenUpWriteIsTakenBack(t *testing.T) {
	w := cloud(t, 1, 1)
	r := w.replicas[0]
	require.Equal(t, Admitted, verdict(r.ask(vm("tenant-root", "first"), total(1))))
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan Decision)
	w.before = func(*replica) {
		w.before = func(*replica) {}
		cancel()
		assert.Equal(t, Unavailable, verdict(<-answer))
	}
	go func() { answer <- r.Decide(ctx, w.write(vm("tenant-x", "late"), units(1))) }()
	require.Eventually(t, func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.queue) == 1 }, time.Minute, time.Millisecond)
	for again := true; again; {
		again, _ = r.round(t.Context())
	}
	assert.Empty(t, w.ledgers["tenant-x"].Status.Holds)
}

// A tenant's deletion is not reviewed. What was in flight in its pool counts in
// the one above, and a replica that has not heard of it enters nothing more.
func TestDeletedTenantLeavesItsWritesInFlightToThePoolAbove(t *testing.T) {
	w := cloud(t, 2, 5)
	w.store(tenant("tenant-x", "y"), total(3))
	w.landAll()
	ahead, behind := w.replicas[0], w.replicas[1]
	require.Equal(t, Admitted, verdict(behind.ask(vm("tenant-x-y", "flying"), units(3))))
	w.remove(tenant("tenant-x", "y"))
	ahead.seeAll()
	ahead.readAll()
	ahead.refresh(t.Context())
	assert.Equal(t, Exceeded, verdict(ahead.ask(vm("tenant-x", "vm"), units(3))), "3 of x's 5 may still be taken")
	require.Equal(t, Admitted, verdict(ahead.ask(vm("tenant-x", "vm"), units(2))))
	assert.Equal(t, Unavailable, verdict(behind.ask(vm("tenant-x-y", "late"), units(1))))
	for len(w.flights) > 0 {
		w.land(w.flights[0])
	}
	w.check("all of it was stored")
}

// What a tenant might have come to declare does not count once it has expired.
func TestExpiredBudgetHasNoPool(t *testing.T) {
	w := cloud(t, 1, 5)
	r := w.replicas[0]
	require.Equal(t, Admitted, verdict(r.ask(tenant("tenant-x", "y"), total(0))))
	assert.Equal(t, Exceeded, verdict(r.ask(vm("tenant-x-y", "vm"), units(1))))
	w.clock = w.clock.Add(holdLifetime)
	assert.Equal(t, Admitted, verdict(r.ask(vm("tenant-x-y", "vm"), units(1))))
}
