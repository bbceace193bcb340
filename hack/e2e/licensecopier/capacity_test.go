// SPDX-License-Identifier: Apache-2.0

package licensecopier

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/hack/e2e/suite"
)

// units are what status.capacity says.
type units struct{ Allocatable, Requested, Free, MaxFreeOnNode int64 }

// published returns the class's capacity, or nil.
func published(t testing.TB, class string) *units {
	t.Helper()
	object, err := env.Dynamic.Resource(suite.GPUClasses).Get(t.Context(), class, metav1.GetOptions{})
	require.NoError(t, err)
	raw, err := json.Marshal(object.Object["status"])
	require.NoError(t, err)
	var status struct{ Capacity *units }
	require.NoError(t, json.Unmarshal(raw, &status))
	return status.Capacity
}

// capacity waits until the class's capacity is published.
func capacity(t testing.TB, class string, want units) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, &want, published(t, class))
	}, pollTimeout, pollInterval)
}

// counted creates a class of a resource of its own.
func counted(t testing.TB, name, tolerations string) corev1.ResourceName {
	t.Helper()
	env.Create(t, suite.GPUClasses, suite.Object(t,
		"{apiVersion: cozystack.io/v1alpha1, kind: GPUClass, metadata: {name: %s}, spec: {mode: Passthrough, resourceName: example.com/%s, tolerations: %s}}", name, name, tolerations))
	return corev1.ResourceName("example.com/" + name)
}

// node creates a ready node that offers units of the resource. The node
// controller takes it for dead when it has been silent for 50 seconds.
func node(t testing.TB, device corev1.ResourceName, units string, taints ...corev1.Taint) string {
	t.Helper()
	nodes := env.Kube.CoreV1().Nodes()
	allocatable := corev1.ResourceList{device: resource.MustParse(units), corev1.ResourceCPU: resource.MustParse("64")}
	created, err := nodes.Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "gpu-"},
		Spec:       corev1.NodeSpec{Taints: taints},
		Status: corev1.NodeStatus{
			Allocatable: allocatable, Capacity: allocatable,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = nodes.Delete(context.WithoutCancel(t.Context()), created.Name, metav1.DeleteOptions{})
	})
	return created.Name
}

func patchNode(t testing.TB, name, patch string, subresources ...string) {
	t.Helper()
	_, err := env.Kube.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	require.NoError(t, err)
}

// holder creates a pod that requests units of the resource and is bound to the
// node, if there is one; no scheduler binds it. It returns what deletes it.
func holder(t testing.TB, namespace, node string, device corev1.ResourceName, units string) (name string, remove func()) {
	t.Helper()
	pods := env.Kube.CoreV1().Pods(namespace)
	resources := corev1.ResourceList{device: resource.MustParse(units)}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "holder-"},
		Spec: corev1.PodSpec{
			NodeName: node, SchedulerName: "none",
			Containers: []corev1.Container{{Name: "a", Image: "example.com/a", Resources: corev1.ResourceRequirements{Requests: resources, Limits: resources}}},
		},
	}
	require.Eventually(t, func() bool { // once the namespace has its service account
		created, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
		if err == nil {
			name = created.Name
		}
		return err == nil
	}, pollTimeout, pollInterval)
	remove = func() {
		_ = pods.Delete(context.WithoutCancel(t.Context()), name, *metav1.NewDeleteOptions(0))
	}
	t.Cleanup(remove)
	return name, remove
}

func TestCapacityCountsWhatIsThereAndWhatPodsHold(t *testing.T) {
	source(t, "counting", token)
	class(t, "counting", "counting")
	namespace := env.Namespace(t, entitled)
	copied(t, namespace, "counting", token) // a restart is seen by it

	taint := corev1.Taint{Key: "example.com/gpu", Value: "a", Effect: corev1.TaintEffectNoSchedule}
	foreign := corev1.Taint{Key: "example.com/other", Effect: corev1.TaintEffectNoSchedule}
	device := counted(t, "counted", "[{key: example.com/gpu, operator: Exists}]")
	capacity(t, "counted", units{})
	large, small := node(t, device, "4", taint), node(t, device, "2")
	node(t, device, "8", taint, foreign)
	patchNode(t, node(t, device, "8"), `{"spec":{"unschedulable":true}}`)
	patchNode(t, node(t, device, "8"), `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "status")
	capacity(t, "counted", units{Allocatable: 6, Free: 6, MaxFreeOnNode: 4})

	holder(t, namespace, "", device, "1") // waits for a node
	finishes, _ := holder(t, namespace, large, device, "3")
	_, remove := holder(t, namespace, small, device, "1")
	capacity(t, "counted", units{Allocatable: 6, Requested: 4, Free: 2, MaxFreeOnNode: 1})
	for state, want := range map[string]float64{"allocatable": 6, "requested": 4, "free": 2, "max_free_on_node": 1} {
		assert.Equal(t, want, metric(t, fmt.Sprintf(`gpu_license_copier_class_units{class="counted",state=%q}`, state)))
	}
	log := audit(t)
	restart(t)
	require.Eventually(t, func() bool {
		_, found := scrape(t, `gpu_license_copier_class_units{class="counted",state="free"}`)
		return found
	}, pollTimeout, pollInterval)
	assert.Empty(t, log.Settled(t), "a restart costs no writes")

	_, err := env.Kube.CoreV1().Pods(namespace).Patch(t.Context(), finishes, types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	remove()
	capacity(t, "counted", units{Allocatable: 6, Free: 6, MaxFreeOnNode: 4})
	patchNode(t, large, `{"spec":{"unschedulable":true}}`)
	capacity(t, "counted", units{Allocatable: 2, Free: 2, MaxFreeOnNode: 2})

	patchClass(t, "counted", `{"spec":{"resourceName":"example.com/nothing"}}`)
	capacity(t, "counted", units{})
}

func TestChurnOfPodsCostsFewWrites(t *testing.T) {
	const interval = 5 * time.Second // at most one write a class
	device := counted(t, "churned", "[]")
	namespace := env.Namespace(t, nil)
	name := node(t, device, "10000")
	capacity(t, "churned", units{Allocatable: 10000, Free: 10000, MaxFreeOnNode: 10000})
	log := audit(t)
	start, changes := time.Now(), 0
	for ; time.Since(start) < 2*interval; changes += 2 {
		_, remove := holder(t, namespace, name, device, "1")
		if changes%10 > 0 {
			remove()
		}
	}
	kept := int64((changes + 9) / 10)
	capacity(t, "churned", units{Allocatable: 10000, Requested: kept, Free: 10000 - kept, MaxFreeOnNode: 10000 - kept})
	took := time.Since(start)
	writes := 0
	for _, write := range log.Settled(t) {
		if write.Name == "churned" {
			assert.Less(t, write.Code, 300, "%+v", write)
			writes++
		}
	}
	t.Logf("%d writes for %d changes in %s", writes, changes, took.Round(time.Second/10))
	assert.Positive(t, writes)
	assert.LessOrEqual(t, writes, 1+int(took/interval))
}

func TestCopiesDoNotDependOnNodesAndPods(t *testing.T) {
	roles := env.Kube.RbacV1().ClusterRoles()
	installed, err := roles.Get(t.Context(), "gpu-license-copier", metav1.GetOptions{})
	require.NoError(t, err)
	rules := func(rules []rbacv1.PolicyRule) {
		role, err := roles.Get(withoutCancel(t), installed.Name, metav1.GetOptions{})
		require.NoError(t, err)
		role.Rules = rules
		_, err = roles.Update(withoutCancel(t), role, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	var without []rbacv1.PolicyRule
	for _, rule := range installed.Rules {
		if rule.Resources[0] != "nodes" {
			without = append(without, rule)
		}
	}
	require.Len(t, without, len(installed.Rules)-1)
	rules(without)
	t.Cleanup(func() { rules(installed.Rules) })

	source(t, "blind", token)
	class(t, "blind", "blind")
	namespace := env.Namespace(t, entitled)
	restart(t)
	copied(t, namespace, "blind", token)
	reason(t, "blind", "SecretFound")
	late := counted(t, "late", "[]")
	reason(t, "late", "NoLicenseNeeded")
	node(t, late, "3")
	assert.Nil(t, published(t, "late"), "nothing is published that is not known")

	rules(installed.Rules)
	capacity(t, "late", units{Allocatable: 3, Free: 3, MaxFreeOnNode: 3})
}
