// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"cozystack.io/gpu/hack/e2e/suite"
)

// kinds are what the guards judge, and where each holds a VMI's metadata and spec.
var kinds = map[string]struct {
	resource schema.GroupVersionResource
	at       string // prefix of the path
	manifest string // takes name, namespace, metadata and spec
}{
	"VirtualMachine": {vms, "spec.template.",
		"{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: %s, namespace: %s}, spec: {runStrategy: Halted, template: {metadata: %s, spec: %s}}}"},
	"VirtualMachineInstance": {suite.VMIs, "",
		"{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: %s, namespace: %s, <<: %s}, spec: %s}"},
	"VirtualMachineInstanceReplicaSet": {replicaSets, "spec.template.",
		"{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstanceReplicaSet, metadata: {name: %s, namespace: %s}, spec: {replicas: 0, selector: {matchLabels: {set: x}}, template: {metadata: %s, spec: %s}}}"},
	"VirtualMachinePool": {pools, "spec.virtualMachineTemplate.spec.template.",
		"{apiVersion: pool.kubevirt.io/v1beta1, kind: VirtualMachinePool, metadata: {name: %s, namespace: %s}, spec: {replicas: 0, selector: {matchLabels: {set: x}}, virtualMachineTemplate: {metadata: {labels: {set: x}}, spec: {runStrategy: Halted, template: {metadata: %s, spec: %s}}}}}"},
}

// Metadata of VMIs. The members of sets need the label set.
const (
	plain       = `{labels: {set: x}}`
	labelled    = `{labels: {set: x, cozystack.io/gpu-reference: "true"}}`
	annotated   = `{labels: {set: x}, annotations: {cozystack.io/gpus: '[{"className":"h100","count":2}]'}}`
	takesTwo    = `{labels: {set: x, cozystack.io/gpu-reference: "true"}, annotations: {cozystack.io/gpus: '[{"className":"h100","count":2}]'}}`
	noResources = `{}`
)

// Specs of VMIs, with and without devices.
func domain(devices, resources string) string {
	return fmt.Sprintf("{domain: {memory: {guest: 1Gi}, devices: %s, resources: %s}}", devices, resources)
}

func gpus(resourceName string) string {
	return domain(fmt.Sprintf("{gpus: [{name: mine, deviceName: %s}]}", resourceName), noResources)
}

var noDevices = domain("{}", noResources)

// machine returns an object of one of the kinds, called vm.
func machine(t testing.TB, kind, namespace, metadata, spec string) *unstructured.Unstructured {
	t.Helper()
	return suite.Object(t, kinds[kind].manifest, "vm", namespace, metadata, spec)
}

// create creates the object by way of the client; it goes with the test.
func create(t testing.TB, client dynamic.Interface, resource schema.GroupVersionResource, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	created, err := client.Resource(resource).Namespace(object.GetNamespace()).Create(t.Context(), object, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { env.Delete(t, resource, created) })
	return created
}

// running makes the VM or pool run what it describes.
func running(t testing.TB, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	path := []string{"spec", "runStrategy"}
	if object.GetKind() == "VirtualMachinePool" {
		path = []string{"spec", "virtualMachineTemplate", "spec", "runStrategy"}
	}
	if object.GetKind() != "VirtualMachineInstanceReplicaSet" {
		require.NoError(t, unstructured.SetNestedField(object.Object, "Always", path...))
	}
	if object.GetKind() != "VirtualMachine" {
		require.NoError(t, unstructured.SetNestedField(object.Object, int64(1), "spec", "replicas"))
	}
	return object
}

// merge applies a merge patch in YAML by way of the client.
func merge(t testing.TB, client dynamic.Interface, resource schema.GroupVersionResource, namespace, name, patch string, subresource ...string) error {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(patch))
	require.NoError(t, err)
	_, err = client.Resource(resource).Namespace(namespace).Patch(context.WithoutCancel(t.Context()), name, types.MergePatchType, raw, metav1.PatchOptions{}, subresource...)
	return err
}

// apply applies the object on the server's side.
func apply(t testing.TB, client dynamic.Interface, resource schema.GroupVersionResource, object *unstructured.Unstructured) error {
	t.Helper()
	_, err := client.Resource(resource).Namespace(object.GetNamespace()).Apply(t.Context(), object.GetName(), object, metav1.ApplyOptions{FieldManager: "guards", Force: true})
	return err
}

// get returns an object.
func get(t testing.TB, resource schema.GroupVersionResource, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	object, err := env.Dynamic.Resource(resource).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return object
}

// nested returns a field, or nil.
func nested(object *unstructured.Unstructured, fields ...string) any {
	value, _, _ := unstructured.NestedFieldNoCopy(object.Object, fields...)
	return value
}
