// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"cozystack.io/gpu/services/license-copier/internal/plan"
)

// reconcileNamespace writes what the namespace's copies lack.
func (c *Controller) reconcileNamespace(ctx context.Context, name string) error {
	since := c.dirty.get(name)
	namespace, entitled := c.namespace(name)
	if entitled && namespace.Terminating {
		c.tally.set(name, nil, since)
		return nil // all it holds goes with it
	}
	var namespaces []plan.Namespace
	if entitled {
		namespaces = append(namespaces, namespace)
	}
	copies, err := c.copies(name)
	if err != nil {
		return err
	}
	classes := c.listClasses()
	steps := plan.Diff(plan.Desired(classes, namespaces, c.sources), copies, plan.Protected(classes, copies, c.sources))
	if err := c.block(ctx, steps, since); err != nil {
		return err
	}
	var errs []error
	states := map[string]State{}
	for _, step := range steps {
		state, err := c.perform(ctx, step)
		errs = append(errs, err)
		if step.Class != "" {
			states[step.Class] = state
		}
	}
	c.tally.set(name, states, since)
	if len(steps) == 0 && !entitled {
		c.dirty.drop(name)
	}
	return errors.Join(errs...)
}

// namespace returns the namespace, and whether it is entitled.
func (c *Controller) namespace(name string) (plan.Namespace, bool) {
	object, found, err := c.caches.Namespaces.GetStore().GetByKey(name)
	if err != nil || !found {
		return plan.Namespace{}, false
	}
	return plan.Namespace{Name: name, Terminating: object.(*metav1.PartialObjectMetadata).DeletionTimestamp != nil}, true
}

// copies returns the copies in the namespace, those included that we wrote a
// moment ago and have not seen yet.
func (c *Controller) copies(namespace string) ([]*plan.Copy, error) {
	objects, err := c.caches.Copies.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil, fmt.Errorf("list the copies in namespace %s: %w", namespace, err)
	}
	cached := make([]*plan.Copy, len(objects))
	for i, object := range objects {
		cached[i] = object.(*plan.Copy)
	}
	return c.written.overlay(namespace, cached), nil
}

// block finds out which of the copies to be created have a Secret in their
// way that is not ours. No write is tried to learn it.
func (c *Controller) block(ctx context.Context, steps []plan.Step, since time.Time) error {
	for i := range steps {
		step := &steps[i]
		if step.Verb == plan.Create {
			foreign, err := c.survey.of(ctx, step.Name, since)
			if err != nil {
				return err
			}
			plan.Block(steps[i:i+1], func(key plan.Key) bool { return foreign.namespaces.Has(key.Namespace) })
		}
		if step.Verb == plan.Blocked && c.blocked.add(step.Class, step.Namespace) {
			c.log.Warn("a secret that is no copy stands in the way", zap.String("outcome", "blocked"),
				zap.String("namespace", step.Namespace), zap.String("name", step.Name), zap.String("class", step.Class))
			c.classes.AddAfter(step.Class, statusDelay)
		}
	}
	return nil
}

// perform does what the step says and returns how it stands with the copy
// afterwards.
func (c *Controller) perform(ctx context.Context, step plan.Step) (State, error) {
	start := time.Now()
	var result *plan.Copy
	var err error
	switch step.Verb {
	case plan.Create:
		if result, err = c.api.Create(ctx, step.Key, step.Class, step.Source); err == nil {
			c.written.put(result)
		}
	case plan.Update:
		if result, err = c.api.Update(ctx, step.Have, step.Class, step.Source); err == nil {
			c.written.put(result)
		}
	case plan.Delete:
		if result, err = step.Have, c.api.Delete(ctx, step.Have); err == nil {
			c.written.deleted(step.Have)
		}
	case plan.Blocked:
		return InTheWay, nil
	default:
		if step.Verb == plan.Keep || step.Verb == plan.Hold && step.Have != nil {
			return Present, nil
		}
		return Absent, nil
	}
	outcome, err := c.outcome(step, err)
	writes.WithLabelValues(string(step.Verb), outcome).Inc()
	fields := []zap.Field{
		zap.String("verb", string(step.Verb)), zap.String("outcome", outcome),
		zap.String("namespace", step.Namespace), zap.String("name", step.Name), zap.String("class", step.Class),
		zap.Duration("duration", time.Since(start)),
	}
	if result != nil {
		fields = append(fields, zap.String("uid", string(result.UID)))
	}
	if err != nil {
		fields = append(fields, zap.Error(err))
	}
	c.log.Info("write", fields...)
	if outcome == succeeded && step.Verb != plan.Delete {
		return Present, err
	}
	return Absent, err
}

const succeeded = "success"

// outcome names how a write ended. It keeps the error of one that must be
// tried again as it was.
func (c *Controller) outcome(step plan.Step, err error) (string, error) {
	switch {
	case err == nil:
		return succeeded, nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return "terminating", nil // its end is an event
	case apierrors.IsNotFound(err):
		return "gone", nil // an event that has not arrived yet
	case apierrors.IsAlreadyExists(err):
		// Somebody was quicker. What the name's owner is must be asked anew.
		c.dirty.set(step.Namespace, time.Now())
		c.namespaces.AddAfter(step.Namespace, conflictDelay)
		return "exists", nil
	case apierrors.IsConflict(err):
		c.namespaces.AddAfter(step.Namespace, conflictDelay)
		return "conflict", nil
	default:
		return "error", err
	}
}
