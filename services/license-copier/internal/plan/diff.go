// SPDX-License-Identifier: Apache-2.0

package plan

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Verb says what a step does about one Secret.
type Verb string

const (
	// Create, Update and Delete are the writes. An Update is decided on Have
	// and must fail on any other state of the Secret, and so must a Delete. A
	// wanted copy that cannot be updated in place is deleted; once it is gone,
	// the next step creates it.
	Create Verb = "create"
	Update Verb = "update"
	Delete Verb = "delete"

	// Keep means that the copy is as wanted.
	Keep Verb = "keep"
	// Hold means that nothing may be written while the source is missing.
	Hold Verb = "hold"
	// Wait means that the old copy is being deleted and not gone yet.
	Wait Verb = "wait"
	// Blocked means that a Secret stands in the copy's place that is not ours.
	Blocked Verb = "blocked"
)

// Step is what is to be done about one Secret.
type Step struct {
	Verb Verb
	Key
	// Class is the class whose copy is wanted; empty when none is.
	Class string
	// Source is what a Create or Update writes.
	Source *Source
	// Have is the copy that an Update or Delete was decided on.
	Have *Copy
}

// Diff returns a step for every wanted copy, and one for every copy that must
// go. The actual copies must be of the namespaces, and of the classes, that
// wanted covers: what is not wanted is deleted. Protected Secrets are never
// written.
func Diff(wanted []Wanted, actual []*Copy, protected sets.Set[Key]) []Step {
	have := make(map[Key]*Copy, len(actual))
	for _, c := range actual {
		have[Key{Namespace: c.Namespace, Name: c.Name}] = c
	}
	steps := make([]Step, 0, len(wanted))
	for _, w := range wanted {
		c := have[w.Key]
		delete(have, w.Key)
		step := Step{Key: w.Key, Class: w.Class, Source: w.Source, Have: c, Verb: verb(w, c)}
		if protected.Has(w.Key) {
			step.Verb = Blocked
		}
		steps = append(steps, step)
	}
	for _, c := range actual {
		key := Key{Namespace: c.Namespace, Name: c.Name}
		if have[key] == nil || protected.Has(key) || !isCopyName(c.Name) || c.DeletionTimestamp != nil {
			continue
		}
		steps = append(steps, Step{Key: key, Have: c, Verb: Delete})
	}
	return steps
}

func verb(w Wanted, c *Copy) Verb {
	switch {
	case w.Source == nil:
		return Hold
	case c == nil:
		return Create
	case c.DeletionTimestamp != nil:
		return Wait
	case c.Immutable || c.Type != corev1.SecretTypeOpaque:
		return Delete
	case c.Class() != w.Class || c.Digest != w.Source.Digest:
		return Update
	default:
		return Keep
	}
}

// Block turns each Create where a Secret without LabelGPUClass already is into
// Blocked.
func Block(steps []Step, foreign func(Key) bool) {
	for i := range steps {
		if steps[i].Verb == Create && foreign(steps[i].Key) {
			steps[i].Verb = Blocked
		}
	}
}
