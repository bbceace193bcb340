// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"k8s.io/apimachinery/pkg/util/sets"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// Wanted is a copy that there must be.
type Wanted struct {
	Key
	Class string
	// Source is what the copy holds. It is nil while the hoster's Secret is
	// missing or has no token: a copy that exists stays as it is, and none is
	// made.
	Source *Source
}

// Desired returns the copies of the classes' licences that the namespaces must
// have: one for each class with a licence in each namespace. Where the hoster's
// Secret has the name of its own copy, it serves as the copy.
func Desired(classes []*v1alpha1.GPUClass, namespaces []Namespace, sources Sources) []Wanted {
	var wanted []Wanted
	for _, class := range classes {
		secret := licenseOf(class)
		if secret == "" {
			continue
		}
		name := gpu.LicenseSecretName(class.Name)
		source := sources.Secret(secret)
		if source != nil && !source.HasToken() {
			source = nil
		}
		for _, namespace := range namespaces {
			if namespace.Terminating || namespace.Name == sources.Namespace && name == secret {
				continue
			}
			wanted = append(wanted, Wanted{
				Key: Key{Namespace: namespace.Name, Name: name}, Class: class.Name, Source: source,
			})
		}
	}
	return wanted
}

// Protected returns the Secrets that are the hoster's, whatever their name and
// labels: those that any of the classes names as its source, and of the actual
// copies those in the licence namespace that this service did not write. Such a
// one may be the source of a class that is to come, or to come back.
func Protected(classes []*v1alpha1.GPUClass, actual []*Copy, sources Sources) sets.Set[Key] {
	protected := sets.New[Key]()
	for _, class := range classes {
		if license := class.Spec.License; license != nil {
			protected.Insert(Key{Namespace: sources.Namespace, Name: license.SecretName})
		}
	}
	for _, c := range actual {
		if c.Namespace == sources.Namespace && !c.Ours {
			protected.Insert(Key{Namespace: c.Namespace, Name: c.Name})
		}
	}
	return protected
}

// licenseOf returns the name of the class's licence Secret, or nothing for a
// class that needs none.
func licenseOf(class *v1alpha1.GPUClass) string {
	if class.Spec.Mode != v1alpha1.ModeVGPU || class.Spec.License == nil {
		return ""
	}
	return class.Spec.License.SecretName
}
