// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/services/license-copier/internal/plan"
)

// writtenLifetime bounds how long an event of an own write is awaited. One
// that was overtaken while a watch was down never comes.
const writtenLifetime = time.Minute

// written holds what we wrote until the cache has seen it, so that no write is
// done twice.
type written struct {
	mu      sync.Mutex
	records map[string]map[string]record // by namespace and name
}

// record is a copy as we left it, or the UID of one that we deleted.
type record struct {
	copied  *plan.Copy
	deleted types.UID
	at      time.Time
}

// hides reports whether we deleted the copy and the cache does not know yet.
// One that a finalizer holds is there until it is gone.
func (r record) hides(c *plan.Copy) bool {
	return r.copied == nil && r.deleted == c.UID && c.DeletionTimestamp == nil
}

func newWritten() *written { return &written{records: map[string]map[string]record{}} }

// put notes that we created or updated the copy.
func (w *written) put(c *plan.Copy) { w.store(c, record{copied: c, at: time.Now()}) }

// deleted notes that we deleted the copy.
func (w *written) deleted(c *plan.Copy) { w.store(c, record{deleted: c.UID, at: time.Now()}) }

func (w *written) store(c *plan.Copy, r record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.records[c.Namespace] == nil {
		w.records[c.Namespace] = map[string]record{}
	}
	w.records[c.Namespace][c.Name] = r
}

// seen notes that the cache holds the copy, and returns whether it is as our
// last write left it.
func (w *written) seen(c *plan.Copy) (own bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, found := w.records[c.Namespace][c.Name]
	switch {
	case !found:
		return false
	case r.copied != nil && older(c.ResourceVersion, r.copied.ResourceVersion):
		return false // from before our write, whose event is to come
	case r.hides(c):
		return false
	}
	w.drop(c.Namespace, c.Name)
	return r.copied != nil && r.copied.ResourceVersion == c.ResourceVersion
}

// gone notes that the cache has lost the copy; missed tells that it learned so
// from a list, which may have skipped other events.
func (w *written) gone(c *plan.Copy, missed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, found := w.records[c.Namespace][c.Name]
	if found && (missed || r.copied == nil || !older(c.ResourceVersion, r.copied.ResourceVersion)) {
		w.drop(c.Namespace, c.Name)
	}
}

func (w *written) drop(namespace, name string) {
	delete(w.records[namespace], name)
	if len(w.records[namespace]) == 0 {
		delete(w.records, namespace)
	}
}

// overlay returns the namespace's copies as they are after our own writes,
// from those in the cache.
func (w *written) overlay(namespace string, cached []*plan.Copy) []*plan.Copy {
	w.mu.Lock()
	defer w.mu.Unlock()
	records := w.records[namespace]
	if len(records) == 0 {
		return cached
	}
	var copies []*plan.Copy
	newer := map[string]bool{}
	for _, c := range cached {
		r, found := records[c.Name]
		switch {
		case found && r.hides(c):
			continue
		case found && r.copied != nil && !older(c.ResourceVersion, r.copied.ResourceVersion):
			newer[c.Name] = true
		case found && r.copied != nil:
			continue // replaced by the record below
		}
		copies = append(copies, c)
	}
	for name, r := range records {
		if r.copied != nil && !newer[name] {
			copies = append(copies, r.copied)
		}
	}
	return copies
}

// expire forgets writes whose event is overdue, and returns their namespaces.
func (w *written) expire(now time.Time) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var namespaces []string
	for namespace, records := range w.records {
		for name, r := range records {
			if now.Sub(r.at) > writtenLifetime {
				w.drop(namespace, name)
				namespaces = append(namespaces, namespace)
			}
		}
	}
	return namespaces
}
