// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
)

// survey finds the Secrets that have a copy's name and are none. One look
// serves all namespaces that wait for one, so a fan-out costs one read a
// class, not one a namespace.
type survey struct {
	look func(ctx context.Context, name string) (sets.Set[string], error)

	mu     sync.Mutex
	byName map[string]*lookout
}

// lookout holds the last look for one name; its lock is held while looking.
type lookout struct {
	mu   sync.Mutex
	last found
}

// found is what a look found that began at started.
type found struct {
	started    time.Time
	namespaces sets.Set[string]
}

func newSurvey(look func(context.Context, string) (sets.Set[string], error)) *survey {
	return &survey{look: look, byName: map[string]*lookout{}}
}

// of returns what a look found that began at the time or later.
func (s *survey) of(ctx context.Context, name string, notBefore time.Time) (found, error) {
	s.mu.Lock()
	l := s.byName[name]
	if l == nil {
		l = &lookout{}
		s.byName[name] = l
	}
	s.mu.Unlock()

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last.namespaces != nil && !l.last.started.Before(notBefore) {
		return l.last, nil
	}
	started := time.Now()
	namespaces, err := s.look(ctx, name)
	if err != nil {
		return found{}, err
	}
	l.last = found{started: started, namespaces: namespaces}
	return l.last, nil
}

func (s *survey) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byName, name)
}

// stamps hold a time by namespace.
type stamps struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (s *stamps) set(namespace string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at[namespace] = at
}

// get returns the namespace's time; now if it has none.
func (s *stamps) get(namespace string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, found := s.at[namespace]; found {
		return at
	}
	return time.Now()
}

func (s *stamps) drop(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.at, namespace)
}

// blocked holds, by class, the namespaces that are known to have a Secret in
// the way of the copy.
type blocked struct {
	mu      sync.Mutex
	byClass map[string]sets.Set[string]
}

func newBlocked() *blocked { return &blocked{byClass: map[string]sets.Set[string]{}} }

// add returns whether the namespace was not known.
func (b *blocked) add(class, namespace string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byClass[class].Has(namespace) {
		return false
	}
	if b.byClass[class] == nil {
		b.byClass[class] = sets.New[string]()
	}
	b.byClass[class].Insert(namespace)
	return true
}

// replace sets the class's namespaces and returns those that are so no more.
func (b *blocked) replace(class string, namespaces sets.Set[string]) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	no := b.byClass[class].Difference(namespaces).UnsortedList()
	if len(namespaces) == 0 {
		delete(b.byClass, class)
	} else {
		b.byClass[class] = namespaces.Clone()
	}
	return no
}
