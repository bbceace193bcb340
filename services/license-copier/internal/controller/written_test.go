// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/services/license-copier/internal/plan"
)

func secret(uid, version string) *plan.Copy {
	return &plan.Copy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "x", UID: types.UID(uid), ResourceVersion: version}}
}

func list(copies ...*plan.Copy) []*plan.Copy { return copies }

func TestACreatedCopyCountsBeforeItsEvent(t *testing.T) {
	w, created := newWritten(), secret("1", "10")
	w.put(created)
	assert.Equal(t, list(created), w.overlay("a", nil))
	assert.Empty(t, w.overlay("b", nil), "another namespace")
	assert.True(t, w.seen(created), "the event is that of our own write")
	assert.Empty(t, w.overlay("a", nil), "from now on the cache counts")
	assert.False(t, w.seen(created), "the event comes again after a relist")
}

func TestAnUpdateCountsUntilTheCacheIsAsNew(t *testing.T) {
	w, old, updated, edited := newWritten(), secret("1", "9"), secret("1", "10"), secret("1", "11")
	w.put(updated)
	assert.Equal(t, list(updated), w.overlay("a", list(old)))
	assert.False(t, w.seen(old), "an event from before the write")
	assert.Equal(t, list(updated), w.overlay("a", list(old)))
	assert.Equal(t, list(edited), w.overlay("a", list(edited)))
	assert.False(t, w.seen(edited), "somebody edited the copy meanwhile")
	assert.Equal(t, list(edited), w.overlay("a", list(edited)))
}

func TestADeletedCopyIsGoneBeforeItsEvent(t *testing.T) {
	w, deleted, again := newWritten(), secret("1", "9"), secret("2", "11")
	w.deleted(deleted)
	assert.Empty(t, w.overlay("a", list(deleted)))
	assert.Equal(t, list(again), w.overlay("a", list(again)), "another Secret of that name")
	assert.False(t, w.seen(deleted), "an event from before the deletion")
	assert.Empty(t, w.overlay("a", list(deleted)))
	w.gone(secret("1", "10"), false)
	assert.Equal(t, list(deleted), w.overlay("a", list(deleted)), "from now on the cache counts")
}

func TestADeletedCopyThatAFinalizerHoldsIsSeen(t *testing.T) {
	w, deleted, held := newWritten(), secret("1", "9"), secret("1", "10")
	now := metav1.Now()
	held.DeletionTimestamp = &now
	w.deleted(deleted)
	assert.Empty(t, w.overlay("a", list(deleted)))
	assert.Equal(t, list(held), w.overlay("a", list(held)), "it has the name until it is gone")
	assert.False(t, w.seen(held))
	assert.Empty(t, w.records, "nothing is awaited any more")
}

func TestTheEventOfAnEarlierDeletionHidesNoCreation(t *testing.T) {
	w, created := newWritten(), secret("2", "11")
	w.put(created)
	w.gone(secret("1", "10"), false)
	assert.Equal(t, list(created), w.overlay("a", nil))
	w.gone(secret("2", "12"), false)
	assert.Empty(t, w.overlay("a", nil))
}

func TestADeletionFoundByAListEndsTheWait(t *testing.T) {
	w := newWritten()
	w.put(secret("2", "11"))
	w.gone(secret("1", "9"), true)
	assert.Empty(t, w.overlay("a", nil))
}

func TestAnEventThatNeverComesIsNotAwaitedForever(t *testing.T) {
	w := newWritten()
	w.put(secret("1", "10"))
	assert.Empty(t, w.expire(time.Now()))
	assert.Equal(t, []string{"a"}, w.expire(time.Now().Add(writtenLifetime+time.Second)))
	assert.Empty(t, w.overlay("a", nil))
}
