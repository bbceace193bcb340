// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/tools/cache"

	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/pkg/model/v1alpha1"
	"cozystack.io/gpu/services/license-copier/internal/kube"
	"cozystack.io/gpu/services/license-copier/internal/plan"
)

// capacityInterval is the least time between two writes of a class's capacity,
// however fast pods come and go.
const capacityInterval = 5 * time.Second

// capacity says what of the classes' capacity may be published.
type capacity struct {
	// counting is set once all nodes and pods are known. Copies and conditions
	// do not wait for it.
	counting atomic.Bool
	// published holds when each class's capacity was last written.
	published sync.Map
}

// wait returns how long the class's capacity must not be written yet.
func (c *capacity) wait(class string) time.Duration {
	if at, found := c.published.Load(class); found {
		return max(0, time.Until(at.(time.Time).Add(capacityInterval)))
	}
	return 0
}

// startCounting counts the capacity of all classes, as soon as nodes and pods
// can be listed.
func (c *Controller) startCounting(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), c.caches.Nodes.HasSynced, c.caches.Pods.HasSynced) {
		return // told to end
	}
	c.log.Info("nodes and pods are known",
		zap.Int("nodes", len(c.caches.Nodes.GetStore().ListKeys())), zap.Int("pods", len(c.caches.Pods.GetStore().ListKeys())))
	c.capacity.counting.Store(true)
	c.touchClasses()
}

// countCapacity returns the class's capacity if it may be published, or nil. A
// class whose turn it is not yet comes back. An edit of the class is answered
// at once.
func (c *Controller) countCapacity(class *v1alpha1.GPUClass) (*v1alpha1.Capacity, error) {
	if !c.capacity.counting.Load() {
		return nil, nil
	}
	nodes, err := counted[model.Node](c.caches.Nodes, class)
	if err != nil {
		return nil, err
	}
	pods, err := counted[model.Pod](c.caches.Pods, class)
	if err != nil {
		return nil, err
	}
	capacity := model.Capacity(class, nodes, pods)
	setUnits(class.Name, capacity)
	wait := c.capacity.wait(class.Name)
	if wait > 0 && !reflect.DeepEqual(class.Status.Capacity, &capacity) && class.Status.ObservedGeneration == class.Generation {
		c.classes.AddAfter(class.Name, wait)
		return nil, nil
	}
	return &capacity, nil
}

// counted returns the nodes or pods that have the class's resource.
func counted[T model.Node | model.Pod](informer cache.SharedIndexInformer, class *v1alpha1.GPUClass) ([]T, error) {
	objects, err := informer.GetIndexer().ByIndex(kube.ByResource, class.Spec.ResourceName)
	if err != nil {
		return nil, fmt.Errorf("list what has the resource of gpuclass %s: %w", class.Name, err)
	}
	all := make([]T, len(objects))
	for i, object := range objects {
		all[i] = object.(*plan.Counted[T]).Of
	}
	return all, nil
}

// recounting returns a handler that has the classes counted again whose
// devices a changed node or pod has or had.
func recounting[T model.Node | model.Pod](c *Controller, devices func(T) model.Devices) cache.ResourceEventHandler {
	of := func(object any) T { return last[*plan.Counted[T]](object).Of }
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { c.recount(devices(of(object))) },
		UpdateFunc: func(before, after any) {
			if old, changed := of(before), of(after); !reflect.DeepEqual(old, changed) {
				c.recount(devices(old), devices(changed))
			}
		},
		DeleteFunc: func(object any) { c.recount(devices(of(object))) },
	}
}

// recount has the classes of these devices counted when that may be published.
func (c *Controller) recount(changed ...model.Devices) {
	if !c.capacity.counting.Load() {
		return
	}
	for _, class := range c.listClasses() {
		for _, devices := range changed {
			if _, found := devices[class.Spec.ResourceName]; found {
				c.classes.AddAfter(class.Name, max(statusDelay, c.capacity.wait(class.Name)))
				break
			}
		}
	}
}
