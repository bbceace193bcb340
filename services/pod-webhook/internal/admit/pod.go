// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	kjson "sigs.k8s.io/json"

	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// pod is the part of a pod that the decision reads. It is never written back.
type pod struct {
	Metadata struct {
		Annotations map[string]string `json:"annotations"`
		Labels      map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Tolerations    []corev1.Toleration `json:"tolerations"`
		Containers     []container         `json:"containers"`
		InitContainers []container         `json:"initContainers"`
	} `json:"spec"`
}

type container struct {
	Resources struct {
		Requests corev1.ResourceList `json:"requests"`
	} `json:"resources"`
}

func decode(raw []byte) (*pod, error) {
	p := &pod{}
	return p, kjson.UnmarshalCaseSensitivePreserveInts(raw, p)
}

// requests reports whether a container of the pod requests the resource. The
// API server has filled in requests from limits before it asks.
func (p *pod) requests(resourceName string) bool {
	for _, containers := range [][]container{p.Spec.Containers, p.Spec.InitContainers} {
		for _, c := range containers {
			if quantity, ok := c.Resources.Requests[corev1.ResourceName(resourceName)]; ok && !quantity.IsZero() {
				return true
			}
		}
	}
	return false
}

// missing returns the tolerations of the classes that the pod does not have
// yet, each once, in the order of the classes and of their lists. A class
// whose device the pod does not request brings none: label and annotation of a
// running VM can be edited, what its pod requests cannot.
func missing(p *pod, classes []*v1alpha1.GPUClass) []corev1.Toleration {
	have := slices.Clone(p.Spec.Tolerations)
	for _, class := range classes {
		if !p.requests(class.Spec.ResourceName) {
			continue
		}
		for _, t := range class.Spec.Tolerations {
			toleration := corev1.Toleration(t)
			if !slices.ContainsFunc(have, func(other corev1.Toleration) bool { return same(toleration, other) }) {
				have = append(have, toleration)
			}
		}
	}
	return have[len(p.Spec.Tolerations):]
}

// same reports whether the tolerations tolerate the same taints for the same
// time.
func same(a, b corev1.Toleration) bool {
	normal := func(t corev1.Toleration) corev1.Toleration {
		if t.Operator == "" {
			t.Operator = corev1.TolerationOpEqual
		}
		return t
	}
	return equality.Semantic.DeepEqual(normal(a), normal(b))
}

// operation is a JSON patch operation (RFC 6902). Only add is needed.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// patch returns the operations that add the tolerations behind those the pod
// has.
func patch(p *pod, tolerations []corev1.Toleration) []operation {
	const path = "/spec/tolerations"
	if len(tolerations) == 0 {
		return nil
	}
	if len(p.Spec.Tolerations) == 0 {
		return []operation{{Op: "add", Path: path, Value: tolerations}}
	}
	ops := make([]operation, len(tolerations))
	for i, toleration := range tolerations {
		ops[i] = operation{Op: "add", Path: path + "/-", Value: toleration}
	}
	return ops
}
