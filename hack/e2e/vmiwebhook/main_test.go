// SPDX-License-Identifier: Apache-2.0

// Package vmiwebhook tests vmi-webhook behind a real API server, with
// KubeVirt's schemas and without KubeVirt itself.
package vmiwebhook

import (
	"context"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"cozystack.io/gpu/hack/devcluster"
	"cozystack.io/gpu/hack/e2e/suite"
	"cozystack.io/gpu/pkg/gpu"
)

var (
	env     suite.Env
	webhook *devcluster.Service
)

func TestMain(m *testing.M) {
	os.Exit(suite.Main(m, &env, func(ctx context.Context) (err error) {
		webhook, err = env.Cluster.InstallService(ctx, env.Root, "vmi-webhook", devcluster.ServiceOptions{})
		return err
	}))
}

const service = "vmi-webhook"

var entitled = map[string]string{gpu.LabelNamespaceVGPU: gpu.LabelValueTrue}

// class creates a GPUClass with the spec, in YAML's flow style.
func class(t testing.TB, name, spec string) *unstructured.Unstructured {
	t.Helper()
	return env.Create(t, suite.GPUClasses, suite.Object(t, "{apiVersion: cozystack.io/v1alpha1, kind: GPUClass, metadata: {name: %s}, spec: %s}", name, spec))
}

// classes creates the classes that most tests name: l40s (vGPU with a
// licence) and h100 (passthrough).
func classes(t testing.TB) {
	t.Helper()
	class(t, "l40s", "{mode: VGPU, resourceName: nvidia.com/L40S-24C, license: {secretName: l40s-token}}")
	class(t, "h100", "{mode: Passthrough, resourceName: nvidia.com/H100}")
}

const (
	oneVGPU = `[{"className":"l40s","count":1}]`
	twoH100 = `[{"className":"h100","count":2}]`
)

// vmi returns a labelled VMI with the annotation and a spec in YAML.
func vmi(t testing.TB, namespace, annotation, spec string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance"}}
	object.SetNamespace(namespace)
	object.SetGenerateName("vm-")
	object.SetLabels(map[string]string{gpu.LabelGPUReference: gpu.LabelValueTrue})
	object.SetAnnotations(map[string]string{gpu.AnnotationGPUs: annotation})
	var parsed any
	require.NoError(t, yaml.Unmarshal([]byte(spec), &parsed))
	object.Object["spec"] = parsed
	return object
}

// create sends the VMI to the API server.
func create(t testing.TB, object *unstructured.Unstructured, dryRun ...string) (*unstructured.Unstructured, error) {
	t.Helper()
	return env.Dynamic.Resource(suite.VMIs).Namespace(object.GetNamespace()).Create(t.Context(), object, metav1.CreateOptions{DryRun: dryRun})
}

// spec returns the VMI's spec as JSON, for assert.JSONEq.
func spec(t testing.TB, object *unstructured.Unstructured) string {
	t.Helper()
	raw, err := json.Marshal(object.Object["spec"])
	require.NoError(t, err)
	return string(raw)
}
