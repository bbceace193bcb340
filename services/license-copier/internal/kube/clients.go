// SPDX-License-Identifier: Apache-2.0

// Package kube is the controller's access to the API server: what it caches,
// what it reads besides, and what it writes.
package kube

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	eventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// Clients talk to one API server under one limit of requests.
type Clients struct {
	Leases coordinationv1.CoordinationV1Interface
	Events eventsv1.EventsV1Interface
	core   corev1.CoreV1Interface
	// metadata reads objects without their content.
	metadata metadata.Interface
	classes  rest.Interface
}

// NewClients returns clients for the API server of the config.
func NewClients(config *rest.Config) (*Clients, error) {
	config = rest.CopyConfig(config)
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(config.QPS, config.Burst)
	core := rest.CopyConfig(config)
	core.ContentType = runtime.ContentTypeProtobuf
	core.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := rest.HTTPClientFor(core)
	if err != nil {
		return nil, fmt.Errorf("create a client for the API server: %w", err)
	}
	c := &Clients{}
	if c.core, err = corev1.NewForConfigAndClient(core, client); err != nil {
		return nil, fmt.Errorf("create a client for secrets, nodes and pods: %w", err)
	}
	if c.Leases, err = coordinationv1.NewForConfigAndClient(core, client); err != nil {
		return nil, fmt.Errorf("create a client for leases: %w", err)
	}
	if c.Events, err = eventsv1.NewForConfigAndClient(core, client); err != nil {
		return nil, fmt.Errorf("create a client for events: %w", err)
	}
	if c.metadata, err = metadata.NewForConfigAndClient(metadata.ConfigFor(config), client); err != nil {
		return nil, fmt.Errorf("create a client for metadata: %w", err)
	}
	if c.classes, err = classClient(config); err != nil {
		return nil, fmt.Errorf("create a client for gpuclasses: %w", err)
	}
	return c, nil
}

func classClient(config *rest.Config) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(v1alpha1.GroupVersion, &v1alpha1.GPUClass{}, &v1alpha1.GPUClassList{})
	metav1.AddToGroupVersion(scheme, v1alpha1.GroupVersion)
	config = rest.CopyConfig(config)
	config.GroupVersion = &v1alpha1.GroupVersion
	config.APIPath = "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return rest.RESTClientFor(config)
}
