// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/services/license-copier/internal/plan"
)

// ByResource indexes nodes and pods by the extended resources that they offer
// or request.
const ByResource = "resource"

// holdingPods selects the pods that may hold devices: those bound to a node and
// not finished. One that finishes leaves the cache as if it was deleted.
var holdingPods = fields.AndSelectors(
	fields.OneTermNotEqualSelector("spec.nodeName", ""),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
).String()

func nodeInformer(c *Clients) cache.SharedIndexInformer {
	nodes := c.core.Nodes()
	return cache.NewSharedIndexInformer(listWatch(metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return nodes.List(ctx, o)
	}, nodes.Watch), &corev1.Node{}, 0, cache.Indexers{ByResource: func(object any) ([]string, error) {
		return object.(*plan.Counted[model.Node]).Of.Devices.Names(), nil
	}})
}

func podInformer(c *Clients) cache.SharedIndexInformer {
	pods := c.core.Pods(metav1.NamespaceAll)
	return cache.NewSharedIndexInformer(listWatch(metav1.ListOptions{FieldSelector: holdingPods}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return pods.List(ctx, o)
	}, pods.Watch), &corev1.Pod{}, 0, cache.Indexers{ByResource: func(object any) ([]string, error) {
		return object.(*plan.Counted[model.Pod]).Of.Devices.Names(), nil
	}})
}

// A class that is created later may be of any extended resource, so the
// transforms keep them all.

func toNode(object any) (any, error) {
	if node, ok := object.(*corev1.Node); ok {
		return &plan.Counted[model.Node]{ObjectMeta: slimMeta(node.ObjectMeta), Of: model.NewNode(node)}, nil
	}
	return object, nil
}

func toPod(object any) (any, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		return &plan.Counted[model.Pod]{ObjectMeta: slimMeta(pod.ObjectMeta), Of: model.NewPod(pod)}, nil
	}
	return object, nil
}
