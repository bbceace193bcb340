// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"cozystack.io/gpu/hack/e2e/suite"
	"cozystack.io/gpu/pkg/gpu"
)

func TestVMNamesAClassAndRunsOnItsNode(t *testing.T) {
	classes(t)
	ns := namespace(t)
	vm(t, ns, "render", template(t, oneL40S, usualSpec))
	vm(t, ns, "train", template(t, twoH100, usualSpec))
	vm(t, ns, "neighbour", template(t, "", usualSpec))

	pod := waitBound(t, ns, "render")
	assert.Regexp(t, "^gpu-l40s-", pod.Spec.NodeName)
	assert.EqualValues(t, 1, requested(&pod, l40sResource))
	assert.Contains(t, pod.Spec.Tolerations, l40sTaint)
	assert.NotContains(t, pod.Spec.Tolerations, h100Taint)
	mounted := false
	for _, volume := range pod.Spec.Volumes {
		mounted = mounted || volume.Secret != nil && volume.Secret.SecretName == "gpu-license-l40s"
	}
	assert.True(t, mounted, "the pod mounts the licence")
	assertLicensed(t, waitPhase(t, ns, "render", "Running"))

	pod = waitBound(t, ns, "train")
	assert.Equal(t, "gpu-h100-0", pod.Spec.NodeName)
	assert.EqualValues(t, 2, requested(&pod, h100Resource))
	assert.Contains(t, pod.Spec.Tolerations, h100Taint)
	vmi := waitPhase(t, ns, "train", "Running")
	assert.Equal(t, entries(h100Resource, 2), nested(vmi, "spec", "domain", "devices", "gpus"))

	pod = waitBound(t, ns, "neighbour")
	assert.Equal(t, "plain-0", pod.Spec.NodeName)
	assert.NotContains(t, pod.Spec.Tolerations, l40sTaint)
	assert.NotContains(t, pod.Spec.Tolerations, h100Taint)
	vmi = waitPhase(t, ns, "neighbour", "Running")
	assert.Nil(t, nested(vmi, "spec", "domain", "devices", "gpus"))
}

func TestLicensedVMStartsOnlyOnceItsLicenceExists(t *testing.T) {
	classes(t)
	ns := env.Namespace(t, entitled)
	vm(t, ns, "early", template(t, oneL40S, usualSpec))
	waitBound(t, ns, "early")
	// A VM without a licence, made later, runs by now: the other one waits.
	vm(t, ns, "late", template(t, twoH100, usualSpec))
	waitPhase(t, ns, "late", "Running")
	assert.Equal(t, "Scheduling", nested(get(t, suite.VMIs, ns, "early"), "status", "phase"))

	env.Create(t, secrets, suite.Object(t, "{apiVersion: v1, kind: Secret, metadata: {name: gpu-license-l40s, namespace: %s}, stringData: {client_configuration_token.tok: not-a-real-token}}", ns))
	waitPhase(t, ns, "early", "Running")
}

func TestVMWaitsForAFreeUnit(t *testing.T) {
	class(t, "h100", "{mode: Passthrough, resourceName: nvidia.com/H100, maxCount: 8, tolerations: [{key: nvidia.com/gpu, operator: Exists}]}")
	ns := namespace(t)
	first := vm(t, ns, "first", template(t, `[{"className":"h100","count":7}]`, usualSpec))
	waitPhase(t, ns, "first", "Running")
	vm(t, ns, "second", template(t, twoH100, usualSpec))
	eventually(t, func(c *assert.CollectT) {
		vmi, err := env.Dynamic.Resource(suite.VMIs).Namespace(ns).Get(context.Background(), "second", metav1.GetOptions{})
		if assert.NoError(c, err) {
			assert.Equal(c, "Scheduling", nested(vmi, "status", "phase"))
			scheduled := condition(vmi, "PodScheduled")
			if assert.NotNil(c, scheduled) {
				assert.Equal(c, "False", scheduled["status"])
				assert.Contains(c, scheduled["message"], "Insufficient nvidia.com/H100")
			}
		}
	})
	env.Delete(t, vms, first)
	waitPhase(t, ns, "second", "Running")
}

// A refusal is read where users look: on the VM and in its events.
func TestRefusalIsReadableOnTheVM(t *testing.T) {
	classes(t)
	ns := namespace(t)
	env.Create(t, instancetype, suite.Object(t, `
apiVersion: instancetype.kubevirt.io/v1beta1
kind: VirtualMachineInstancetype
metadata: {name: with-gpu, namespace: %s}
spec: {cpu: {guest: 1}, memory: {guest: 1Gi}, gpus: [{name: mine, deviceName: nvidia.com/H100}]}
`, ns))
	const bare = `{domain: {devices: {}}, volumes: [{name: root, containerDisk: {image: example.com/debian:13}}]}`
	for name, tc := range map[string]struct{ annotation, spec, instancetype, want string }{
		"unknown-class": {`[{"className":"a100","count":1}]`, usualSpec, "", `GPU class "a100": there is no GPUClass of this name`},
		"too-many":      {`[{"className":"l40s","count":2}]`, usualSpec, "", "2 units asked for, but one VM may take at most 1"},
		"broken":        {`[{"className":"l40s"}]`, usualSpec, "", "[0].count: must be a whole number of at least 1, got nothing"},
		"instancetype":  {twoH100, bare, "with-gpu", "mine (nvidia.com/H100); remove them, also from the instancetype"},
	} {
		t.Run(name, func(t *testing.T) {
			object := suite.Object(t, "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: %s, namespace: %s}, spec: {runStrategy: Always}}", name, ns)
			require.NoError(t, unstructured.SetNestedMap(object.Object, template(t, tc.annotation, tc.spec), "spec", "template"))
			if tc.instancetype != "" {
				require.NoError(t, unstructured.SetNestedStringMap(object.Object, map[string]string{"name": tc.instancetype, "kind": "VirtualMachineInstancetype"}, "spec", "instancetype"))
			}
			env.Create(t, vms, object)
			eventually(t, func(c *assert.CollectT) {
				object, err := env.Dynamic.Resource(vms).Namespace(ns).Get(context.Background(), name, metav1.GetOptions{})
				require.NoError(c, err)
				failure := condition(object, "Failure")
				if assert.NotNil(c, failure, dump(nested(object, "status"))) {
					assert.Contains(c, failure["message"], tc.want)
				}
				events, err := env.Kube.CoreV1().Events(ns).List(context.Background(), metav1.ListOptions{FieldSelector: "involvedObject.kind=VirtualMachine,involvedObject.name=" + name})
				require.NoError(c, err)
				messages := ""
				for _, event := range events.Items {
					messages += event.Message + "\n"
				}
				assert.Contains(c, messages, tc.want)
			})
		})
	}
}

func TestMembersOfSetsGetTheirGPUs(t *testing.T) {
	classes(t)
	ns := namespace(t)
	// Volumes without disks, for which KubeVirt makes the disks.
	const spec = `
domain: {memory: {guest: 1Gi}, devices: {}}
volumes:
- {name: root, containerDisk: {image: example.com/debian:13}}
- {name: cloudinit, cloudInitNoCloud: {userData: "#cloud-config"}}
`
	labelled := func(annotation string) map[string]any {
		tmpl := template(t, annotation, spec)
		require.NoError(t, unstructured.SetNestedField(tmpl, "x", "metadata", "labels", "set"))
		return tmpl
	}
	set := suite.Object(t, "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstanceReplicaSet, metadata: {name: set, namespace: %s}, spec: {replicas: 2, selector: {matchLabels: {set: x}}}}", ns)
	require.NoError(t, unstructured.SetNestedMap(set.Object, labelled(oneL40S), "spec", "template"))
	env.Create(t, replicaSets, set)

	pool := suite.Object(t, `
apiVersion: pool.kubevirt.io/v1beta1
kind: VirtualMachinePool
metadata: {name: pool, namespace: %s}
spec:
  replicas: 1
  selector: {matchLabels: {pool: x}}
  virtualMachineTemplate: {metadata: {labels: {pool: x}}, spec: {runStrategy: Always}}
`, ns)
	require.NoError(t, unstructured.SetNestedMap(pool.Object, template(t, twoH100, usualSpec), "spec", "virtualMachineTemplate", "spec", "template"))
	env.Create(t, pools, pool)

	eventually(t, func(c *assert.CollectT) {
		list, err := env.Dynamic.Resource(suite.VMIs).Namespace(ns).List(context.Background(), metav1.ListOptions{})
		require.NoError(c, err)
		assert.Len(c, list.Items, 3)
		for _, vmi := range list.Items {
			pods := launchers(c, ns, vmi.GetName())
			require.Len(c, pods, 1)
			if vmi.GetLabels()["set"] == "x" {
				assertLicensed(c, &vmi)
				assert.Len(c, nested(&vmi, "spec", "domain", "devices", "disks"), 3)
				assert.Regexp(c, "^gpu-l40s-", pods[0].Spec.NodeName)
			} else {
				assert.Equal(c, entries(h100Resource, 2), nested(&vmi, "spec", "domain", "devices", "gpus"))
				assert.Equal(c, "gpu-h100-0", pods[0].Spec.NodeName)
			}
			assert.Equal(c, gpu.LabelValueTrue, pods[0].Labels[gpu.LabelGPUReference])
		}
	})
}
