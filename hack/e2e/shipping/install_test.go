// SPDX-License-Identifier: Apache-2.0

package shipping

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// waitPods waits until the controllers have made all pods of the target's
// Deployments and counted them: none was refused, and each disruption budget
// and Service finds them.
func waitPods(t testing.TB, dir string) {
	t.Helper()
	for _, object := range build(t, dir) {
		if object.GetKind() != "Deployment" {
			continue
		}
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			ctx := context.Background()
			deployment, err := env.Kube.AppsV1().Deployments(namespace).Get(ctx, object.GetName(), metav1.GetOptions{})
			require.NoError(c, err)
			assert.Equal(c, deployment.Generation, deployment.Status.ObservedGeneration)
			assert.Equal(c, *deployment.Spec.Replicas, deployment.Status.UpdatedReplicas)
			for _, condition := range deployment.Status.Conditions {
				assert.NotEqual(c, appsv1.DeploymentReplicaFailure, condition.Type, condition.Message)
			}
			budget, err := env.Kube.PolicyV1().PodDisruptionBudgets(namespace).Get(ctx, object.GetName(), metav1.GetOptions{})
			require.NoError(c, err)
			assert.Equal(c, *deployment.Spec.Replicas, budget.Status.ExpectedPods, "pods that the disruption budget finds")
			service, err := env.Kube.CoreV1().Services(namespace).Get(ctx, object.GetName(), metav1.GetOptions{})
			require.NoError(c, err)
			assert.True(c, selects(service.Spec.Selector, deployment), "the Service finds the pods")
			policy, err := env.Kube.NetworkingV1().NetworkPolicies(namespace).Get(ctx, object.GetName(), metav1.GetOptions{})
			require.NoError(c, err)
			assert.True(c, selects(policy.Spec.PodSelector.MatchLabels, deployment), "the network policy finds the pods")
		}, timeout, interval)
	}
}

// selects tells whether the labels select the Deployment's pods.
func selects(matchLabels map[string]string, deployment *appsv1.Deployment) bool {
	return len(matchLabels) > 0 && labels.SelectorFromSet(matchLabels).Matches(labels.Set(deployment.Spec.Template.Labels))
}

// versions returns the resource version of each object of the target once
// nobody changes them any more.
func versions(t testing.TB, dir string) map[string]string {
	t.Helper()
	read := func() map[string]string {
		found := map[string]string{}
		for name, object := range stored(t, dir) {
			found[name] = object.GetResourceVersion()
		}
		return found
	}
	var last map[string]string
	require.Eventually(t, func() bool {
		now := read()
		settled := maps.Equal(last, now)
		last = now
		return settled
	}, timeout, 500*time.Millisecond)
	return last
}

func TestApplyingTwiceChangesNothing(t *testing.T) {
	for base, components := range map[string][]string{".": {"hpa", "monitoring"}, "cozystack": {"own-certificates"}} {
		t.Run(base, func(t *testing.T) { applyTwice(t, overlay(t, base, components...), slices.Contains(components, "hpa")) })
	}
}

func applyTwice(t *testing.T, dir string, scaled bool) {
	install(t, dir)
	apply := func() { kubectl(t, "apply", "--server-side", "--force-conflicts", "-k", dir) }
	apply()
	before := versions(t, dir)
	autoscalers := specs(t, dir, "HorizontalPodAutoscaler")
	require.Len(t, before, len(build(t, dir)))
	require.Equal(t, scaled, len(autoscalers) > 0)
	apply()
	for name, object := range stored(t, dir) {
		if object.GetKind() != "HorizontalPodAutoscaler" { // their status is written at any time
			assert.Equal(t, before[name], object.GetResourceVersion(), name)
		}
	}
	assert.Equal(t, autoscalers, specs(t, dir, "HorizontalPodAutoscaler"))
}

// specs returns the specs of the target's objects of the kind.
func specs(t testing.TB, dir, kind string) map[string]any {
	t.Helper()
	found := map[string]any{}
	for name, object := range stored(t, dir) {
		if object.GetKind() == kind {
			found[name] = object.Object["spec"]
		}
	}
	return found
}

func TestEachServiceStandsAlone(t *testing.T) {
	for _, service := range services(t) {
		t.Run(service, func(t *testing.T) {
			for _, other := range services(t) {
				require.Empty(t, stored(t, target(other)), "of %s", other)
			}
			install(t, target(service))
			pods, err := env.Kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			assert.Len(t, pods.Items, 2)
			for _, pod := range pods.Items {
				assert.Equal(t, service, pod.Labels["app.kubernetes.io/name"])
				assert.EqualValues(t, 2000000000, *pod.Spec.Priority, "of system-cluster-critical")
			}
			kubectl(t, "delete", "-k", target(service))
			assert.Empty(t, stored(t, target(service)))
		})
	}
}

func TestNamespaceRefusesPodsThatAreNotRestricted(t *testing.T) {
	_, err := env.Kube.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "root"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/c"}}},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.ErrorContains(t, err, `violates PodSecurity "restricted:latest"`)
}
