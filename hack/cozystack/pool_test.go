// SPDX-License-Identifier: Apache-2.0

package cozystack

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"cozystack.io/gpu/pkg/gpu"
)

// pool returns a rendered pool's machine template and MachineDeployment.
func pool(t *testing.T, manifest string) (machine, deployment *unstructured.Unstructured) {
	t.Helper()
	documents := strings.Split(manifest, "\n---\n")
	require.Len(t, documents, 2)
	machine, deployment = Object(t, documents[0]), Object(t, documents[1])
	used, _, err := unstructured.NestedString(deployment.Object, "spec", "template", "spec", "infrastructureRef", "name")
	require.NoError(t, err)
	require.Equal(t, machine.GetName(), used)
	return machine, deployment
}

func rollout(t *testing.T, deployment *unstructured.Unstructured) map[string]any {
	t.Helper()
	strategy, _, err := unstructured.NestedMap(deployment.Object, "spec", "strategy")
	require.NoError(t, err)
	return strategy
}

// Its machine template is named by a hash: other bytes would replace every
// worker of every cluster.
func TestPoolWithoutClassesRendersAsBefore(t *testing.T) {
	for name, values := range withoutClasses {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, render(t, Plain(t, "pool"), Values(t, values)), render(t, Wired(t, "pool"), Values(t, values)))
		})
	}
	_, deployment := pool(t, render(t, Wired(t, "pool"), Values(t, withoutClasses["one device"])))
	assert.Equal(t, map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxSurge": int64(10), "maxUnavailable": int64(1)}}, rollout(t, deployment))
}

func TestPoolNamesItsClassesAndNeedsNoMoreForARollout(t *testing.T) {
	machine, deployment := pool(t, render(t, Wired(t, "pool"), Values(t, "{maxReplicas: 10, gpus: [{className: h100, count: 2}]}")))
	template, _, err := unstructured.NestedMap(machine.Object, "spec", "template", "spec", "virtualMachineTemplate", "spec", "template")
	require.NoError(t, err)
	assert.Equal(t, map[string]any{
		"annotations": map[string]any{"example.com/bridge": "true", gpu.AnnotationGPUs: `[{"className":"h100","count":2}]`},
		"labels":      map[string]any{"example.com/pool": "example", gpu.LabelGPUReference: gpu.LabelValueTrue},
	}, template["metadata"])
	assert.Equal(t, map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxSurge": int64(0), "maxUnavailable": int64(1)}}, rollout(t, deployment))

	plain, _ := pool(t, render(t, Plain(t, "pool"), Values(t, "maxReplicas: 10")))
	spec, _, err := unstructured.NestedMap(plain.Object, "spec", "template", "spec", "virtualMachineTemplate", "spec", "template", "spec")
	require.NoError(t, err)
	assert.Equal(t, spec, template["spec"], "the machine has no devices of its own")
}

func TestMachineTemplateIsReplacedOnlyWithItsEntries(t *testing.T) {
	c := Wired(t, "pool")
	name := func(values map[string]any) string {
		machine, _ := pool(t, render(t, c, values))
		return machine.GetName()
	}
	two := name(Values(t, "{maxReplicas: 10, gpus: [{className: l40s-24c, count: 2}]}"))
	for source, values := range sources(t) {
		assert.Equal(t, two, name(values), source)
	}
	assert.Equal(t, two, name(Values(t, "{maxReplicas: 20, gpus: [{className: l40s-24c, count: 2}]}")), "resized")
	assert.NotEqual(t, two, name(Values(t, "{maxReplicas: 10, gpus: [{className: l40s-24c, count: 1}]}")), "another count")
	assert.NotEqual(t, two, name(Values(t, "{maxReplicas: 10, gpus: [{className: h100, count: 2}]}")), "another class")
	assert.NotEqual(t, two, name(Values(t, "{maxReplicas: 10}")), "none")
}
