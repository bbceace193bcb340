// SPDX-License-Identifier: Apache-2.0

// Package kubevirt tests both webhooks with KubeVirt's own control plane and
// the real scheduler: from a VirtualMachine to the node its pod is bound to.
package kubevirt

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"cozystack.io/gpu/hack/devcluster"
	"cozystack.io/gpu/hack/e2e/suite"
	"cozystack.io/gpu/pkg/gpu"
)

var (
	env        = suite.Env{AuditLog: true, Services: []string{"vmi-webhook", "pod-webhook"}}
	podWebhook *devcluster.Service
)

var (
	vms          = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachines"}
	replicaSets  = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstancereplicasets"}
	pools        = schema.GroupVersionResource{Group: "pool.kubevirt.io", Version: "v1beta1", Resource: "virtualmachinepools"}
	migrations   = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstancemigrations"}
	instancetype = schema.GroupVersionResource{Group: "instancetype.kubevirt.io", Version: "v1beta1", Resource: "virtualmachineinstancetypes"}
	dataVolumes  = schema.GroupVersionResource{Group: "cdi.kubevirt.io", Version: "v1beta1", Resource: "datavolumes"}
	pvcs         = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	pvs          = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}
	secrets      = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	storage      = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"}
)

const (
	l40sResource = "nvidia.com/L40S-24C"
	h100Resource = "nvidia.com/H100"

	timeout  = 60 * time.Second
	interval = 100 * time.Millisecond

	oneL40S = `[{"className":"l40s","count":1}]`
	twoH100 = `[{"className":"h100","count":2}]`
)

var (
	entitled      = map[string]string{gpu.LabelNamespaceVGPU: gpu.LabelValueTrue}
	l40sTaint     = corev1.Toleration{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpEqual, Value: "l40s", Effect: corev1.TaintEffectNoSchedule}
	h100Taint     = corev1.Toleration{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpEqual, Value: "h100", Effect: corev1.TaintEffectNoSchedule}
	licenseDisk   = licenseDiskOn("sata")
	licenseVolume = map[string]any{"name": "gpu-license", "secret": map[string]any{"secretName": "gpu-license-l40s", "volumeLabel": "vgpu-license"}}
)

// licenseDiskOn is the licence disk as it is stored, with all that KubeVirt
// sets by default.
func licenseDiskOn(bus string) map[string]any {
	return map[string]any{"name": "gpu-license", "cdrom": map[string]any{"bus": bus, "readonly": true, "tray": "closed"}}
}

// classes creates the classes l40s and h100, whose nodes are tainted.
func classes(t testing.TB) {
	t.Helper()
	class(t, "l40s", "{mode: VGPU, resourceName: nvidia.com/L40S-24C, license: {secretName: l40s-token}, tolerations: [{key: nvidia.com/gpu, operator: Equal, value: l40s, effect: NoSchedule}]}")
	class(t, "h100", "{mode: Passthrough, resourceName: nvidia.com/H100, tolerations: [{key: nvidia.com/gpu, operator: Equal, value: h100, effect: NoSchedule}]}")
}

func class(t testing.TB, name, spec string) *unstructured.Unstructured {
	t.Helper()
	return env.Create(t, suite.GPUClasses, suite.Object(t, "{apiVersion: cozystack.io/v1alpha1, kind: GPUClass, metadata: {name: %s}, spec: %s}", name, spec))
}

// namespace creates an entitled namespace with the licence of class l40s.
func namespace(t testing.TB) string {
	t.Helper()
	name := env.Namespace(t, entitled)
	env.Create(t, secrets, suite.Object(t, "{apiVersion: v1, kind: Secret, metadata: {name: gpu-license-l40s, namespace: %s}, stringData: {client_configuration_token.tok: not-a-real-token}}", name))
	return name
}

// template returns a VM template whose VMs name the classes of the annotation,
// or none if it is empty. Its spec is in YAML.
func template(t testing.TB, annotation, spec string) map[string]any {
	t.Helper()
	metadata := map[string]any{}
	if annotation != "" {
		metadata["labels"] = map[string]any{gpu.LabelGPUReference: gpu.LabelValueTrue}
		metadata["annotations"] = map[string]any{gpu.AnnotationGPUs: annotation}
	}
	var parsed any
	require.NoError(t, yaml.Unmarshal([]byte(spec), &parsed))
	return map[string]any{"metadata": metadata, "spec": parsed}
}

// usualSpec boots from a containerDisk and has a cloud-init disk.
const usualSpec = `
domain:
  cpu: {sockets: 1}
  memory: {guest: 1Gi}
  devices:
    disks:
    - {name: root, disk: {bus: virtio}}
    - {name: cloudinit, disk: {bus: virtio}}
volumes:
- {name: root, containerDisk: {image: example.com/debian:13}}
- {name: cloudinit, cloudInitNoCloud: {userData: "#cloud-config"}}
`

// vm creates a VM with the template, which runs until the test ends.
func vm(t testing.TB, namespace, name string, template map[string]any) *unstructured.Unstructured {
	t.Helper()
	object := suite.Object(t, "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: %s, namespace: %s}, spec: {runStrategy: Always}}", name, namespace)
	require.NoError(t, unstructured.SetNestedMap(object.Object, template, "spec", "template"))
	return env.Create(t, vms, object)
}

// get returns an object.
func get(t testing.TB, resource schema.GroupVersionResource, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	object, err := env.Dynamic.Resource(resource).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return object
}

// patch applies a merge patch, in YAML.
func patch(t testing.TB, resource schema.GroupVersionResource, namespace, name, patch string, subresource ...string) {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(patch))
	require.NoError(t, err)
	_, err = env.Dynamic.Resource(resource).Namespace(namespace).Patch(context.WithoutCancel(t.Context()), name, types.MergePatchType, raw, metav1.PatchOptions{}, subresource...)
	require.NoError(t, err)
}

// eventually polls until check has no complaint.
func eventually(t testing.TB, check func(c *assert.CollectT), explanation ...any) {
	t.Helper()
	require.EventuallyWithT(t, check, timeout, interval, explanation...)
}

// launchers returns the launcher pods of a VMI that are not being deleted.
func launchers(t require.TestingT, namespace, vmi string) []corev1.Pod {
	list, err := env.Kube.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{LabelSelector: "kubevirt.io=virt-launcher"})
	require.NoError(t, err)
	var pods []corev1.Pod
	for _, pod := range list.Items {
		if pod.Annotations["kubevirt.io/domain"] == vmi && pod.DeletionTimestamp == nil {
			pods = append(pods, pod)
		}
	}
	return pods
}

// waitBound waits until the VMI has one launcher pod, bound to a node.
func waitBound(t testing.TB, namespace, vmi string) corev1.Pod {
	t.Helper()
	var pod corev1.Pod
	eventually(t, func(c *assert.CollectT) {
		pods := launchers(c, namespace, vmi)
		if assert.Len(c, pods, 1) {
			pod = pods[0]
			assert.NotEmpty(c, pod.Spec.NodeName)
		}
	}, "VMI %s has no launcher pod on a node", vmi)
	return pod
}

// waitPhase waits until the VMI is in the phase.
func waitPhase(t testing.TB, namespace, vmi, phase string) *unstructured.Unstructured {
	t.Helper()
	var object *unstructured.Unstructured
	eventually(t, func(c *assert.CollectT) {
		var err error
		object, err = env.Dynamic.Resource(suite.VMIs).Namespace(namespace).Get(context.Background(), vmi, metav1.GetOptions{})
		if assert.NoError(c, err) {
			assert.Equal(c, phase, nested(object, "status", "phase"))
		}
	}, "VMI %s does not reach phase %s", vmi, phase)
	return object
}

// condition returns the condition of that type, or nil.
func condition(object *unstructured.Unstructured, kind string) map[string]any {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, c := range conditions {
		if c := c.(map[string]any); c["type"] == kind {
			return c
		}
	}
	return nil
}

// nested returns a field, or nil.
func nested(object *unstructured.Unstructured, fields ...string) any {
	value, _, _ := unstructured.NestedFieldNoCopy(object.Object, fields...)
	return value
}

// entries are GPU entries as vmi-webhook names them.
func entries(resourceName string, count int) []any {
	var list []any
	for i := range count {
		list = append(list, map[string]any{"name": fmt.Sprintf("gpuclass-%d", i), "deviceName": resourceName})
	}
	return list
}

// assertLicensed checks that the VMI has the device of class l40s, and its
// licence as the last disk.
func assertLicensed(t assert.TestingT, vmi *unstructured.Unstructured) {
	assert.Equal(t, entries(l40sResource, 1), nested(vmi, "spec", "domain", "devices", "gpus"))
	disks, _ := nested(vmi, "spec", "domain", "devices", "disks").([]any)
	if assert.NotEmpty(t, disks) {
		assert.Equal(t, any(licenseDisk), disks[len(disks)-1])
	}
	assert.Contains(t, nested(vmi, "spec", "volumes"), any(licenseVolume))
}

// requested returns how many units of the resource the pod requests.
func requested(pod *corev1.Pod, resourceName string) int64 {
	units := int64(0)
	for _, c := range pod.Spec.Containers {
		quantity := c.Resources.Requests[corev1.ResourceName(resourceName)]
		units += quantity.Value()
	}
	return units
}

// dump describes an object in a failure.
func dump(object any) string {
	raw, err := json.MarshalIndent(object, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

func TestMain(m *testing.M) {
	os.Exit(suite.Main(m, &env, setUp))
}

func setUp(ctx context.Context) (err error) {
	if err := env.InstallKubeVirt(ctx); err != nil {
		return err
	}
	if _, err := env.Cluster.InstallService(ctx, env.Root, "vmi-webhook", devcluster.ServiceOptions{}); err != nil {
		return err
	}
	podWebhook, err = env.Cluster.InstallService(ctx, env.Root, "pod-webhook", devcluster.ServiceOptions{})
	return err
}
