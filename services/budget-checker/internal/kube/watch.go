// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"sync/atomic"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/pkg/model/v1alpha1"
	"cozystack.io/gpu/services/budget-checker/internal/budget"
)

// Watch has the view follow what is counted until ctx ends. What a stored
// object amounts to is found by the function.
func (c *Clients) Watch(ctx context.Context, view *budget.View, amounts func(budget.Resource, json.RawMessage) model.Amounts) {
	for _, resource := range counted {
		follow(ctx, c.apps, string(resource), "", &object{}, feed{view, resource, amounts})
	}
}

// Watch has the book follow the ledgers, and sweeps their marks, until ctx ends.
// A ledger that is not known by its mark is left for Ensure, so nothing is lost
// if the marks cannot be read.
func (l *Ledgers) Watch(ctx context.Context, book *budget.Book) {
	if marks, err := l.readMarks(ctx); err != nil {
		l.log.Warn("cannot read the marks of ledgers", zap.Error(err))
	} else {
		l.remember(marks)
	}
	follow(ctx, l.clients.gpu, gpuBudgets, "", &v1alpha1.GPUBudget{}, ledgerFeed{l, book})
	go wait.JitterUntilWithContext(ctx, func(ctx context.Context) {
		// In case of a conflict another replica was quicker.
		if err := l.sweep(ctx, book); err != nil && !apierrors.IsConflict(err) {
			l.log.Warn("cannot take out the marks of ledgers that are gone", zap.Error(err))
		}
	}, sweepInterval, 0.5, true)
}

func follow(ctx context.Context, client rest.Interface, resource, labels string, example any, store cache.ReflectorStore) {
	listWatch := cache.NewFilteredListWatchFromClient(client, resource, metav1.NamespaceAll, func(o *metav1.ListOptions) { o.LabelSelector = labels })
	reflector := cache.NewReflectorWithOptions(listWatch, example, store, cache.ReflectorOptions{Name: resource})
	go reflector.RunWithContext(ctx)
}

// Hints are caches of what warnings are about. No decision rests on them.
type Hints struct {
	classes, entitled hintStore
}

// hintStore tells whether it has been filled.
type hintStore struct {
	cache.Store
	filled *atomic.Bool
}

func newHintStore() hintStore {
	return hintStore{cache.NewStore(cache.MetaNamespaceKeyFunc), &atomic.Bool{}}
}

// Replace fills the store.
func (s hintStore) Replace(items []any, version string) error {
	defer s.filled.Store(true)
	return s.Store.Replace(items, version)
}

// Hints returns the caches, which are followed until ctx ends.
func (c *Clients) Hints(ctx context.Context) *Hints {
	h := &Hints{classes: newHintStore(), entitled: newHintStore()}
	follow(ctx, c.gpu, "gpuclasses", "", &v1alpha1.GPUClass{}, h.classes)
	follow(ctx, c.core, "namespaces", gpu.LabelNamespaceVGPU+"="+gpu.LabelValueTrue, &corev1.Namespace{}, h.entitled)
	return h
}

// Known reports whether the caches have been filled: before, what they lack may
// exist.
func (h *Hints) Known() bool { return h.classes.filled.Load() && h.entitled.filled.Load() }

// Class returns the GPUClass of that name.
func (h *Hints) Class(name string) (*v1alpha1.GPUClass, bool) {
	class, found, err := h.classes.GetByKey(name)
	if !found || err != nil {
		return nil, false
	}
	return class.(*v1alpha1.GPUClass), true
}

// Entitled reports whether the namespace is entitled to vGPU classes.
func (h *Hints) Entitled(namespace string) bool {
	_, found, err := h.entitled.GetByKey(namespace)
	return found && err == nil
}
