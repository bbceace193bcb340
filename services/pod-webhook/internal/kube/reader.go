// SPDX-License-Identifier: Apache-2.0

// Package kube reads from the API server what a decision depends on.
package kube

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	kjson "sigs.k8s.io/json"

	"cozystack.io/gpu/pkg/model/v1alpha1"
	"cozystack.io/gpu/services/pod-webhook/internal/admit"
)

var _ admit.Reader = (*Reader)(nil)

var readDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
	Namespace: "gpu",
	Subsystem: "pod_webhook",
	Name:      "read_duration_seconds",
	Help:      "Time a read from the API server took, by what was read and whether it succeeded.",
	Buckets:   prometheus.ExponentialBuckets(0.001, 2, 14),
}, []string{"read", "result"})

// Metrics returns the package's collectors.
func Metrics() []prometheus.Collector { return []prometheus.Collector{readDuration} }

// Reader reads from the API server on every call and keeps nothing: a class
// that was created a moment ago counts.
type Reader struct {
	client rest.Interface
}

// NewReader returns a Reader that talks to the API server of the config.
func NewReader(config *rest.Config) (*Reader, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // knows Status, so that errors keep their reason
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for the API server: %w", err)
	}
	return &Reader{client: client}, nil
}

// Classes reads all GPUClasses.
func (r *Reader) Classes(ctx context.Context) ([]v1alpha1.GPUClass, error) {
	const path = "/apis/cozystack.io/v1alpha1/gpuclasses"
	var classes v1alpha1.GPUClassList
	start := time.Now()
	answer := r.client.Get().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx)
	err := answer.Error() // with the API server's reason, which Raw leaves out
	if err == nil {
		var raw []byte
		raw, _ = answer.Raw()
		err = kjson.UnmarshalCaseSensitivePreserveInts(raw, &classes)
	}
	result := "success"
	if err != nil {
		result = "error"
		err = fmt.Errorf("read gpuclasses: %w", err)
	}
	readDuration.WithLabelValues("gpuclasses", result).Observe(time.Since(start).Seconds())
	return classes.Items, err
}
