// SPDX-License-Identifier: Apache-2.0

// Package kube is the service's access to the API server: what it watches, and
// the ledgers it keeps there.
package kube

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"cozystack.io/gpu/pkg/model/v1alpha1"
)

var appsVersion = schema.GroupVersion{Group: "apps.cozystack.io", Version: "v1alpha1"}

// Clients talk to one API server under one limit of requests.
type Clients struct {
	apps, gpu, core rest.Interface
}

// NewClients returns clients for the API server of the config.
func NewClients(config *rest.Config) (*Clients, error) {
	config = rest.CopyConfig(config)
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(config.QPS, config.Burst)
	scheme := runtime.NewScheme()
	for kind := range counted {
		scheme.AddKnownTypeWithName(appsVersion.WithKind(kind), &object{})
		scheme.AddKnownTypeWithName(appsVersion.WithKind(kind+"List"), &objectList{})
	}
	scheme.AddKnownTypes(v1alpha1.GroupVersion, &v1alpha1.GPUClass{}, &v1alpha1.GPUClassList{}, &v1alpha1.GPUBudget{}, &v1alpha1.GPUBudgetList{})
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.ConfigMap{}, &corev1.Namespace{}, &corev1.NamespaceList{})
	for _, version := range []schema.GroupVersion{appsVersion, v1alpha1.GroupVersion, corev1.SchemeGroupVersion} {
		metav1.AddToGroupVersion(scheme, version)
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for the API server: %w", err)
	}
	c := &Clients{}
	for _, group := range []struct {
		version schema.GroupVersion
		path    string
		client  *rest.Interface
	}{
		{appsVersion, "/apis", &c.apps}, {v1alpha1.GroupVersion, "/apis", &c.gpu}, {corev1.SchemeGroupVersion, "/api", &c.core},
	} {
		grouped := rest.CopyConfig(config)
		grouped.GroupVersion, grouped.APIPath = &group.version, group.path
		if *group.client, err = rest.RESTClientForConfigAndClient(grouped, client); err != nil {
			return nil, fmt.Errorf("create a client for %s: %w", group.version, err)
		}
	}
	return c, nil
}
