// SPDX-License-Identifier: Apache-2.0

package shipping

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// release makes a target of a service with its image of the version.
func release(t testing.TB, service, version string) string {
	t.Helper()
	dir := overlay(t, service)
	appendTo(t, dir, fmt.Sprintf("images: [{name: %[1]s, newName: registry.example.com/gpu/%[1]s, newTag: %[2]s}]\n", service, version))
	return dir
}

// images counts the pods of the service that are there and stay, by image.
func images(t require.TestingT, service string) map[string]int {
	pods, err := env.Kube.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + service})
	require.NoError(t, err)
	found := map[string]int{}
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp == nil {
			found[pod.Spec.Containers[0].Image]++
		}
	}
	return found
}

// makeReady says of the service's pods what a kubelet would, and returns them.
func makeReady(t testing.TB, service string) []corev1.Pod {
	t.Helper()
	pods := env.Kube.CoreV1().Pods(namespace)
	list, err := pods.List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + service})
	require.NoError(t, err)
	ready := []byte(`{"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}`)
	for _, pod := range list.Items {
		_, err := pods.Patch(t.Context(), pod.Name, types.StrategicMergePatchType, ready, metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
	return list.Items
}

// Each service is upgraded by itself, and back. While no pod of the new version
// is ready, the old version's all stay.
func TestUpgradingAServiceTouchesNothingElse(t *testing.T) {
	for _, service := range services(t) {
		install(t, release(t, service, "v1"))
		makeReady(t, service)
	}
	before := everything(t)
	for _, service := range services(t) {
		v1, v2 := "registry.example.com/gpu/"+service+":v1", "registry.example.com/gpu/"+service+":v2"
		kubectl(t, "apply", "-k", release(t, service, "v2"))
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			assert.Equal(c, map[string]int{v1: 2, v2: 1}, images(c, service))
		}, timeout, interval)

		kubectl(t, "apply", "-k", release(t, service, "v1"))
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			assert.Equal(c, map[string]int{v1: 2}, images(c, service))
		}, timeout, interval)

		after := everything(t)
		for _, counts := range []string{"Deployment ", "PodDisruptionBudget "} { // their status does
			require.Contains(t, after[service], counts+service)
			before[service][counts+service] = after[service][counts+service]
		}
		assert.Equal(t, before, after, "what an upgrade of %s changed", service)
		before = after
	}
}

// readyNodes creates nodes. Nobody renews their leases, so they are ready for less
// than a minute.
func readyNodes(t testing.TB, names ...string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	nodes := env.Kube.CoreV1().Nodes()
	patchStatus := func(name string, patch []byte) { // the node controller writes nodes too
		_, err := nodes.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
	for _, name := range names {
		_, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{corev1.LabelHostname: name},
		}}, metav1.CreateOptions{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, nodes.Delete(ctx, name, metav1.DeleteOptions{})) })
		ready := fmt.Appendf(nil, `{"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": %q}]}}`, time.Now().UTC().Format(time.RFC3339))
		patchStatus(name, ready)
	}
	// Pods do not count a node until the node controller has removed its taint. They
	// find room only once all are counted.
	for _, name := range names {
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			node, err := nodes.Get(ctx, name, metav1.GetOptions{})
			require.NoError(c, err)
			require.Empty(c, node.Spec.Taints)
		}, timeout, interval)
	}
	for _, name := range names {
		patchStatus(name, []byte(`{"status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "20"}}}`))
	}
}

// The scheduler puts the replicas of each service on different nodes, and nodes
// are drained one replica at a time. The test stands in for kubelets.
func TestReplicasAreSpreadAndDrainedOneByOne(t *testing.T) {
	for _, service := range services(t) {
		install(t, target(service))
	}
	ctx := context.WithoutCancel(t.Context())
	pods := env.Kube.CoreV1().Pods(namespace)
	now := int64(0)
	t.Cleanup(func() { // no kubelet ends them
		require.NoError(t, env.Kube.AppsV1().Deployments(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			require.NoError(c, pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}))
			left, err := pods.List(ctx, metav1.ListOptions{})
			require.NoError(c, err)
			assert.Empty(c, left.Items)
		}, timeout, interval)
	})
	readyNodes(t, "node-a", "node-b")

	for _, service := range services(t) {
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + service})
			require.NoError(c, err)
			var nodes []string
			for _, pod := range list.Items {
				nodes = append(nodes, pod.Spec.NodeName)
			}
			assert.ElementsMatch(c, []string{"node-a", "node-b"}, nodes)
		}, timeout, interval, service)
		replicas := makeReady(t, service)
		evict := func(pod corev1.Pod) error {
			return pods.EvictV1(ctx, &policyv1.Eviction{
				ObjectMeta:    metav1.ObjectMeta{Name: pod.Name},
				DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: &now},
			})
		}
		require.EventuallyWithT(t, func(c *assert.CollectT) { require.NoError(c, evict(replicas[0])) }, timeout, interval, service)
		err := evict(replicas[1])
		require.True(t, apierrors.IsTooManyRequests(err), "the second replica of %s: %v", service, err)
	}
}
