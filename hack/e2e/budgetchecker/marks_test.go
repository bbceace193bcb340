// SPDX-License-Identifier: Apache-2.0

package budgetchecker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
