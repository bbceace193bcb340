// SPDX-License-Identifier: Apache-2.0

// Package nodekeeper stands in for what runs on the nodes of a development
// cluster: the kubelet, which keeps its node ready and reports its pods as
// running, and KubeVirt's virt-handler, which reports its VMs as running. No
// container and no guest ever starts.
//
// KWOK would do the kubelet's part, but neither wait for a pod's Secrets nor
// know a VM, and the latter two are most of this package.
package nodekeeper

import (
	"context"
	"fmt"
	"log"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

var vmis = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}

// retry is the pause before something is looked at again that could not be
// dealt with yet, such as a pod without its Secret.
const retry = 250 * time.Millisecond

// keeper does its work under two identities: KubeVirt takes a VMI's status
// only from its own components.
type keeper struct {
	kube    kubernetes.Interface
	handler dynamic.NamespaceableResourceInterface // of VMIs, as virt-handler
	pods    cache.SharedIndexInformer
	vmis    cache.SharedIndexInformer
}

// Run stands in for the nodes' programs until ctx ends.
func Run(ctx context.Context, config, handlerConfig *rest.Config) error {
	config, handlerConfig = rest.CopyConfig(config), rest.CopyConfig(handlerConfig)
	config.QPS, handlerConfig.QPS = -1, -1
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	admin, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	handler, err := dynamic.NewForConfig(handlerConfig)
	if err != nil {
		return err
	}
	typed := informers.NewSharedInformerFactory(kube, 0)
	untyped := dynamicinformer.NewDynamicSharedInformerFactory(admin, 0)
	k := &keeper{
		kube:    kube,
		handler: handler.Resource(vmis),
		pods:    typed.Core().V1().Pods().Informer(),
		vmis:    untyped.ForResource(vmis).Informer(),
	}
	podLoop, err := newLoop("pod", k.pods, k.syncPod)
	if err != nil {
		return err
	}
	vmiLoop, err := newLoop("VMI", k.vmis, k.syncVMI)
	if err != nil {
		return err
	}
	typed.Start(ctx.Done())
	untyped.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), k.pods.HasSynced, k.vmis.HasSynced) {
		return ctx.Err()
	}
	go podLoop.run(ctx)
	go vmiLoop.run(ctx)
	k.beat(ctx)
	return nil
}

// loop calls sync for each object that changed.
type loop struct {
	kind  string
	queue workqueue.TypedDelayingInterface[string]
	sync  func(ctx context.Context, key string) error
}

func newLoop(kind string, informer cache.SharedIndexInformer, sync func(context.Context, string) error) (*loop, error) {
	l := &loop{kind: kind, queue: workqueue.NewTypedDelayingQueue[string](), sync: sync}
	enqueue := func(object any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
			l.queue.Add(key)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, object any) { enqueue(object) },
	})
	if err != nil {
		return nil, fmt.Errorf("watch each %s: %w", kind, err)
	}
	return l, nil
}

func (l *loop) run(ctx context.Context) {
	go func() {
		<-ctx.Done()
		l.queue.ShutDown()
	}()
	for {
		key, done := l.queue.Get()
		if done {
			return
		}
		if err := l.sync(ctx, key); err != nil {
			log.Printf("%s %s: %v", l.kind, key, err)
			l.queue.AddAfter(key, retry)
		}
		l.queue.Done(key)
	}
}

func now() string { return metav1.Now().UTC().Format(time.RFC3339) }
