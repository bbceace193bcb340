// SPDX-License-Identifier: Apache-2.0

package matching

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"cozystack.io/gpu/hack/e2e/suite"
)

var gpuBudgets = schema.GroupVersionResource{Group: "cozystack.io", Version: "v1alpha1", Resource: "gpubudgets"}

func TestViewersOfANamespaceReadItsBudgetAndNoOther(t *testing.T) {
	own, above := env.Namespace(t, nil), env.Namespace(t, nil)
	for _, namespace := range []string{own, above} {
		env.Create(t, gpuBudgets, suite.Object(t, "{apiVersion: cozystack.io/v1alpha1, kind: GPUBudget, metadata: {name: budget, namespace: %s}}", namespace))
	}
	const user = "tenant-user"
	_, err := env.Kube.RbacV1().RoleBindings(own).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "viewers"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	config := rest.CopyConfig(env.Cluster.Config())
	config.Impersonate.UserName = user
	viewer, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	budgets := viewer.Resource(gpuBudgets)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err := budgets.Namespace(own).Get(t.Context(), "budget", metav1.GetOptions{})
		assert.NoError(c, err)
	}, pollTimeout, pollInterval)
	_, err = budgets.Namespace(own).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)

	forbidden := func(what string, err error) { assert.True(t, apierrors.IsForbidden(err), "%s: %v", what, err) }
	_, err = budgets.Namespace(above).Get(t.Context(), "budget", metav1.GetOptions{})
	forbidden("read the budget of another namespace", err)
	_, err = budgets.List(t.Context(), metav1.ListOptions{})
	forbidden("read all budgets", err)
	forbidden("delete the own budget", budgets.Namespace(own).Delete(t.Context(), "budget", metav1.DeleteOptions{}))
}
