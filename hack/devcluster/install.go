// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// InstallCRDs installs KubeVirt's resource definitions, as the binary of the
// module KubeVirt prints them, and those of the repository in root.
func (c *Cluster) InstallCRDs(ctx context.Context, root, kubevirt string) error {
	theirs, err := kubevirtCRDs(ctx, kubevirt)
	if err != nil {
		return fmt.Errorf("install KubeVirt's CRDs: %w", err)
	}
	ours, err := c.Kustomize(ctx, filepath.Join(root, "deploy", "crds"))
	if err != nil {
		return fmt.Errorf("install deploy/crds: %w", err)
	}
	if err := Apply(ctx, c.Config(), append(theirs, ours...)); err != nil {
		return fmt.Errorf("install CRDs: %w", err)
	}
	return nil
}

// kubevirtCRDs asks the binary once and keeps the answer beside it: the same
// binary always gives the same, and takes seconds for it.
func kubevirtCRDs(ctx context.Context, kubevirt string) ([]*unstructured.Unstructured, error) {
	kept := kubevirt + ".crds"
	data, err := os.ReadFile(kept)
	if errors.Is(err, os.ErrNotExist) {
		if data, err = output(ctx, kubevirt, "crds"); err == nil {
			err = writeFile(kept, data, 0o644)
		}
	}
	if err != nil {
		return nil, err
	}
	return ParseObjects(bytes.NewReader(data))
}
