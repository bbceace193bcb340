// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	virtv1 "kubevirt.io/api/core/v1"

	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// Devices are units of extended resources, by resource name.
type Devices map[string]int64

// Names returns the resource names, in no order.
func (d Devices) Names() []string { return slices.Collect(maps.Keys(d)) }

// Node is what a class's capacity is counted from, of a node.
type Node struct {
	Name string
	// Usable tells that the node is ready and takes new pods and VMs.
	Usable bool
	Taints []corev1.Taint
	// Devices are those that are allocatable.
	Devices Devices
}

// Pod is what a class's capacity is counted from, of a pod.
type Pod struct {
	// Node is the name of the node that the pod is bound to, or nothing.
	Node  string
	Phase corev1.PodPhase
	// Devices are those that the pod requests.
	Devices Devices
}

// NewNode returns what counts of the node. It is usable if it has the condition
// Ready, is not cordoned, and KubeVirt does not keep VMs from it.
func NewNode(node *corev1.Node) Node {
	ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	counted := Node{
		Name:    node.Name,
		Usable:  ready && !node.Spec.Unschedulable && node.Labels[virtv1.NodeSchedulable] != "false",
		Devices: devicesOf(node.Status.Allocatable),
	}
	for _, taint := range node.Spec.Taints {
		counted.Taints = append(counted.Taints, corev1.Taint{Key: taint.Key, Value: taint.Value, Effect: taint.Effect})
	}
	return counted
}

// NewPod returns what counts of the pod. Its requests are those that the
// scheduler sets aside for it.
func NewPod(pod *corev1.Pod) Pod {
	return Pod{Node: pod.Spec.NodeName, Phase: pod.Status.Phase, Devices: requestedDevices(&pod.Spec)}
}

// requestedDevices follows Kubernetes' rule for pods: containers and sidecars run
// together; an init container runs alone but for the sidecars before it. The
// larger of the two counts.
func requestedDevices(spec *corev1.PodSpec) Devices {
	together, most := Devices{}, Devices{}
	for _, container := range spec.InitContainers {
		sidecar := container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways
		for name, units := range devicesOf(container.Resources.Requests) {
			if sidecar {
				together[name] = add(together[name], units)
			} else {
				most[name] = max(most[name], add(together[name], units))
			}
		}
	}
	for _, container := range spec.Containers {
		for name, units := range devicesOf(container.Resources.Requests) {
			together[name] = add(together[name], units)
		}
	}
	for name, units := range together {
		most[name] = max(most[name], units)
	}
	return most
}

// devicesOf returns the extended resources in the list: those with a domain that
// is not Kubernetes' own, as the schema of GPUClass has it.
func devicesOf(list corev1.ResourceList) Devices {
	units := Devices{}
	for name, quantity := range list {
		if strings.Contains(string(name), "/") && !strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix) {
			units[string(name)] = quantity.Value()
		}
	}
	return units
}

// Capacity counts the class's units. A node that is not usable, or has a taint
// that keeps the class's pods away, offers none; what pods hold there is
// requested all the same, but nowhere free. Amounts end at MaxAmount.
func Capacity(class *v1alpha1.GPUClass, nodes []Node, pods []Pod) v1alpha1.Capacity {
	var capacity v1alpha1.Capacity
	resource := class.Spec.ResourceName
	held := map[string]int64{} // by node
	for _, pod := range pods {
		if pod.Node == "" || pod.Phase == corev1.PodSucceeded || pod.Phase == corev1.PodFailed {
			continue
		}
		held[pod.Node] = add(held[pod.Node], pod.Devices[resource])
		capacity.Requested = add(capacity.Requested, pod.Devices[resource])
	}
	for _, node := range nodes {
		if !node.Usable || !toleratesAll(class.Spec.Tolerations, node.Taints) {
			continue
		}
		free := max(0, node.Devices[resource]-held[node.Name])
		capacity.Allocatable = add(capacity.Allocatable, node.Devices[resource])
		capacity.Free = add(capacity.Free, free)
		capacity.MaxFreeOnNode = max(capacity.MaxFreeOnNode, free)
	}
	return capacity
}

// toleratesAll reports whether the scheduler would place a pod with the
// tolerations on a node with the taints.
func toleratesAll(tolerations []v1alpha1.Toleration, taints []corev1.Taint) bool {
	return !slices.ContainsFunc(taints, func(taint corev1.Taint) bool {
		return taint.Effect != corev1.TaintEffectPreferNoSchedule &&
			!slices.ContainsFunc(tolerations, func(t v1alpha1.Toleration) bool {
				toleration := corev1.Toleration(t)
				return toleration.ToleratesTaint(klog.Logger{}, &taint, false)
			})
	})
}

// add returns the sum of two amounts, at most MaxAmount. A pod may name any
// amount, and its author the node.
func add(a, b int64) int64 { return min(min(a, MaxAmount)+min(b, MaxAmount), MaxAmount) }
