// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cozystack.io/gpu/hack/e2e/suite"
	"cozystack.io/gpu/pkg/gpu"
)

// stopPodWebhook stops the only replica; the returned function starts it again.
func stopPodWebhook(t *testing.T) (start func()) {
	t.Helper()
	process := podWebhook.Replicas[0].Process
	require.NoError(t, process.Kill())
	start = func() {
		if !process.Running() {
			require.NoError(t, env.Cluster.Restart(context.WithoutCancel(t.Context()), process))
		}
	}
	t.Cleanup(start)
	return start
}

// waitFailedCreate waits for an event that says why no pod was created.
func waitFailedCreate(t testing.TB, namespace, want string) {
	t.Helper()
	eventually(t, func(c *assert.CollectT) {
		events, err := env.Kube.CoreV1().Events(namespace).List(context.Background(), metav1.ListOptions{FieldSelector: "reason=FailedCreate"})
		require.NoError(c, err)
		messages := ""
		for _, event := range events.Items {
			messages += event.Message + "\n"
		}
		assert.Contains(c, messages, want)
	})
}

func pod(name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: map[string]string{gpu.AnnotationGPUs: oneL40S}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/c"}}},
	}
}

func TestPodWebhookDownStopsOnlyLabelledPods(t *testing.T) {
	classes(t)
	ns := namespace(t)
	eventually(t, func(c *assert.CollectT) { // pods need it
		_, err := env.Kube.CoreV1().ServiceAccounts(ns).Get(context.Background(), "default", metav1.GetOptions{})
		assert.NoError(c, err)
	})
	start := stopPodWebhook(t)
	pods := env.Kube.CoreV1().Pods(ns)
	_, err := pods.Create(t.Context(), pod("labelled", map[string]string{gpu.LabelGPUReference: "true", "kubevirt.io": "virt-launcher"}), metav1.CreateOptions{})
	require.Error(t, err)
	assert.EqualValues(t, http.StatusInternalServerError, suite.Status(t, err).Code)
	assert.Contains(t, err.Error(), `failed calling webhook "pod-webhook.gpu.cozystack.io"`)
	_, err = pods.Create(t.Context(), pod("other", map[string]string{"kubevirt.io": "virt-launcher"}), metav1.CreateOptions{})
	require.NoError(t, err)

	vm(t, ns, "waiting", template(t, oneL40S, usualSpec))
	vm(t, ns, "neighbour", template(t, "", usualSpec))
	waitPhase(t, ns, "neighbour", "Running")
	waitFailedCreate(t, ns, "failed calling webhook")
	start()
	waitPhase(t, ns, "waiting", "Running")
}

func TestClassMissingAtPodCreation(t *testing.T) {
	classes(t)
	leaving := class(t, "leaving", "{mode: Passthrough, resourceName: example.com/gpu, tolerations: [{operator: Exists}]}")
	permit(t, "example.com/gpu")
	ns := namespace(t)
	start := stopPodWebhook(t)
	vm(t, ns, "orphan", template(t, `[{"className":"leaving","count":1}]`, usualSpec))
	waitFailedCreate(t, ns, "failed calling webhook")
	env.Delete(t, suite.GPUClasses, leaving)
	start()
	waitFailedCreate(t, ns, `GPU class "leaving": there is no GPUClass of this name`)
	assert.Empty(t, launchers(t, ns, "orphan"))

	class(t, "leaving", "{mode: Passthrough, resourceName: example.com/gpu, tolerations: [{operator: Exists}]}")
	eventually(t, func(c *assert.CollectT) {
		pods := launchers(c, ns, "orphan")
		if assert.Len(c, pods, 1) {
			assert.Contains(c, pods[0].Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists})
		}
	})
}

// permit adds a PCI device to KubeVirt's table until the test ends.
func permit(t testing.TB, resourceName string) {
	t.Helper()
	client := env.Dynamic.Resource(suite.KubeVirts).Namespace("kubevirt")
	set := func(change func(list []any) []any) {
		ctx := context.WithoutCancel(t.Context())
		kubevirt, err := client.Get(ctx, "kubevirt", metav1.GetOptions{})
		require.NoError(t, err)
		table := nested(kubevirt, "spec", "configuration", "permittedHostDevices").(map[string]any)
		table["pciHostDevices"] = change(table["pciHostDevices"].([]any))
		_, err = client.Update(ctx, kubevirt, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	set(func(list []any) []any {
		return append(list, map[string]any{"pciVendorSelector": "10DE:0000", "resourceName": resourceName, "externalResourceProvider": true})
	})
	t.Cleanup(func() { set(func(list []any) []any { return list[:len(list)-1] }) })
}

func TestLabelledPodThatRunsNoVMIsLeftAlone(t *testing.T) {
	classes(t)
	ns := namespace(t)
	labelled := pod("labelled", map[string]string{gpu.LabelGPUReference: "true"})
	labelled.Spec.Containers[0].Resources.Limits = corev1.ResourceList{l40sResource: resource.MustParse("1")}
	var created *corev1.Pod
	eventually(t, func(c *assert.CollectT) {
		var err error
		created, err = env.Kube.CoreV1().Pods(ns).Create(context.Background(), labelled, metav1.CreateOptions{})
		assert.NoError(c, err) // once the namespace has its ServiceAccount
	})
	assert.NotContains(t, created.Spec.Tolerations, l40sTaint)
}
