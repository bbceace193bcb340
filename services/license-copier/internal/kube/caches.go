// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model/v1alpha1"
	"cozystack.io/gpu/services/license-copier/internal/plan"
)

// Caches hold what decisions are made from, and nothing else of the cluster:
// selectors keep all other objects on the server, and of what comes through
// only the fields that are read are kept.
type Caches struct {
	Classes    cache.SharedIndexInformer // *v1alpha1.GPUClass
	Namespaces cache.SharedIndexInformer // *metav1.PartialObjectMetadata, entitled ones
	Copies     cache.SharedIndexInformer // *plan.Copy, indexed by cache.NamespaceIndex
	Sources    cache.SharedIndexInformer // *plan.Source, Secrets of the licence namespace
	Nodes      cache.SharedIndexInformer // *plan.Counted[model.Node], indexed by ByResource
	Pods       cache.SharedIndexInformer // *plan.Counted[model.Pod], indexed by ByResource, those that may hold devices
}

// NewCaches returns caches that are filled once they run.
func NewCaches(c *Clients, licenseNamespace string) (*Caches, error) {
	copies := c.core.Secrets(metav1.NamespaceAll)
	sources := c.core.Secrets(licenseNamespace)
	namespaces := c.metadata.Resource(corev1.SchemeGroupVersion.WithResource("namespaces"))
	classes := cache.NewFilteredListWatchFromClient(c.classes, "gpuclasses", metav1.NamespaceAll, func(*metav1.ListOptions) {})

	caches := &Caches{
		Classes:    informer(classes, &v1alpha1.GPUClass{}),
		Namespaces: informer(listWatch(metav1.ListOptions{LabelSelector: gpu.LabelNamespaceVGPU + "=" + gpu.LabelValueTrue}, metadataList(namespaces), namespaces.Watch), &metav1.PartialObjectMetadata{}),
		Copies: informer(listWatch(metav1.ListOptions{LabelSelector: gpu.LabelGPUClass}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return copies.List(ctx, o)
		}, copies.Watch), &corev1.Secret{}),
		Sources: informer(listWatch(metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return sources.List(ctx, o)
		}, sources.Watch), &corev1.Secret{}),
		Nodes: nodeInformer(c),
		Pods:  podInformer(c),
	}
	for _, t := range []struct {
		informer  cache.SharedIndexInformer
		transform cache.TransformFunc
	}{
		{caches.Classes, dropManagedFields}, {caches.Namespaces, slimNamespace}, {caches.Copies, toCopy}, {caches.Sources, toSource},
		{caches.Nodes, toNode}, {caches.Pods, toPod},
	} {
		if err := t.informer.SetTransform(t.transform); err != nil {
			return nil, fmt.Errorf("set up a cache: %w", err)
		}
	}
	return caches, nil
}

func (c *Caches) all() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{c.Classes, c.Namespaces, c.Copies, c.Sources, c.Nodes, c.Pods}
}

// Run fills the caches and keeps them up to date until ctx ends.
func (c *Caches) Run(ctx context.Context) {
	for _, informer := range c.all() {
		go informer.RunWithContext(ctx)
	}
}

func informer(lw cache.ListerWatcher, example runtime.Object) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(lw, example, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

func listWatch(
	selectors metav1.ListOptions,
	list func(context.Context, metav1.ListOptions) (runtime.Object, error),
	watchFrom func(context.Context, metav1.ListOptions) (watch.Interface, error),
) cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector, o.FieldSelector = selectors.LabelSelector, selectors.FieldSelector
			return list(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector, o.FieldSelector = selectors.LabelSelector, selectors.FieldSelector
			return watchFrom(ctx, o)
		},
	}
}

func metadataList(c metadata.ResourceInterface) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, o) }
}

// The transforms may be handed what they returned before.

func dropManagedFields(object any) (any, error) {
	if class, ok := object.(*v1alpha1.GPUClass); ok {
		class.ManagedFields = nil
	}
	return object, nil
}

func slimNamespace(object any) (any, error) {
	if namespace, ok := object.(*metav1.PartialObjectMetadata); ok {
		namespace.ObjectMeta = slimMeta(namespace.ObjectMeta)
	}
	return object, nil
}

func toCopy(object any) (any, error) {
	if secret, ok := object.(*corev1.Secret); ok {
		return newCopy(secret), nil
	}
	return object, nil
}

func newCopy(secret *corev1.Secret) *plan.Copy {
	return &plan.Copy{
		ObjectMeta: slimMeta(secret.ObjectMeta),
		Type:       secret.Type,
		Immutable:  secret.Immutable != nil && *secret.Immutable,
		Digest:     plan.NewDigest(secret.Data),
		Ours: slices.ContainsFunc(secret.ManagedFields, func(fields metav1.ManagedFieldsEntry) bool {
			return fields.Manager == fieldManager
		}),
	}
}

func toSource(object any) (any, error) {
	secret, ok := object.(*corev1.Secret)
	if !ok {
		return object, nil
	}
	source := &plan.Source{ObjectMeta: slimMeta(secret.ObjectMeta), Data: map[string][]byte{}}
	for _, key := range []string{gpu.LicenseTokenKey, gpu.LicenseGriddConfKey} {
		if value, found := secret.Data[key]; found {
			source.Data[key] = value
		}
	}
	source.Digest = plan.NewDigest(source.Data)
	return source, nil
}

// slimMeta keeps what an object is known by, and the label of a copy.
func slimMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	slim := metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID,
		ResourceVersion: m.ResourceVersion, DeletionTimestamp: m.DeletionTimestamp,
	}
	if class, found := m.Labels[gpu.LabelGPUClass]; found {
		slim.Labels = labels.Set{gpu.LabelGPUClass: class}
	}
	return slim
}
