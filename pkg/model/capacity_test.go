// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	virtv1 "kubevirt.io/api/core/v1"

	"cozystack.io/gpu/pkg/model/v1alpha1"
)

const device = "nvidia.com/L40S-24C"

func nodeWith(name string, units int64, taints ...corev1.Taint) Node {
	return Node{Name: name, Usable: true, Taints: taints, Devices: Devices{device: units}}
}

func podOn(node string, units int64, phase corev1.PodPhase) Pod {
	return Pod{Node: node, Phase: phase, Devices: Devices{device: units}}
}

func TestCapacity(t *testing.T) {
	down := nodeWith("c", 4)
	down.Usable = false
	gpu := corev1.Taint{Key: "nvidia.com/gpu", Value: "l40s", Effect: corev1.TaintEffectNoSchedule}
	evicts := corev1.Taint{Key: "maintenance", Effect: corev1.TaintEffectNoExecute}
	shuns := corev1.Taint{Key: "noisy", Effect: corev1.TaintEffectPreferNoSchedule}
	exists := v1alpha1.Toleration{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}
	for name, tc := range map[string]struct {
		tolerations []v1alpha1.Toleration
		nodes       []Node
		pods        []Pod
		want        v1alpha1.Capacity
	}{
		"nothing at all":                    {nil, nil, nil, v1alpha1.Capacity{}},
		"nodes add up":                      {nil, []Node{nodeWith("a", 4), nodeWith("b", 2)}, nil, v1alpha1.Capacity{Allocatable: 6, Free: 6, MaxFreeOnNode: 4}},
		"other devices do not count":        {nil, []Node{{Name: "a", Usable: true, Devices: Devices{"nvidia.com/H100": 8}}}, []Pod{{Node: "a", Devices: Devices{"nvidia.com/H100": 1}}}, v1alpha1.Capacity{}},
		"bound pods hold units":             {nil, []Node{nodeWith("a", 4), nodeWith("b", 2)}, []Pod{podOn("a", 3, corev1.PodRunning), podOn("b", 1, corev1.PodPending)}, v1alpha1.Capacity{Allocatable: 6, Requested: 4, Free: 2, MaxFreeOnNode: 1}},
		"units of one node do not add up":   {nil, []Node{nodeWith("a", 4), nodeWith("b", 4)}, []Pod{podOn("a", 2, corev1.PodRunning), podOn("b", 1, corev1.PodRunning)}, v1alpha1.Capacity{Allocatable: 8, Requested: 3, Free: 5, MaxFreeOnNode: 3}},
		"pods that wait for a node do not":  {nil, []Node{nodeWith("a", 4)}, []Pod{podOn("", 3, corev1.PodPending)}, v1alpha1.Capacity{Allocatable: 4, Free: 4, MaxFreeOnNode: 4}},
		"finished pods hold nothing":        {nil, []Node{nodeWith("a", 4)}, []Pod{podOn("a", 1, corev1.PodSucceeded), podOn("a", 2, corev1.PodFailed)}, v1alpha1.Capacity{Allocatable: 4, Free: 4, MaxFreeOnNode: 4}},
		"a lost node's pods may still run":  {nil, []Node{nodeWith("a", 4)}, []Pod{podOn("a", 1, corev1.PodUnknown)}, v1alpha1.Capacity{Allocatable: 4, Requested: 1, Free: 3, MaxFreeOnNode: 3}},
		"unusable nodes offer nothing":      {nil, []Node{nodeWith("a", 4), down}, []Pod{podOn("c", 3, corev1.PodRunning)}, v1alpha1.Capacity{Allocatable: 4, Requested: 3, Free: 4, MaxFreeOnNode: 4}},
		"devices that broke free nothing":   {nil, []Node{nodeWith("a", 1), nodeWith("b", 1)}, []Pod{podOn("a", 2, corev1.PodRunning)}, v1alpha1.Capacity{Allocatable: 2, Requested: 2, Free: 1, MaxFreeOnNode: 1}},
		"a taint keeps the class away":      {nil, []Node{nodeWith("a", 4, gpu)}, nil, v1alpha1.Capacity{}},
		"a taint is tolerated":              {[]v1alpha1.Toleration{exists}, []Node{nodeWith("a", 4, gpu)}, nil, v1alpha1.Capacity{Allocatable: 4, Free: 4, MaxFreeOnNode: 4}},
		"every taint must be tolerated":     {[]v1alpha1.Toleration{exists}, []Node{nodeWith("a", 4, gpu, evicts)}, nil, v1alpha1.Capacity{}},
		"several tolerations do that":       {[]v1alpha1.Toleration{exists, {Key: "maintenance"}}, []Node{nodeWith("a", 4, gpu, evicts)}, nil, v1alpha1.Capacity{Allocatable: 4, Free: 4, MaxFreeOnNode: 4}},
		"the value must be the same":        {[]v1alpha1.Toleration{{Key: "nvidia.com/gpu", Value: "h100"}}, []Node{nodeWith("a", 4, gpu)}, nil, v1alpha1.Capacity{}},
		"the effect must be the same":       {[]v1alpha1.Toleration{{Key: "nvidia.com/gpu", Value: "l40s", Effect: corev1.TaintEffectNoExecute}}, []Node{nodeWith("a", 4, gpu)}, nil, v1alpha1.Capacity{}},
		"a preference keeps nobody away":    {nil, []Node{nodeWith("a", 4, shuns)}, nil, v1alpha1.Capacity{Allocatable: 4, Free: 4, MaxFreeOnNode: 4}},
		"all taints are tolerated at once":  {[]v1alpha1.Toleration{{Operator: corev1.TolerationOpExists}}, []Node{nodeWith("a", 4, gpu, evicts)}, nil, v1alpha1.Capacity{Allocatable: 4, Free: 4, MaxFreeOnNode: 4}},
		"absurd requests do not overflow":   {nil, []Node{nodeWith("a", 4)}, []Pod{podOn("a", math.MaxInt64, ""), podOn("a", math.MaxInt64, ""), podOn("b", 1, "")}, v1alpha1.Capacity{Allocatable: 4, Requested: MaxAmount}},
		"pods of unknown nodes are counted": {nil, nil, []Pod{podOn("gone", 1, corev1.PodRunning)}, v1alpha1.Capacity{Requested: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			c := class("l40s", device, time.Time{})
			c.Spec.Tolerations = tc.tolerations
			assert.Equal(t, tc.want, Capacity(&c, tc.nodes, tc.pods))
		})
	}
}

func TestCapacityHoldsTogether(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	c := class("l40s", device, time.Time{})
	phases := []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed}
	for range 2000 {
		var nodes []Node
		for i := range random.IntN(6) {
			n := nodeWith(fmt.Sprint(i), random.Int64N(9))
			n.Usable = random.IntN(4) > 0
			nodes = append(nodes, n)
		}
		var pods []Pod
		for range random.IntN(12) {
			name := fmt.Sprint(random.IntN(7)) // one too many
			if name == "6" {
				name = ""
			}
			pods = append(pods, podOn(name, random.Int64N(4), phases[random.IntN(len(phases))]))
		}
		got := Capacity(&c, nodes, pods)
		says := fmt.Sprintf("%+v of %v and %v", got, nodes, pods)
		assert.GreaterOrEqual(t, got.MaxFreeOnNode, int64(0), says)
		assert.GreaterOrEqual(t, got.Free, got.MaxFreeOnNode, says)
		assert.LessOrEqual(t, got.Free, got.MaxFreeOnNode*int64(len(nodes)), says)
		assert.LessOrEqual(t, got.Free, got.Allocatable, says)
		assert.GreaterOrEqual(t, got.Free, got.Allocatable-got.Requested, says)

		random.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		assert.Equal(t, got, Capacity(&c, nodes, pods), "order makes no difference")

		fits := podOn("0", 1, corev1.PodRunning)
		more := Capacity(&c, nodes, append(pods, fits))
		assert.Equal(t, got.Requested+1, more.Requested, says)
		assert.Equal(t, got.Allocatable, more.Allocatable, says)
		assert.Contains(t, []int64{got.Free, got.Free - 1}, more.Free, says)
		if t.Failed() {
			return
		}
	}
}

// requests returns a container that requests units of the device.
func requests(units string) corev1.Container {
	return corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		device: resource.MustParse(units), corev1.ResourceCPU: resource.MustParse("100m"), "kubernetes.io/batch": resource.MustParse("1"),
	}}}
}

func TestAPodRequestsWhatTheSchedulerSetsAside(t *testing.T) {
	init := requests
	sidecar := func(units string) corev1.Container {
		c, always := requests(units), corev1.ContainerRestartPolicyAlways
		c.RestartPolicy = &always
		return c
	}
	type containers = []corev1.Container
	for name, tc := range map[string]struct {
		init, containers containers
		want             Devices
	}{
		"nothing":                                   {nil, containers{{}}, Devices{}},
		"containers add up":                         {nil, containers{requests("2"), requests("1"), {}}, Devices{device: 3}},
		"init containers run before":                {containers{init("2"), init("1")}, containers{requests("3")}, Devices{device: 3}},
		"the largest init container counts":         {containers{init("1"), init("5"), init("2")}, containers{requests("3")}, Devices{device: 5}},
		"sidecars run beside the containers":        {containers{sidecar("1")}, containers{requests("3")}, Devices{device: 4}},
		"an init container runs beside sidecars":    {containers{sidecar("1"), init("4")}, containers{requests("3")}, Devices{device: 5}},
		"a sidecar behind it has not begun":         {containers{init("4"), sidecar("1")}, containers{requests("3")}, Devices{device: 4}},
		"a sidecar counts though nothing else asks": {containers{sidecar("1"), {}}, containers{{}}, Devices{device: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{
				Spec:   corev1.PodSpec{NodeName: "a", InitContainers: tc.init, Containers: tc.containers},
				Status: corev1.PodStatus{Phase: corev1.PodRunning},
			}
			assert.Equal(t, Pod{Node: "a", Phase: corev1.PodRunning, Devices: tc.want}, NewPod(pod))
		})
	}
}

func TestANodeIsUsableWhenPodsAndVMsMayStartThere(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Node)
		usable bool
	}{
		"ready":                            {func(*corev1.Node) {}, true},
		"ready, and KubeVirt agrees":       {func(n *corev1.Node) { n.Labels = map[string]string{virtv1.NodeSchedulable: "true"} }, true},
		"KubeVirt's agent does not answer": {func(n *corev1.Node) { n.Labels = map[string]string{virtv1.NodeSchedulable: "false"} }, false},
		"cordoned":                         {func(n *corev1.Node) { n.Spec.Unschedulable = true }, false},
		"not ready":                        {func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionFalse }, false},
		"its kubelet is silent":            {func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionUnknown }, false},
		"never reported":                   {func(n *corev1.Node) { n.Status.Conditions = nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			now := metav1.Now()
			n := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "a"},
				Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoExecute, TimeAdded: &now}}},
				Status: corev1.NodeStatus{
					Allocatable: requests("4").Resources.Requests,
					Conditions: []corev1.NodeCondition{
						{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue},
					},
				},
			}
			tc.change(n)
			assert.Equal(t, Node{
				Name: "a", Usable: tc.usable, Devices: Devices{device: 4},
				Taints: []corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoExecute}},
			}, NewNode(n))
		})
	}
}
