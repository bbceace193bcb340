// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds the API types of cozystack.io/v1alpha1.
//
// +groupName=cozystack.io
// +kubebuilder:object:generate=true
package v1alpha1
