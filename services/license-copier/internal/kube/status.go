// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// PatchStatus writes the conditions, the capacity and the observed generation
// of the status, if the class still is as it was judged. It returns the class's new resource
// version.
func (c *Clients) PatchStatus(ctx context.Context, class *v1alpha1.GPUClass, status v1alpha1.GPUClassStatus) (string, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": class.UID, "resourceVersion": class.ResourceVersion},
		"status": map[string]any{
			"observedGeneration": status.ObservedGeneration, "conditions": status.Conditions, "capacity": status.Capacity,
		},
	})
	if err != nil {
		return "", fmt.Errorf("encode the status of gpuclass %s: %w", class.Name, err)
	}
	patched := &v1alpha1.GPUClass{}
	err = c.classes.Patch(types.MergePatchType).Resource("gpuclasses").Name(class.Name).SubResource("status").
		Body(patch).Do(ctx).Into(patched)
	if err != nil {
		return "", fmt.Errorf("patch the status of gpuclass %s: %w", class.Name, err)
	}
	return patched.ResourceVersion, nil
}
