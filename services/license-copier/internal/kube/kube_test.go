// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/pkg/model/v1alpha1"
	"cozystack.io/gpu/services/license-copier/internal/plan"
)

// full is a Secret with more than any cache keeps.
func full() *corev1.Secret {
	immutable := true
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "a", Name: "gpu-license-x", UID: "1", ResourceVersion: "7",
			Labels:        map[string]string{gpu.LabelGPUClass: "x", "other": "label"},
			Annotations:   map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "not-a-real-token"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}, {Manager: fieldManager}},
		},
		Type:      corev1.SecretTypeOpaque,
		Immutable: &immutable,
		Data:      map[string][]byte{gpu.LicenseTokenKey: []byte("not-a-real-token"), "more": []byte("not-a-real-password")},
	}
}

func TestACachedCopyHoldsNoData(t *testing.T) {
	secret := full()
	object, err := toCopy(secret)
	require.NoError(t, err)
	assert.Equal(t, &plan.Copy{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "a", Name: "gpu-license-x", UID: "1", ResourceVersion: "7", Labels: map[string]string{gpu.LabelGPUClass: "x"},
		},
		Type: corev1.SecretTypeOpaque, Immutable: true, Digest: plan.NewDigest(secret.Data), Ours: true,
	}, object)
	again, err := toCopy(object)
	require.NoError(t, err)
	assert.Same(t, object, again)
}

func TestACopyIsOursIfWeWroteIt(t *testing.T) {
	secret := full()
	secret.ManagedFields = secret.ManagedFields[:1]
	assert.False(t, newCopy(secret).Ours)
	secret.ManagedFields = nil
	assert.False(t, newCopy(secret).Ours)
}

func TestACachedSourceHoldsTheTwoKeysOnly(t *testing.T) {
	object, err := toSource(full())
	require.NoError(t, err)
	source := object.(*plan.Source)
	assert.Equal(t, map[string][]byte{gpu.LicenseTokenKey: []byte("not-a-real-token")}, source.Data)
	assert.Equal(t, plan.NewDigest(source.Data), source.Digest)
	assert.Empty(t, source.Annotations)
	assert.Empty(t, source.ManagedFields)
	again, err := toSource(object)
	require.NoError(t, err)
	assert.Same(t, object, again)
}

func TestACachedNamespaceHoldsItsIdentityOnly(t *testing.T) {
	namespace := &metav1.PartialObjectMetadata{ObjectMeta: full().ObjectMeta}
	object, err := slimNamespace(namespace)
	require.NoError(t, err)
	assert.Empty(t, object.(*metav1.PartialObjectMetadata).Annotations)
	assert.Equal(t, "gpu-license-x", object.(*metav1.PartialObjectMetadata).Name)
}

func TestCachedNodesAndPodsHoldWhatIsCountedOnly(t *testing.T) {
	devices := corev1.ResourceList{"nvidia.com/L40S": resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	identity := metav1.ObjectMeta{Namespace: "a", Name: "gpu-license-x", UID: "1", ResourceVersion: "7", Labels: map[string]string{gpu.LabelGPUClass: "x"}}
	for _, tc := range []struct {
		transform  func(any) (any, error)
		full, want any
	}{
		{toNode, &corev1.Node{ObjectMeta: full().ObjectMeta, Status: corev1.NodeStatus{Allocatable: devices, Images: make([]corev1.ContainerImage, 50)}},
			&plan.Counted[model.Node]{ObjectMeta: identity, Of: model.Node{Name: "gpu-license-x", Devices: model.Devices{"nvidia.com/L40S": 2}}}},
		{toPod, &corev1.Pod{ObjectMeta: full().ObjectMeta, Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: devices}}}}, Status: corev1.PodStatus{Phase: corev1.PodRunning}},
			&plan.Counted[model.Pod]{ObjectMeta: identity, Of: model.Pod{Node: "n", Phase: corev1.PodRunning, Devices: model.Devices{"nvidia.com/L40S": 2}}}},
	} {
		object, err := tc.transform(tc.full)
		require.NoError(t, err)
		assert.Equal(t, tc.want, object)
		again, err := tc.transform(object)
		require.NoError(t, err)
		assert.Same(t, object, again)
	}
}

// conflicting returns clients of an API server that refuses all writes, and
// the last request it got.
func conflicting(t *testing.T) (clients *Clients, request *http.Request, body *string) {
	t.Helper()
	request, body = &http.Request{}, new(string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		*request, *body = *r, string(raw)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusConflict)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409,"message":"changed meanwhile"}`)
	}))
	t.Cleanup(server.Close)
	clients, err := NewClients(&rest.Config{Host: server.URL, QPS: 100, Burst: 100})
	require.NoError(t, err)
	return clients, request, body
}

func TestAnUpdateNamesTheVersionItWasDecidedOn(t *testing.T) {
	clients, request, body := conflicting(t)
	source := &plan.Source{Data: map[string][]byte{gpu.LicenseTokenKey: []byte("not-a-real-token")}}
	_, err := clients.Update(t.Context(), newCopy(full()), "y", source)
	require.EqualError(t, err, "update secret a/gpu-license-x: changed meanwhile")
	assert.True(t, apierrors.IsConflict(err))
	assert.Equal(t, "PATCH /api/v1/namespaces/a/secrets/gpu-license-x", request.Method+" "+request.URL.Path)
	assert.Equal(t, "application/json-patch+json", request.Header.Get("Content-Type"))
	assert.JSONEq(t, `[
		{"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
		{"op": "add", "path": "/metadata/labels/cozystack.io~1gpu-class", "value": "y"},
		{"op": "add", "path": "/data", "value": {"client_configuration_token.tok": "bm90LWEtcmVhbC10b2tlbg=="}}
	]`, *body)
}

func TestWritesCarryTheFieldManager(t *testing.T) {
	clients, request, _ := conflicting(t)
	source := &plan.Source{Data: map[string][]byte{gpu.LicenseTokenKey: []byte("not-a-real-token")}}
	_, err := clients.Create(t.Context(), plan.Key{Namespace: "a", Name: "gpu-license-x"}, "x", source)
	require.EqualError(t, err, "create secret a/gpu-license-x: changed meanwhile")
	assert.Equal(t, fieldManager, request.URL.Query().Get("fieldManager"))
	_, err = clients.Update(t.Context(), newCopy(full()), "x", source)
	require.Error(t, err)
	assert.Equal(t, fieldManager, request.URL.Query().Get("fieldManager"))
}

func TestADeletionNamesTheObjectItWasDecidedOn(t *testing.T) {
	clients, request, body := conflicting(t)
	err := clients.Delete(t.Context(), newCopy(full()))
	require.EqualError(t, err, "delete secret a/gpu-license-x: changed meanwhile")
	assert.Equal(t, "DELETE /api/v1/namespaces/a/secrets/gpu-license-x", request.Method+" "+request.URL.Path)
	options := &metav1.DeleteOptions{}
	_, _, err = scheme.Codecs.UniversalDeserializer().Decode([]byte(*body), nil, options)
	require.NoError(t, err)
	assert.EqualValues(t, "1", *options.Preconditions.UID)
	assert.Equal(t, "7", *options.Preconditions.ResourceVersion)
}

func TestAStatusIsPatchedAsAWhole(t *testing.T) {
	clients, request, body := conflicting(t)
	class := &v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: "x", UID: "1", ResourceVersion: "7"}}
	_, err := clients.PatchStatus(t.Context(), class, v1alpha1.GPUClassStatus{
		ObservedGeneration: 2, Capacity: &v1alpha1.Capacity{Allocatable: 3, Requested: 1, Free: 2, MaxFreeOnNode: 1},
	})
	require.EqualError(t, err, "patch the status of gpuclass x: changed meanwhile")
	assert.Equal(t, "PATCH /apis/cozystack.io/v1alpha1/gpuclasses/x/status", request.Method+" "+request.URL.Path)
	assert.JSONEq(t, `{
		"metadata": {"uid": "1", "resourceVersion": "7"},
		"status": {"observedGeneration": 2, "conditions": null, "capacity": {"allocatable": 3, "requested": 1, "free": 2, "maxFreeOnNode": 1}}
	}`, *body)
}
