// SPDX-License-Identifier: Apache-2.0

package budgetchecker

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/hack/e2e/suite"
)

// Marks must not pile up: they all are in one ConfigMap.
func TestMarksOfNamespacesThatAreGoneAreTakenOut(t *testing.T) {
	t.Parallel()
	x := tenant(t, "tenant-root", total+": 1")
	published(t, x, total, pool{limit: 1, free: 1})
	marked := func() bool {
		marks, err := env.Kube.CoreV1().ConfigMaps("cozy-gpu").Get(t.Context(), "budget-checker-ledgers", metav1.GetOptions{})
		require.NoError(t, err)
		return marks.Data[x] != ""
	}
	require.True(t, marked())
	require.NoError(t, client(tenants, "tenant-root").Delete(t.Context(), x[len("tenant-"):], metav1.DeleteOptions{}))
	require.NoError(t, env.Dynamic.Resource(suite.Namespaces).Delete(t.Context(), x, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { return !marked() }, 2*time.Minute, time.Second)
}

// Below a namespace that is being deleted, and has lost its ledger, nothing is
// raised, and the answer does not keep anybody waiting.
func TestNamespaceOfABudgetIsBeingDeleted(t *testing.T) {
	t.Parallel()
	x := tenant(t, "tenant-root", total+": 5")
	y := tenant(t, x, "")
	require.NoError(t, vm(t, y, "vm", 2))
	keeper := suite.Object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: keeper, namespace: %s, finalizers: [example.com/keep]}}", x)
	configMaps := env.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(x)
	_, err := configMaps.Create(t.Context(), keeper, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := configMaps.Patch(context.WithoutCancel(t.Context()), "keeper", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		assert.NoError(t, err)
	})
	require.NoError(t, env.Dynamic.Resource(suite.Namespaces).Delete(t.Context(), x, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { _, found := budget(t, x, total); return !found }, timeout, interval)

	var response *admissionv1.AdmissionResponse
	require.Eventually(t, func() bool { // the replica has seen it too
		response = ask(t, service.Replicas[0], createReview(y, "more", 1))
		return !response.Allowed && strings.Contains(response.Result.Message, "does not exist")
	}, timeout, interval)
	assert.EqualValues(t, http.StatusServiceUnavailable, response.Result.Code)
}
