// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of this package's types.
var GroupVersion = schema.GroupVersion{Group: "cozystack.io", Version: "v1alpha1"}

// GPUClass is a kind of GPU that a hoster sells: a device resource of the
// nodes, together with what a VM needs to run on it.
//
// The name is the class's identity for tenants. It becomes a label value and,
// as class.<name>, the name part of a quota key, hence its limits.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=gpuclasses,singular=gpuclass,scope=Cluster,shortName=gpuc
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Resource",type=string,JSONPath=`.spec.resourceName`
// +kubebuilder:printcolumn:name="Max",type=integer,JSONPath=`.spec.maxCount`,description="Units one VM may take; empty for the mode's default"
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.capacity.free`
// +kubebuilder:printcolumn:name="Conflict",type=string,JSONPath=`.status.conditions[?(@.type=="ResourceNameConflict")].status`
// +kubebuilder:printcolumn:name="License",type=string,JSONPath=`.spec.license.secretName`
// +kubebuilder:printcolumn:name="License-Missing",type=string,JSONPath=`.status.conditions[?(@.type=="LicenseSecretMissing")].status`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 57 && !self.metadata.name.contains('.')",message="the name of a GPUClass is a DNS label of at most 57 characters, without dots: it becomes a label value and part of a quota key"
type GPUClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec GPUClassSpec `json:"spec"`
	// +optional
	Status GPUClassStatus `json:"status,omitzero"`
}

// GPUClassList is a list of GPUClasses.
//
// +kubebuilder:object:root=true
type GPUClassList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GPUClass `json:"items"`
}

// Mode says how a VM gets the device.
//
// +kubebuilder:validation:Enum=VGPU;Passthrough
type Mode string

const (
	// ModeVGPU hands a VM a mediated device, a slice of a GPU.
	ModeVGPU Mode = "VGPU"
	// ModePassthrough hands a VM a whole PCI device.
	ModePassthrough Mode = "Passthrough"
)

// GPUClassSpec is what the hoster decides about a class.
//
// +kubebuilder:validation:XValidation:rule="self.mode == 'VGPU' || !has(self.license)",fieldPath=".license",message="only a class of mode VGPU takes a license; remove it or change the mode"
type GPUClassSpec struct {
	// DisplayName is the name shown to people.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=256
	DisplayName string `json:"displayName,omitempty"`

	// Mode says how a VM gets the device: VGPU or Passthrough.
	//
	// +required
	Mode Mode `json:"mode"`

	// ResourceName is the extended resource that the device plugin advertises,
	// such as nvidia.com/L40S-24C.
	//
	// The length and the requests. prefix follow the rule for extended
	// resources in Kubernetes' core validation: "requests." in front of the
	// name must still leave a qualified name.
	//
	// +required
	// +kubebuilder:validation:MaxLength=308
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="!self.contains('kubernetes.io/')",message="names under kubernetes.io are Kubernetes' own; give the extended resource of the device plugin, such as nvidia.com/L40S-24C"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('requests.')",message="an extended resource does not begin with requests.; give the name that nodes advertise"
	// +kubebuilder:validation:XValidation:rule="self.indexOf('/') <= 244",message="the domain of an extended resource has at most 244 characters"
	ResourceName string `json:"resourceName"`

	// MaxCount is how many units one VM may take. Without it, 1 for VGPU and
	// 16 for Passthrough.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	MaxCount *int32 `json:"maxCount,omitempty"`

	// Tolerations are added to the launcher pods of VMs that take this class,
	// behind those that a pod has: they do not prolong one that is limited by
	// tolerationSeconds.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Tolerations []Toleration `json:"tolerations,omitempty"`

	// License names the hoster's Secret with the vGPU licence.
	//
	// +optional
	License *License `json:"license,omitempty"`
}

// License names a licence Secret.
type License struct {
	// SecretName is a Secret in the namespace where the hoster keeps licences.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	SecretName string `json:"secretName"`
}

// Toleration is core/v1's Toleration with the pod API's own validation in its
// schema, so that what a pod could not carry is refused where it is written.
// Its fields are core/v1's in their order: corev1.Toleration(t) converts.
//
// +kubebuilder:validation:XValidation:rule="has(self.key) && size(self.key) > 0 || has(self.operator) && self.operator == 'Exists'",fieldPath=".operator",message="operator must be Exists when key is empty, which tolerates every taint"
// +kubebuilder:validation:XValidation:rule="!has(self.operator) || self.operator != 'Exists' || !has(self.value) || size(self.value) == 0",fieldPath=".value",message="value must be empty when operator is Exists"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",fieldPath=".effect",message="effect must be NoExecute when tolerationSeconds is set"
type Toleration struct {
	// Key is the taint key; empty, with operator Exists, tolerates every taint.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^(([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`
	// +kubebuilder:validation:XValidation:rule="self.indexOf('/') <= 253",message="the prefix of a taint key has at most 253 characters"
	Key string `json:"key,omitempty"`
	// Operator is Equal (the default) or Exists.
	//
	// +optional
	// +kubebuilder:validation:Enum="";Equal;Exists
	Operator corev1.TolerationOperator `json:"operator,omitempty"`
	// Value is the taint's value for operator Equal.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
	Value string `json:"value,omitempty"`
	// Effect is the taint's effect; empty matches every effect.
	//
	// +optional
	// +kubebuilder:validation:Enum="";NoSchedule;PreferNoSchedule;NoExecute
	Effect corev1.TaintEffect `json:"effect,omitempty"`
	// TolerationSeconds is how long a NoExecute taint is tolerated; forever
	// without it.
	//
	// +optional
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}

var _ = corev1.Toleration(Toleration{})

// GPUClassStatus is what the cluster knows about a class.
type GPUClassStatus struct {
	// ObservedGeneration is the generation of the spec that the status judges.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions are ResourceNameConflict and LicenseSecretMissing.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Capacity counts the class's units on the cluster's nodes.
	//
	// +optional
	Capacity *Capacity `json:"capacity,omitempty"`
}

// Capacity counts units of a class.
type Capacity struct {
	// Allocatable is the units on ready, schedulable nodes whose taints the
	// class tolerates.
	Allocatable int64 `json:"allocatable"`
	// Requested is the units that pods bound to nodes and not finished hold.
	Requested int64 `json:"requested"`
	// Free is the units that are allocatable and not requested. It can be more
	// than the difference of the two: pods hold units on other nodes too.
	Free int64 `json:"free"`
	// MaxFreeOnNode is the most units free on a single node: a VM that asks
	// for more fits nowhere.
	MaxFreeOnNode int64 `json:"maxFreeOnNode"`
}
