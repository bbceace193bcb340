// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/sets"
)

func TestOneLookServesAllThatWaitForIt(t *testing.T) {
	looks := 0
	s := newSurvey(func(context.Context, string) (sets.Set[string], error) {
		looks++ // looks for one name never overlap
		time.Sleep(time.Millisecond)
		return sets.New("a"), nil
	})
	since := time.Now()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			found, err := s.of(t.Context(), "x", since)
			assert.NoError(t, err)
			assert.True(t, found.namespaces.Has("a"))
			assert.False(t, found.started.Before(since))
		})
	}
	wg.Wait()
	assert.Equal(t, 1, looks)

	_, err := s.of(t.Context(), "x", time.Now())
	require.NoError(t, err)
	assert.Equal(t, 2, looks, "a later reason needs a later look")
	_, err = s.of(t.Context(), "y", since)
	require.NoError(t, err)
	assert.Equal(t, 3, looks, "and so does another name")
}

func TestALookThatFailedIsNotTrusted(t *testing.T) {
	fails := true
	s := newSurvey(func(context.Context, string) (sets.Set[string], error) {
		if fails {
			return nil, errors.New("no answer")
		}
		return sets.New[string](), nil
	})
	since := time.Now()
	_, err := s.of(t.Context(), "x", since)
	require.ErrorContains(t, err, "no answer")
	fails = false
	_, err = s.of(t.Context(), "x", since)
	require.NoError(t, err)
}

func TestBlockedNamespacesThatAreSoNoMoreAreReturned(t *testing.T) {
	b := newBlocked()
	assert.True(t, b.add("l40s", "a"))
	assert.False(t, b.add("l40s", "a"))
	assert.True(t, b.add("l40s", "b"))
	assert.Equal(t, []string{"a"}, b.replace("l40s", sets.New("b", "c")))
	assert.ElementsMatch(t, []string{"b", "c"}, b.replace("l40s", nil))
	assert.Empty(t, b.replace("l40s", nil))
}
