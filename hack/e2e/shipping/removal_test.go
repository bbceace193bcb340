// SPDX-License-Identifier: Apache-2.0

package shipping

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"cozystack.io/gpu/hack/e2e/suite"
)

// everything returns the versions of all objects of the services, by service.
func everything(t testing.TB) map[string]map[string]string {
	t.Helper()
	now := versions(t, target("."))
	all := map[string]map[string]string{}
	for _, service := range services(t) {
		all[service] = map[string]string{}
		for _, object := range build(t, target(service)) {
			if key := key(object); now[key] != "" {
				all[service][key] = now[key]
			}
		}
	}
	return all
}

// No service's removal touches another's objects, so their order is free.
func TestRemovingAServiceLeavesTheOthersAlone(t *testing.T) {
	for _, service := range services(t) {
		install(t, target(service))
	}
	before := everything(t)
	for _, removed := range services(t) {
		kubectl(t, "delete", "-k", target(removed))
		after := everything(t)
		assert.Empty(t, after[removed])
		for service, versions := range after {
			if service != removed {
				assert.Equal(t, before[service], versions, "%s after the removal of %s", service, removed)
			}
		}
		kubectl(t, "apply", "-k", target(removed))
		waitPods(t, target(removed))
		before = everything(t)
	}
}

// Nor does it leave anything of a component, such as an alert that nothing answers.
func TestRemovingAServiceTakesWhatComponentsAddedToIt(t *testing.T) {
	dir := overlay(t, ".", "hpa", "monitoring")
	install(t, dir)
	for _, service := range services(t) {
		_, command, found := strings.Cut(readme(t), "`kubectl -n cozy-gpu delete ")
		require.True(t, found)
		command, _, found = strings.Cut(command, "`")
		require.True(t, found)
		kubectl(t, "delete", "-k", target(service))
		kubectl(t, strings.Fields("-n cozy-gpu delete "+strings.ReplaceAll(command, "<service>", service))...)
		for name, object := range stored(t, dir) {
			assert.NotEqual(t, service, object.GetLabels()["app.kubernetes.io/name"], name)
		}
	}
}

func TestRemovingTheTypesFirstLeavesNothingBehind(t *testing.T) {
	for _, service := range services(t) {
		install(t, target(service))
	}
	env.Create(t, suite.GPUClasses, class(t))
	t.Cleanup(func() { installTypes(t) })
	kubectl(t, "delete", "-k", target("crds"))
	for _, service := range services(t) {
		kubectl(t, "delete", "--ignore-not-found", "-k", target(service))
		assert.Empty(t, stored(t, target(service)))
	}
	assert.Empty(t, stored(t, target("crds")))
	require.Eventually(t, func() bool { // until the API server has heard of it
		_, err := tryCreate(t, suite.VMIs, suite.Object(t, vmi, labelled))
		return err == nil
	}, timeout, interval, "VMs that name classes are no longer ours to refuse")
}

func class(t testing.TB) *unstructured.Unstructured {
	t.Helper()
	return suite.Object(t, `{apiVersion: cozystack.io/v1alpha1, kind: GPUClass, metadata: {name: l40s}, spec: {mode: Passthrough, resourceName: nvidia.com/L40S,
		tolerations: [{key: nvidia.com/gpu, operator: Exists}]}}`)
}

// Objects that are created in the namespace default, for a dry run only.
const (
	vmi = `{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {generateName: x-, namespace: default%s}, spec: {domain: {devices: {}}}}`
	pod = `{apiVersion: v1, kind: Pod, metadata: {generateName: x-, namespace: default%s},
		spec: {containers: [{name: compute, image: example.com/x, resources: {limits: {nvidia.com/L40S: 1}}}]}}`

	vmInstance = `{apiVersion: apps.cozystack.io/v1alpha1, kind: VMInstance, metadata: {generateName: x-, namespace: default}, spec: {%s}}`
	tenant     = `{apiVersion: apps.cozystack.io/v1alpha1, kind: Tenant, metadata: {name: shipping, namespace: default}, spec: {%s}}`
)

var (
	pods        = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	vmInstances = schema.GroupVersionResource{Group: "apps.cozystack.io", Version: "v1alpha1", Resource: "vminstances"}
	gpuBudgets  = schema.GroupVersionResource{Group: "cozystack.io", Version: "v1alpha1", Resource: "gpubudgets"}
	tenants     = schema.GroupVersionResource{Group: "apps.cozystack.io", Version: "v1alpha1", Resource: "tenants"}
)

// tenantOfOneUnit creates a tenant that has a budget of one unit and returns its
// namespace.
func tenantOfOneUnit(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"tenant-root", "tenant-shipping"} {
		env.Create(t, suite.Namespaces, suite.Object(t, "{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", name))
	}
	object := suite.Object(t, tenant, `resourceQuotas: {gpu.cozystack.io/total: "1"}`)
	object.SetNamespace("tenant-root")
	env.Create(t, tenants, object)
	return "tenant-shipping"
}

// What else an object's metadata holds: nothing, or the label by which our
// webhooks are called, and what makes them act on it.
const (
	plain    = ""
	labelled = `, labels: {cozystack.io/gpu-reference: "true", kubevirt.io: virt-launcher},
		annotations: {cozystack.io/gpus: '[{"className":"l40s","count":1}]'}`
)

// tryCreate asks the API server for what it would make of an object.
func tryCreate(t testing.TB, resource schema.GroupVersionResource, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	t.Helper()
	return env.Dynamic.Resource(resource).Namespace(object.GetNamespace()).Create(t.Context(), object,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}
