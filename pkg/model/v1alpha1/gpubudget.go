// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// GPUBudgetName is the name of the one GPUBudget in a namespace.
const GPUBudgetName = "gpu"

// GPUBudget says how much of a tenant's GPU budget is used and what is left.
// It stands in the namespace of the tenant that declares the budget.
//
// budget-checker alone writes it. It is also the ledger by which the checker's
// replicas agree: each admitted write is entered here, by compare-and-swap,
// before it is answered.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=gpubudgets,singular=gpubudget,scope=Namespaced
// +kubebuilder:printcolumn:name="Left",type=string,JSONPath=`.status.left`,description="Units left of each budget"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GPUBudget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Status GPUBudgetStatus `json:"status,omitzero"`
}

// GPUBudgetList is a list of GPUBudgets.
//
// +kubebuilder:object:root=true
type GPUBudgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GPUBudget `json:"items"`
}

// GPUBudgetStatus is the state of the pools that are rooted in the namespace,
// one for each key, and of the writes in flight.
type GPUBudgetStatus struct {
	// Left says in one line what is left of each budget.
	//
	// +optional
	Left string `json:"left,omitempty"`

	// Pools holds the state of each key that the tenant declares.
	//
	// +optional
	// +listType=map
	// +listMapKey=key
	Pools []GPUBudgetPool `json:"pools,omitempty"`

	// Holds are the admitted writes that have not been seen yet. Each reserves
	// its units until it is seen or 90 seconds have passed.
	//
	// +optional
	// +listType=atomic
	Holds []GPUBudgetHold `json:"holds,omitempty"`

	// Observed holds, for each resource that is counted, the resource version
	// that the state reflects. A replica that has seen less does not judge.
	//
	// +optional
	Observed map[string]string `json:"observed,omitempty"`

	// Barrier, when set, says that writes in flight may be missing from Holds.
	// No write that raises anything is admitted until 90 seconds after it was
	// set to this value.
	//
	// +optional
	Barrier types.UID `json:"barrier,omitempty"`
}

// GPUBudgetPool is the state of one key, in units.
type GPUBudgetPool struct {
	// Key is the key of the tenant's quotas, such as gpu.cozystack.io/total.
	//
	// +required
	Key string `json:"key"`

	// Limit is what the tenant declares.
	//
	// +required
	Limit int64 `json:"limit"`

	// CarvedOut is what tenants below declare for themselves.
	//
	// +required
	CarvedOut int64 `json:"carvedOut"`

	// Used is what stored objects of the pool's namespaces use.
	//
	// +required
	Used int64 `json:"used"`

	// Reserved is what writes in flight may use beyond that.
	//
	// +required
	Reserved int64 `json:"reserved"`

	// Free is what is left of the limit, at least 0.
	//
	// +required
	Free int64 `json:"free"`
}

// GPUBudgetHold is an admitted write that has not been seen yet.
type GPUBudgetHold struct {
	// UID is the admission request's.
	//
	// +required
	UID types.UID `json:"uid"`

	// Resource, Namespace and Name tell which object is written.
	//
	// +required
	Resource string `json:"resource"`
	// +required
	Namespace string `json:"namespace"`
	// +required
	Name string `json:"name"`

	// Amounts are the object's units by quota key after the write: what it
	// uses, or what a tenant declares.
	//
	// +optional
	Amounts map[string]int64 `json:"amounts,omitempty"`
}
