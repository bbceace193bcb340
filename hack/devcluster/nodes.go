// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// NodeKeeper is the process that stands in for what runs on nodes.
const NodeKeeper = "nodekeeper"

// InstallNodes makes the nodes of fixtures/nodes.yaml, and starts what keeps
// them ready and lets their pods and VMs appear to run. It needs KubeVirt. It
// returns when the nodes are ready.
func (c *Cluster) InstallNodes(ctx context.Context, root string) error {
	if err := c.installNodes(ctx, root); err != nil {
		return fmt.Errorf("install nodes: %w", err)
	}
	return nil
}

func (c *Cluster) installNodes(ctx context.Context, root string) error {
	binary := c.path("bin", NodeKeeper)
	if err := buildPackage(ctx, root, "hack/devcluster", "./cmd/nodekeeper", binary); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, serviceTimeout)
	defer cancel()
	nodes, err := fixture("nodes.yaml")
	if err != nil {
		return err
	}
	if err := Apply(ctx, c.Config(), nodes); err != nil {
		return err
	}
	if err := ApplyStatus(ctx, c.Config(), nodes); err != nil {
		return err
	}
	handler, err := c.KubeconfigFor(ctx, kubevirtNamespace, "kubevirt-handler")
	if err != nil {
		return err
	}
	keeper, err := c.Spawn(Command{
		Name: NodeKeeper, Path: binary,
		Args: []string{"--kubeconfig=" + c.Kubeconfig(), "--handler-kubeconfig=" + handler},
	})
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(c.Config())
	if err != nil {
		return err
	}
	return keeper.waitFor(ctx, func(ctx context.Context) error {
		list, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if err := hasCondition(&list.Items[i], "Ready"); err != nil {
				return err
			}
		}
		return nil
	})
}
