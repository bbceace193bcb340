// SPDX-License-Identifier: Apache-2.0

// Package e2e tests that VMs as Cozystack's charts render them get their GPUs
// from the webhooks, with KubeVirt's own control plane.
package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"cozystack.io/gpu/hack/cozystack"
	"cozystack.io/gpu/hack/devcluster"
	"cozystack.io/gpu/hack/e2e/suite"
	"cozystack.io/gpu/pkg/gpu"
)

var (
	env suite.Env

	vms = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachines"}
)

func TestMain(m *testing.M) {
	os.Exit(suite.Main(m, &env, setUp))
}

func setUp(ctx context.Context) error {
	if err := env.InstallKubeVirt(ctx); err != nil {
		return err
	}
	for _, service := range []string{"vmi-webhook", "pod-webhook"} {
		if _, err := env.Cluster.InstallService(ctx, env.Root, service, devcluster.ServiceOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func TestRenderedVMsGetTheirGPUs(t *testing.T) {
	env.Create(t, suite.GPUClasses, suite.Object(t, `
apiVersion: cozystack.io/v1alpha1
kind: GPUClass
metadata: {name: h100}
spec: {mode: Passthrough, resourceName: nvidia.com/H100, tolerations: [{key: nvidia.com/gpu, operator: Exists}]}
`))
	ns := env.Namespace(t, nil)
	const twoOfAClass = "{maxReplicas: 3, gpus: [{className: h100, count: 2}]}"
	env.Create(t, vms, cozystack.Object(t, render(t, cozystack.Wired(t, "vm"), ns, "instance", twoOfAClass)))
	env.Create(t, vms, worker(t, render(t, cozystack.Wired(t, "pool"), ns, "worker", twoOfAClass)))
	env.Create(t, vms, cozystack.Object(t, render(t, cozystack.Wired(t, "vm"), ns, "raw", "gpus: [{name: nvidia.com/H100}]")))

	for _, name := range []string{"instance", "worker"} {
		vmi := waitLaunched(t, ns, name, "gpu-h100-0")
		assert.Equal(t, []any{
			map[string]any{"name": "gpuclass-0", "deviceName": "nvidia.com/H100"},
			map[string]any{"name": "gpuclass-1", "deviceName": "nvidia.com/H100"},
		}, devices(t, vmi), name)
	}

	// No class, no toleration: it waits for a node, with the devices of its own.
	raw := waitLaunched(t, ns, "raw", "")
	assert.Equal(t, []any{map[string]any{"name": "gpu1", "deviceName": "nvidia.com/H100"}}, devices(t, raw))
	assert.NotContains(t, raw.GetAnnotations(), gpu.AnnotationGPUs)
	assert.NotContains(t, raw.GetLabels(), gpu.LabelGPUReference)
}

func TestOverlayHasTheAPITypesAndEveryService(t *testing.T) {
	names := func(dir string) (names []string) {
		objects, err := env.Cluster.Kustomize(t.Context(), dir)
		require.NoError(t, err)
		for _, object := range objects {
			names = append(names, object.GetKind()+" "+object.GetNamespace()+"/"+object.GetName())
		}
		return names
	}
	deploy := filepath.Join(env.Root, "deploy")
	want := names(filepath.Join(deploy, "crds"))
	services, err := filepath.Glob(filepath.Join(deploy, "*", "deployment.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, services)
	for _, service := range services {
		want = append(want, names(filepath.Dir(service))...)
	}
	assert.Subset(t, names(filepath.Join(deploy, "cozystack")), want)
}

func render(t *testing.T, c *chart.Chart, namespace, name, values string) string {
	t.Helper()
	out, err := cozystack.Render(c, namespace, name, cozystack.Values(t, values))
	require.NoError(t, err)
	return out
}

// worker returns the VM that the Cluster API provider makes of the pool's
// machine template: the template's spec and labels under a name of its own.
func worker(t *testing.T, pool string) *unstructured.Unstructured {
	t.Helper()
	machine, _, found := strings.Cut(pool, "\n---\n")
	require.True(t, found)
	template := cozystack.Object(t, machine)
	spec, found, err := unstructured.NestedMap(template.Object, "spec", "template", "spec", "virtualMachineTemplate", "spec")
	require.NoError(t, err)
	require.True(t, found)
	vm := suite.Object(t, "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: worker, namespace: %s}}", template.GetNamespace())
	vm.Object["spec"] = spec
	return vm
}

// waitLaunched waits until the VMI has a launcher pod: on the node, or judged
// by the scheduler and on none if node is empty. It returns the VMI.
func waitLaunched(t *testing.T, namespace, name, node string) (vmi *unstructured.Unstructured) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var err error
		vmi, err = env.Dynamic.Resource(suite.VMIs).Namespace(namespace).Get(context.Background(), name, metav1.GetOptions{})
		require.NoError(c, err)
		pods, err := env.Kube.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{LabelSelector: "vm.kubevirt.io/name=" + name})
		require.NoError(c, err)
		require.Len(c, pods.Items, 1)
		assert.Equal(c, node, pods.Items[0].Spec.NodeName)
		assert.NotEmpty(c, pods.Items[0].Status.Conditions, "not scheduled yet")
	}, 60*time.Second, 100*time.Millisecond, "VMI %s has no launcher pod", name)
	return vmi
}

// devices returns the VMI's GPU entries.
func devices(t *testing.T, vmi *unstructured.Unstructured) []any {
	t.Helper()
	entries, _, err := unstructured.NestedSlice(vmi.Object, "spec", "domain", "devices", "gpus")
	require.NoError(t, err)
	return entries
}
