// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/services/budget-checker/internal/budget"
)

// counted are the kinds that are counted, and their resources.
var counted = map[string]budget.Resource{
	"VMInstance":      budget.VMInstances,
	"KubernetesNodes": budget.KubernetesNodes,
	"Tenant":          budget.Tenants,
}

// object is any object that is counted. What it amounts to takes the place of
// its spec as soon as it has been read: there are thousands of them.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec    json.RawMessage `json:"spec"`
	amounts model.Amounts
}

type objectList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []object `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (o *object) DeepCopyObject() runtime.Object {
	clone := &object{TypeMeta: o.TypeMeta, Spec: append(json.RawMessage(nil), o.Spec...), amounts: o.amounts}
	o.DeepCopyInto(&clone.ObjectMeta)
	return clone
}

// DeepCopyObject implements runtime.Object.
func (l *objectList) DeepCopyObject() runtime.Object {
	clone := &objectList{TypeMeta: l.TypeMeta, Items: make([]object, len(l.Items))}
	l.ListMeta.DeepCopyInto(&clone.ListMeta)
	for i := range l.Items {
		clone.Items[i] = *l.Items[i].DeepCopyObject().(*object)
	}
	return clone
}

// feed hands what a reflector sees of one resource to the view.
type feed struct {
	view     *budget.View
	resource budget.Resource
	amounts  func(budget.Resource, json.RawMessage) model.Amounts
}

var _ cache.TransformingStore = feed{}

// Transformer has a reflector keep little of what it lists.
func (f feed) Transformer() cache.TransformFunc {
	return func(item any) (any, error) {
		if o, ok := item.(*object); ok && o.Spec != nil {
			o.amounts, o.Spec = f.amounts(f.resource, o.Spec), nil
			o.ObjectMeta = metav1.ObjectMeta{
				Namespace: o.Namespace, Name: o.Name, ResourceVersion: o.ResourceVersion, DeletionTimestamp: o.DeletionTimestamp,
			}
		}
		return item, nil
	}
}

func (f feed) read(item any) (budget.Key, budget.Stored) {
	o := item.(*object)
	_, _ = f.Transformer()(o)
	return budget.Key{Resource: f.resource, Namespace: o.Namespace, Name: o.Name},
		budget.Stored{Amounts: o.amounts, Version: o.ResourceVersion, Terminating: o.DeletionTimestamp != nil}
}

// Add implements cache.ReflectorStore, as do the methods that follow.
func (f feed) Add(item any) error {
	key, stored := f.read(item)
	f.view.Set(key, stored)
	return nil
}

// Update records a changed object.
func (f feed) Update(item any) error { return f.Add(item) }

// Delete records that an object is gone.
func (f feed) Delete(item any) error {
	key, stored := f.read(item)
	f.view.Remove(key, stored.Version)
	return nil
}

// Replace records all objects.
func (f feed) Replace(items []any, version string) error {
	objects := make(map[budget.Key]budget.Stored, len(items))
	for _, item := range items {
		key, stored := f.read(item)
		objects[key] = stored
	}
	f.view.Replace(f.resource, objects, version)
	return nil
}

// Resync has nothing to do.
func (f feed) Resync() error { return nil }

// UpdateResourceVersion records how far the resource has been followed.
func (f feed) UpdateResourceVersion(version string) { f.view.Progress(f.resource, version) }
