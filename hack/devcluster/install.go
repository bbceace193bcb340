// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// InstallCRDs installs KubeVirt's resource definitions, as the binary of the
// module KubeVirt prints them, stand-ins for Cozystack's kinds, and those of the
// repository in root.
func (c *Cluster) InstallCRDs(ctx context.Context, root, kubevirt string) error {
	theirs, err := kubevirtObjects(ctx, kubevirt, "crds")
	if err != nil {
		return fmt.Errorf("install KubeVirt's CRDs: %w", err)
	}
	cozystack, err := fixture("cozystack.yaml")
	if err != nil {
		return err
	}
	ours, err := c.Kustomize(ctx, filepath.Join(root, "deploy", "crds"))
	if err != nil {
		return fmt.Errorf("install deploy/crds: %w", err)
	}
	if err := Apply(ctx, c.Config(), slices.Concat(theirs, cozystack, ours)); err != nil {
		return fmt.Errorf("install CRDs: %w", err)
	}
	return nil
}

// kubevirtObjects returns what a program of KubeVirt's binary prints. It asks
// once and keeps the answer beside the binary: the same binary always gives the
// same, and takes seconds for it.
func kubevirtObjects(ctx context.Context, kubevirt, program string) ([]*unstructured.Unstructured, error) {
	kept := kubevirt + "." + program
	data, err := os.ReadFile(kept)
	if errors.Is(err, os.ErrNotExist) {
		if data, err = output(ctx, kubevirt, program); err == nil {
			err = writeFile(kept, data, 0o644)
		}
	}
	if err != nil {
		return nil, err
	}
	return ParseObjects(bytes.NewReader(data))
}
