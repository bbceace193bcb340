// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/pkg/model/v1alpha1"
	"cozystack.io/gpu/services/license-copier/internal/plan"
)

// watch turns each event into the work that it gives reason for.
func (c *Controller) watch() error {
	for _, h := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{c.caches.Classes, cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { c.touchAll(); c.touchClasses() },
			UpdateFunc: func(before, after any) {
				old, class := before.(*v1alpha1.GPUClass), after.(*v1alpha1.GPUClass)
				if old.UID != class.UID || !equality.Semantic.DeepEqual(old.Spec, class.Spec) {
					c.touchAll()
					c.touchClasses()
					return
				}
				c.classes.Add(class.Name)
			},
			DeleteFunc: func(object any) {
				c.touchAll()
				c.touchClasses()
				c.classes.Add(last[*v1alpha1.GPUClass](object).Name)
			},
		}},
		{c.caches.Namespaces, cache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) { c.touch(object.(*metav1.PartialObjectMetadata).Name) },
			UpdateFunc: func(before, after any) {
				old, namespace := before.(*metav1.PartialObjectMetadata), after.(*metav1.PartialObjectMetadata)
				if old.UID != namespace.UID || (old.DeletionTimestamp == nil) != (namespace.DeletionTimestamp == nil) {
					c.touch(namespace.Name)
				}
			},
			DeleteFunc: func(object any) {
				if namespace := last[*metav1.PartialObjectMetadata](object); namespace.DeletionTimestamp == nil {
					c.touch(namespace.Name) // lost the label
				} else {
					c.namespaces.AddAfter(namespace.Name, namespaceGoneDelay)
				}
			},
		}},
		{c.caches.Sources, cache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) { c.sourceChanged(object.(*plan.Source).Name) },
			UpdateFunc: func(before, after any) {
				if source := after.(*plan.Source); before.(*plan.Source).Digest != source.Digest {
					c.sourceChanged(source.Name)
				}
			},
			DeleteFunc: func(object any) { c.sourceChanged(last[*plan.Source](object).Name) },
		}},
		{c.caches.Copies, cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { c.copyChanged(object.(*plan.Copy)) },
			UpdateFunc: func(_, after any) { c.copyChanged(after.(*plan.Copy)) },
			DeleteFunc: func(object any) {
				_, missed := object.(cache.DeletedFinalStateUnknown)
				gone := last[*plan.Copy](object)
				c.written.gone(gone, missed)
				c.touch(gone.Namespace)
			},
		}},
		{c.caches.Nodes, recounting(c, func(node model.Node) model.Devices { return node.Devices })},
		{c.caches.Pods, recounting(c, func(pod model.Pod) model.Devices { return pod.Devices })},
	} {
		if _, err := h.informer.AddEventHandler(h.handler); err != nil {
			return fmt.Errorf("watch a cache: %w", err)
		}
	}
	return nil
}

func (c *Controller) copyChanged(copied *plan.Copy) {
	if own := c.written.seen(copied); !own {
		c.touch(copied.Namespace)
	}
}

func (c *Controller) sourceChanged(name string) {
	named := false
	for _, class := range c.listClasses() {
		if license := class.Spec.License; license != nil && license.SecretName == name {
			named = true
			c.classes.Add(class.Name)
		}
	}
	if named {
		c.touchAll()
	}
}

// last returns the last known state of an object that is gone.
func last[T any](object any) T {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	return object.(T)
}
