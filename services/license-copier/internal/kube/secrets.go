// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/services/license-copier/internal/plan"
)

// fieldManager is by what the API server notes that we wrote a Secret.
const fieldManager = "license-copier"

// Foreign returns the namespaces that hold a Secret of that name without
// LabelGPUClass. It asks the API server, for metadata only.
func (c *Clients) Foreign(ctx context.Context, name string) (sets.Set[string], error) {
	list, err := c.metadata.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).List(ctx, metav1.ListOptions{
		FieldSelector: metav1.ObjectNameField + "=" + name,
		LabelSelector: "!" + gpu.LabelGPUClass,
	})
	if err != nil {
		return nil, fmt.Errorf("look for secrets %s that are no copies: %w", name, err)
	}
	namespaces := sets.New[string]()
	for i := range list.Items {
		namespaces.Insert(list.Items[i].Namespace)
	}
	return namespaces, nil
}

// Create creates a copy.
func (c *Clients) Create(ctx context.Context, key plan.Key, class string, source *plan.Source) (*plan.Copy, error) {
	created, err := c.core.Secrets(key.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: key.Name, Labels: map[string]string{gpu.LabelGPUClass: class}},
		Type:       corev1.SecretTypeOpaque,
		Data:       source.Data,
	}, metav1.CreateOptions{FieldManager: fieldManager})
	if err != nil {
		return nil, fmt.Errorf("create secret %s: %w", key, err)
	}
	return newCopy(created), nil
}

// Update gives the copy its class and data, if it still is as it was decided
// on. Labels and annotations of others stay.
func (c *Clients) Update(ctx context.Context, have *plan.Copy, class string, source *plan.Source) (*plan.Copy, error) {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	patch, err := json.Marshal([]operation{
		// The API server refuses to store an object under another version
		// than its own.
		{"replace", "/metadata/resourceVersion", have.ResourceVersion},
		{"add", "/metadata/labels/" + strings.ReplaceAll(gpu.LabelGPUClass, "/", "~1"), class},
		{"add", "/data", source.Data},
	})
	if err != nil {
		return nil, fmt.Errorf("encode the update of secret %s/%s: %w", have.Namespace, have.Name, err)
	}
	updated, err := c.core.Secrets(have.Namespace).Patch(ctx, have.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return nil, fmt.Errorf("update secret %s/%s: %w", have.Namespace, have.Name, err)
	}
	return newCopy(updated), nil
}

// Delete deletes the copy, if it still is as it was decided on.
func (c *Clients) Delete(ctx context.Context, have *plan.Copy) error {
	err := c.core.Secrets(have.Namespace).Delete(ctx, have.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &have.UID, ResourceVersion: &have.ResourceVersion},
	})
	if err != nil {
		return fmt.Errorf("delete secret %s/%s: %w", have.Namespace, have.Name, err)
	}
	return nil
}
