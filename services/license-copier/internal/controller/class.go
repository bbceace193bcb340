// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/pkg/model/v1alpha1"
	"cozystack.io/gpu/services/license-copier/internal/plan"
)

// reconcileClass judges the class's conditions and counts its capacity, and
// writes them if they say something else than before. While a Secret stands in
// the way of a copy it comes back to look again.
func (c *Controller) reconcileClass(ctx context.Context, name string) error {
	object, found, err := c.caches.Classes.GetStore().GetByKey(name)
	if err != nil {
		return fmt.Errorf("read gpuclass %s: %w", name, err)
	}
	if !found {
		c.patched.Delete(name)
		c.capacity.published.Delete(name)
		dropUnits(name)
		c.blocked.replace(name, nil)
		c.survey.drop(gpu.LicenseSecretName(name))
		return nil
	}
	class := object.(*v1alpha1.GPUClass)
	if version, ok := c.patched.Load(name); ok && older(class.ResourceVersion, version.(string)) {
		return nil // the event of our own patch is to come
	}
	classes := c.listClasses()
	namespaces, err := c.findBlocked(ctx, class, classes)
	if err != nil {
		return err
	}
	capacity, err := c.countCapacity(class)
	if err != nil {
		return err
	}
	facts := plan.Facts{Holder: conflictOf(name, classes), Sources: c.sources, Blocked: namespaces, Capacity: capacity}
	status, changed := plan.Status(class, facts, time.Now())
	if !changed {
		return nil
	}
	version, err := c.api.PatchStatus(ctx, class, status)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		c.classes.AddAfter(name, conflictDelay)
		return nil
	case err != nil:
		return err
	}
	c.patched.Store(name, version)
	if !equality.Semantic.DeepEqual(class.Status.Capacity, status.Capacity) {
		c.capacity.published.Store(name, time.Now())
	}
	c.log.Info("status", zap.String("outcome", "patched"), zap.String("class", name), zap.String("uid", string(class.UID)))
	for _, fault := range plan.Faults(class.Status, status) {
		c.events.Eventf(&corev1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "GPUClass",
			Name: class.Name, UID: class.UID, ResourceVersion: version,
		}, nil, corev1.EventTypeWarning, fault.Reason, "CopyLicense", "%s", fault.Message)
	}
	return nil
}

// findBlocked returns the namespaces where a Secret that is not ours stands in
// the way of the class's copy. A namespace where one has gone is looked at.
func (c *Controller) findBlocked(ctx context.Context, class *v1alpha1.GPUClass, classes []*v1alpha1.GPUClass) ([]string, error) {
	var namespaces []plan.Namespace
	for _, object := range c.caches.Namespaces.GetStore().List() {
		namespace := object.(*metav1.PartialObjectMetadata)
		namespaces = append(namespaces, plan.Namespace{Name: namespace.Name, Terminating: namespace.DeletionTimestamp != nil})
	}
	wanted := plan.Desired([]*v1alpha1.GPUClass{class}, namespaces, c.sources)
	var actual []*plan.Copy
	for _, w := range wanted {
		if copied := c.copy(w.Key); copied != nil {
			actual = append(actual, copied)
		}
	}
	steps := plan.Diff(wanted, actual, plan.Protected(classes, actual, c.sources))
	probed, err := c.probe(ctx, class.Name, steps)
	if err != nil {
		return nil, err
	}
	blocked := sets.New[string]()
	for _, step := range steps {
		if step.Verb == plan.Blocked {
			blocked.Insert(step.Namespace)
		}
	}
	for _, namespace := range c.blocked.replace(class.Name, blocked) {
		c.touch(namespace)
	}
	if len(blocked) > 0 {
		c.classes.AddAfter(class.Name, time.Until(probed.Add(probeInterval)))
	}
	return blocked.UnsortedList(), nil
}

// probe turns the steps that a Secret is in the way of into blocked ones, and
// returns when it was looked for. A look of a moment ago is good enough for a
// condition.
func (c *Controller) probe(ctx context.Context, class string, steps []plan.Step) (time.Time, error) {
	now := time.Now()
	for _, step := range steps {
		if step.Verb != plan.Create {
			continue
		}
		found, err := c.survey.of(ctx, gpu.LicenseSecretName(class), now.Add(-probeInterval+statusDelay))
		if err != nil {
			return now, err
		}
		plan.Block(steps, func(key plan.Key) bool { return found.namespaces.Has(key.Namespace) })
		return found.started, nil
	}
	return now, nil
}

// copy returns the copy of that name, or nil.
func (c *Controller) copy(key plan.Key) *plan.Copy {
	var cached []*plan.Copy
	if object, found, err := c.caches.Copies.GetStore().GetByKey(key.String()); err == nil && found {
		cached = append(cached, object.(*plan.Copy))
	}
	for _, copied := range c.written.overlay(key.Namespace, cached) {
		if copied.Name == key.Name {
			return copied
		}
	}
	return nil
}

// conflictOf returns the older class that has the class's resource name, or
// nothing.
func conflictOf(name string, classes []*v1alpha1.GPUClass) string {
	all := make([]v1alpha1.GPUClass, len(classes))
	for i, class := range classes {
		all[i] = *class
	}
	return model.Conflicts(all)[name]
}

// older reports whether resource version a is older than b.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}
