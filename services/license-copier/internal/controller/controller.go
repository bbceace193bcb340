// SPDX-License-Identifier: Apache-2.0

// Package controller keeps the copies of licence Secrets, and the status of
// GPUClasses, as package plan decides.
//
// There are two kinds of work. A namespace's is to write what its copies lack;
// a class's is to judge its conditions and to count its capacity. Both start
// from the caches and are done again whenever something they read has changed.
package controller

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"

	"cozystack.io/gpu/pkg/model/v1alpha1"
	"cozystack.io/gpu/services/license-copier/internal/kube"
	"cozystack.io/gpu/services/license-copier/internal/plan"
)

const (
	// probeInterval is how often a Secret that stands in the way is looked
	// for. No cache holds it, so its going is no event.
	probeInterval = 12 * time.Second
	// statusDelay collects changes of many namespaces into one of the class.
	statusDelay = 500 * time.Millisecond
	// conflictDelay is how long the event is awaited that explains why a
	// write was refused.
	conflictDelay = time.Second
	// namespaceGoneDelay lets the events of a namespace's Secrets arrive once
	// the namespace is gone.
	namespaceGoneDelay = 2 * time.Second

	leastRetryDelay = 50 * time.Millisecond
	mostRetryDelay  = 30 * time.Second
)

// API is what the controller reads and writes besides its caches.
type API interface {
	Foreign(ctx context.Context, name string) (sets.Set[string], error)
	Create(ctx context.Context, key plan.Key, class string, source *plan.Source) (*plan.Copy, error)
	Update(ctx context.Context, have *plan.Copy, class string, source *plan.Source) (*plan.Copy, error)
	Delete(ctx context.Context, have *plan.Copy) error
	PatchStatus(ctx context.Context, class *v1alpha1.GPUClass, status v1alpha1.GPUClassStatus) (string, error)
}

var _ API = (*kube.Clients)(nil)

// Controller keeps copies and the status of classes. It is made for one run.
type Controller struct {
	api     API
	caches  *kube.Caches
	sources plan.Sources
	events  events.EventRecorder
	log     *zap.Logger

	namespaces workqueue.TypedRateLimitingInterface[string]
	classes    workqueue.TypedRateLimitingInterface[string]
	// dirty says when a namespace last had reason to be looked at.
	dirty   *stamps
	written *written
	survey  *survey
	blocked *blocked
	tally   *Tally
	// patched holds the resource version that each class got from our last
	// patch: an older one in the cache is not judged.
	patched  sync.Map
	capacity capacity
}

// New returns a controller for the caches, which must not run yet. What it
// finds is counted in the tally.
func New(api API, caches *kube.Caches, licenseNamespace string, recorder events.EventRecorder, tally *Tally, log *zap.Logger) (*Controller, error) {
	c := &Controller{
		api: api, caches: caches, events: recorder, log: log,
		sources:    plan.Sources{Namespace: licenseNamespace},
		namespaces: newQueue(),
		classes:    newQueue(),
		dirty:      &stamps{at: map[string]time.Time{}},
		written:    newWritten(),
		survey:     newSurvey(api.Foreign),
		blocked:    newBlocked(),
		tally:      tally,
	}
	c.sources.Secret = func(name string) *plan.Source {
		object, found, err := caches.Sources.GetStore().GetByKey(licenseNamespace + "/" + name)
		if err != nil || !found {
			return nil
		}
		return object.(*plan.Source)
	}
	return c, c.watch()
}

func newQueue() workqueue.TypedRateLimitingInterface[string] {
	return workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](leastRetryDelay, mostRetryDelay))
}

// Run keeps copies and the status of classes until ctx ends, then finishes the
// writes that have begun.
func (c *Controller) Run(ctx context.Context, workers int) error {
	c.caches.Run(ctx)
	var synced []cache.InformerSynced
	for _, informer := range []cache.SharedIndexInformer{c.caches.Classes, c.caches.Namespaces, c.caches.Copies, c.caches.Sources} {
		synced = append(synced, informer.HasSynced)
	}
	start := time.Now()
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil // told to end
	}
	c.log.Info("caches are filled", zap.Duration("duration", time.Since(start)),
		zap.Int("namespaces", len(c.caches.Namespaces.GetStore().ListKeys())), zap.Int("copies", len(c.caches.Copies.GetStore().ListKeys())))

	c.tally.work(true)
	defer c.tally.work(false)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() { c.work(ctx, c.namespaces, c.reconcileNamespace) })
	}
	wg.Go(func() { c.work(ctx, c.classes, c.reconcileClass) })
	wg.Go(func() { c.startCounting(ctx) })
	wg.Go(func() {
		wait.UntilWithContext(ctx, func(context.Context) {
			for _, namespace := range c.written.expire(time.Now()) {
				c.touch(namespace)
			}
		}, writtenLifetime/2)
	})
	<-ctx.Done()
	c.namespaces.ShutDown()
	c.classes.ShutDown()
	wg.Wait()
	return nil
}

func (c *Controller) work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], reconcile func(context.Context, string) error) {
	for {
		item, shutdown := queue.Get()
		if shutdown {
			return
		}
		err := ctx.Err()
		if err == nil {
			// A write that has begun is finished when the controller ends.
			err = c.guard(context.WithoutCancel(ctx), item, reconcile)
		}
		switch {
		case ctx.Err() != nil:
		case err != nil:
			c.log.Warn("failed, will be tried again", zap.String("item", item), zap.Error(err))
			queue.AddRateLimited(item)
		default:
			queue.Forget(item)
		}
		queue.Done(item)
	}
}

// reconcileTimeout bounds the work on one item.
const reconcileTimeout = time.Minute

func (c *Controller) guard(ctx context.Context, item string, reconcile func(context.Context, string) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			panics.Inc()
			c.log.Error("panic", zap.String("item", item), zap.Any("panic", r), zap.ByteString("stack", debug.Stack()))
			err = errors.Join(err, fmt.Errorf("panic: %v", r))
		}
	}()
	return reconcile(ctx, item)
}

// touch has a namespace looked at, with nothing read before counting.
func (c *Controller) touch(namespace string) {
	c.dirty.set(namespace, time.Now())
	c.namespaces.Add(namespace)
}

// touchAll does that to every namespace that has copies or must have some.
func (c *Controller) touchAll() {
	for _, namespace := range c.caches.Namespaces.GetStore().ListKeys() {
		c.touch(namespace)
	}
	for _, namespace := range c.caches.Copies.GetIndexer().ListIndexFuncValues(cache.NamespaceIndex) {
		c.touch(namespace)
	}
}

func (c *Controller) touchClasses() {
	for _, class := range c.caches.Classes.GetStore().ListKeys() {
		c.classes.Add(class)
	}
}

func (c *Controller) listClasses() []*v1alpha1.GPUClass {
	objects := c.caches.Classes.GetStore().List()
	classes := make([]*v1alpha1.GPUClass, len(objects))
	for i, object := range objects {
		classes[i] = object.(*v1alpha1.GPUClass)
	}
	return classes
}
