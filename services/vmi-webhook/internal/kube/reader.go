// SPDX-License-Identifier: Apache-2.0

// Package kube reads from the API server what a decision depends on.
package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	virtv1 "kubevirt.io/api/core/v1"
	kjson "sigs.k8s.io/json"

	"cozystack.io/gpu/pkg/model/v1alpha1"
	"cozystack.io/gpu/services/vmi-webhook/internal/admit"
)

var _ admit.Reader = (*Reader)(nil)

var readDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
	Namespace: "gpu",
	Subsystem: "vmi_webhook",
	Name:      "read_duration_seconds",
	Help:      "Time a read from the API server took, by what was read and whether it succeeded.",
	Buckets:   prometheus.ExponentialBuckets(0.001, 2, 14),
}, []string{"read", "result"})

// Metrics returns the package's collectors.
func Metrics() []prometheus.Collector { return []prometheus.Collector{readDuration} }

// Reader reads from the API server on every call and keeps nothing: a class
// that was created or withdrawn a moment ago counts.
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

// kubeVirtList is the part of a list of KubeVirt CRs that is read: whatever
// else other versions hold must not matter.
type kubeVirtList struct {
	Items []struct {
		Spec struct {
			Configuration struct {
				PermittedHostDevices *virtv1.PermittedHostDevices `json:"permittedHostDevices"`
			} `json:"configuration"`
		} `json:"spec"`
	} `json:"items"`
}

// Read reads the GPUClasses, the KubeVirt CRs and the namespace in parallel.
// The error names every read that failed.
func (r *Reader) Read(ctx context.Context, namespace string) (admit.State, error) {
	var (
		classes   v1alpha1.GPUClassList
		kubevirts kubeVirtList
		labels    metav1.PartialObjectMetadata
	)
	err := parallel(
		func() error { return r.get(ctx, "gpuclasses", "/apis/cozystack.io/v1alpha1/gpuclasses", &classes) },
		func() error {
			err := r.get(ctx, "kubevirts", "/apis/kubevirt.io/v1/kubevirts", &kubevirts)
			if apierrors.IsNotFound(err) { // a cluster without KubeVirt's CRDs has no KubeVirt CR
				return nil
			}
			return err
		},
		func() error { return r.get(ctx, "namespace", "/api/v1/namespaces/"+namespace, &labels) },
	)
	if err != nil {
		return admit.State{}, err
	}
	state := admit.State{Classes: classes.Items, NamespaceLabels: labels.Labels}
	for i := range kubevirts.Items {
		if table := kubevirts.Items[i].Spec.Configuration.PermittedHostDevices; table != nil {
			state.PermittedHostDevices = append(state.PermittedHostDevices, table)
		}
	}
	return state, nil
}

// get reads the path into the object. The object's type may know fewer fields
// than the API server.
func (r *Reader) get(ctx context.Context, what, path string, into any) error {
	start := time.Now()
	answer := r.client.Get().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx)
	err := answer.Error() // with the API server's reason, which Raw leaves out
	if err == nil {
		var raw []byte
		raw, _ = answer.Raw()
		err = kjson.UnmarshalCaseSensitivePreserveInts(raw, into)
	}
	result := "success"
	if err != nil {
		result = "error"
		err = fmt.Errorf("read %s: %w", what, err)
	}
	readDuration.WithLabelValues(what, result).Observe(time.Since(start).Seconds())
	return err
}

// parallel runs the reads at once and returns all their errors in one line.
func parallel(reads ...func() error) error {
	errs := make([]error, len(reads))
	panicked := make(chan any, len(reads))
	var wg sync.WaitGroup
	for i, read := range reads {
		wg.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					panicked <- p
				}
			}()
			errs[i] = read()
		})
	}
	wg.Wait()
	select {
	case p := <-panicked:
		panic(p) // where the request's own recovery sees it
	default:
	}
	var messages []string
	for _, err := range errs {
		if err != nil {
			messages = append(messages, err.Error())
		}
	}
	if len(messages) == 0 {
		return nil
	}
	return errors.New(strings.Join(messages, "; "))
}
