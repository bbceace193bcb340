// SPDX-License-Identifier: Apache-2.0

package budgetchecker

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cozystack.io/gpu/hack/devcluster"
)

// review returns a request as Cozystack's API server sends it: of a creation
// the object has no UID, and nobody has looked at the spec.
func review(operation admissionv1.Operation, kind, resource, namespace, name, spec string) *admissionv1.AdmissionRequest {
	const object = `{"apiVersion":"apps.cozystack.io/v1alpha1","kind":%q,"metadata":{"name":%q,"namespace":%q},"spec":%s}`
	return &admissionv1.AdmissionRequest{
		UID:       uuid.NewUUID(),
		Kind:      metav1.GroupVersionKind{Group: "apps.cozystack.io", Version: "v1alpha1", Kind: kind},
		Resource:  metav1.GroupVersionResource{Group: "apps.cozystack.io", Version: "v1alpha1", Resource: resource},
		Operation: operation, Namespace: namespace, Name: name,
		Object: runtime.RawExtension{Raw: fmt.Appendf(nil, object, kind, name, namespace, spec)},
	}
}

func createReview(namespace, name string, units int) *admissionv1.AdmissionRequest {
	return review(admissionv1.Create, "VMInstance", "vminstances", namespace, name, fmt.Sprintf(`{"gpus":[{"className":"a","count":%d}]}`, units))
}

// ask has a replica answer a review.
func ask(t testing.TB, replica *devcluster.Replica, request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	t.Helper()
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(env.Cluster.CABundle()))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: request,
	})
	require.NoError(t, err)
	answer, err := (&http.Client{Transport: transport}).Post("https://"+replica.Addr+"/validate?timeout=10s", "application/json", bytes.NewReader(body))
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, http.StatusOK, answer.StatusCode)
	var decoded admissionv1.AdmissionReview
	require.NoError(t, json.NewDecoder(answer.Body).Decode(&decoded))
	return decoded.Response
}

func TestDuplicateFieldsAreRefused(t *testing.T) {
	t.Parallel()
	x := tenant(t, "tenant-root", total+": 100")
	for name, request := range map[string]*admissionv1.AdmissionRequest{
		"entries": review(admissionv1.Create, "VMInstance", "vminstances", x, "vm", `{"gpus":[],"gpus":[{"className":"a","count":1}]}`),
		"counts":  review(admissionv1.Create, "VMInstance", "vminstances", x, "vm", `{"gpus":[{"className":"a","count":1,"count":9}]}`),
		"quotas": review(admissionv1.Create, "Tenant", "tenants", x, "y",
			`{"resourceQuotas":{"gpu.cozystack.io/total":"1","gpu.cozystack.io/total":"2"}}`),
	} {
		response := ask(t, service.Replicas[0], request)
		require.False(t, response.Allowed, name)
		assert.EqualValues(t, http.StatusBadRequest, response.Result.Code, name)
	}
}

// What was admitted and never written is held, whichever replica is asked next,
// and a dry run or a write of another tenant holds nothing there.
func TestAdmittedReviewsAreHeld(t *testing.T) {
	t.Parallel()
	x, other := tenant(t, "tenant-root", total+": 3"), tenant(t, "tenant-root", total+": 3")
	require.True(t, ask(t, service.Replicas[0], createReview(x, "first", 2)).Allowed)
	assert.False(t, ask(t, service.Replicas[1], createReview(x, "second", 2)).Allowed)
	assert.True(t, ask(t, service.Replicas[1], createReview(x, "first", 3)).Allowed, "an object counts once")
	assert.False(t, ask(t, service.Replicas[2], createReview(x, "second", 1)).Allowed)
	generated := createReview(other, "", 2)
	generated.Object.Raw = bytes.Replace(generated.Object.Raw, []byte(`"name":""`), []byte(`"generateName":"vm-"`), 1)
	require.True(t, ask(t, service.Replicas[0], generated).Allowed)
	generated.UID = uuid.NewUUID()
	assert.False(t, ask(t, service.Replicas[2], generated).Allowed, "objects that are yet to be named are different ones")
	published(t, x, total, pool{limit: 3, reserved: 3})
}

// The old object comes from a cache that may be behind: here it shows the units
// that were given back.
func TestStaleOldObjectDoesNotHideARaise(t *testing.T) {
	t.Parallel()
	x := tenant(t, "tenant-root", total+": 3")
	require.NoError(t, vm(t, x, "lowered", 3))
	stale, err := client(vmInstances, x).Get(t.Context(), "lowered", metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, patch(t, x, "lowered", `{"spec":{"gpus":[{"className":"a","count":1}]}}`))
	published(t, x, total, pool{limit: 3, used: 1, free: 2})
	require.NoError(t, vm(t, x, "other", 2))
	published(t, x, total, pool{limit: 3, used: 3})

	update := review(admissionv1.Update, "VMInstance", "vminstances", x, "lowered", `{"gpus":[{"className":"a","count":3}]}`)
	update.OldObject.Raw, err = stale.MarshalJSON()
	require.NoError(t, err)
	for _, replica := range service.Replicas {
		assert.False(t, ask(t, replica, update).Allowed)
	}
}
