// SPDX-License-Identifier: Apache-2.0

package cozystack

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model"
)

// withoutClasses are values that must render as they did before.
var withoutClasses = map[string]string{
	"no list":       "{maxReplicas: 10}",
	"null":          "{maxReplicas: 10, gpus: null}",
	"an empty list": "{maxReplicas: 10, gpus: []}",
	"one device":    "{maxReplicas: 10, gpus: [{name: nvidia.com/AD102GL_L40S}]}",
	"two devices":   "{maxReplicas: 10, gpus: [{name: nvidia.com/H100}, {name: nvidia.com/AD102GL_L40S}]}",
}

// sources are the same values, {maxReplicas: 10, gpus: [{className: l40s-24c, count: 2}]}, as
// they reach a template: from a file, from a HelmRelease, and set by a program.
func sources(t *testing.T) map[string]map[string]any {
	var decoded map[string]any
	require.NoError(t, json.Unmarshal([]byte(`{"gpus":[{"count":2,"className":"l40s-24c"}],"maxReplicas":10}`), &decoded))
	set := func(count any) map[string]any {
		return map[string]any{"maxReplicas": int64(10), "gpus": []any{map[string]any{"className": "l40s-24c", "count": count}}}
	}
	return map[string]map[string]any{
		"YAML":        Values(t, "gpus:\n- count: 2\n  className: l40s-24c\nmaxReplicas: 10\n"),
		"JSON":        decoded,
		"an int64":    set(int64(2)),
		"a number":    set(json.Number("2")),
		"a float64":   set(float64(2)),
		"YAML's flow": Values(t, `{maxReplicas: 10, gpus: [{className: "l40s-24c", count: 0x2}]}`),
	}
}

func render(t *testing.T, c *chart.Chart, values map[string]any) string {
	t.Helper()
	out, err := Render(c, "tenant-example", "example", values)
	require.NoError(t, err)
	return out
}

func TestVMWithoutClassesRendersAsBefore(t *testing.T) {
	for name, values := range withoutClasses {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, render(t, Plain(t, "vm"), Values(t, values)), render(t, Wired(t, "vm"), Values(t, values)))
		})
	}
}

func TestVMNamesItsClasses(t *testing.T) {
	out := render(t, Wired(t, "vm"), Values(t, "gpus: [{className: h100, count: 2}, {className: l40s-24c, count: 1}]"))
	vm := Object(t, out)
	metadata, _, err := unstructured.NestedMap(vm.Object, "spec", "template", "metadata")
	require.NoError(t, err)
	annotation := `[{"className":"h100","count":2},{"className":"l40s-24c","count":1}]`
	assert.Equal(t, map[string]any{
		"annotations": map[string]any{"example.com/bridge": "true", gpu.AnnotationGPUs: annotation},
		"labels":      map[string]any{"app.kubernetes.io/instance": "example", gpu.LabelGPUReference: gpu.LabelValueTrue},
	}, metadata)
	entries, err := model.ParseEntries(annotation)
	require.NoError(t, err)
	assert.Equal(t, []model.Entry{{ClassName: "h100", Count: 2}, {ClassName: "l40s-24c", Count: 1}}, entries)

	// But for these two, the VM is one without GPUs.
	unstructured.RemoveNestedField(vm.Object, "spec", "template", "metadata", "annotations", gpu.AnnotationGPUs)
	unstructured.RemoveNestedField(vm.Object, "spec", "template", "metadata", "labels", gpu.LabelGPUReference)
	assert.Equal(t, Object(t, render(t, Plain(t, "vm"), nil)), vm)
}

func TestVMIsTheSameFromAnySourceOfValues(t *testing.T) {
	c := Wired(t, "vm")
	want := render(t, c, Values(t, "gpus: [{className: l40s-24c, count: 2}]"))
	for name, values := range sources(t) {
		assert.Equal(t, want, render(t, c, values), name)
	}
}

// A count too large for any class is vmi-webhook's to refuse, which must be able to read it.
func TestAnyCountThatRendersIsRead(t *testing.T) {
	for text, count := range map[string]int{"1e3": 1000, "2147483647": 2147483647, "0x10": 16, "2.0": 2} {
		vm := Object(t, render(t, Wired(t, "vm"), Values(t, "gpus: [{className: h100, count: "+text+"}]")))
		annotations, _, err := unstructured.NestedStringMap(vm.Object, "spec", "template", "metadata", "annotations")
		require.NoError(t, err)
		entries, err := model.ParseEntries(annotations[gpu.AnnotationGPUs])
		require.NoError(t, err, text)
		assert.EqualValues(t, count, entries[0].Count, text)
	}
}

// Helm can be told to skip a chart's schema, and Cozystack generates its own:
// the templates hold on their own.
func TestFaultyEntriesAreRefusedWithoutASchema(t *testing.T) {
	const neither = "must have either className and count, or name"
	for values, want := range map[string]string{
		"gpus: [{className: h100, count: 1}, {name: nvidia.com/H100}]": "gpus: entries by className and entries by name cannot be mixed in one object",
		"gpus: [{name: nvidia.com/H100}, {className: h100, count: 1}]": "gpus: entries by className and entries by name cannot be mixed in one object",
		"gpus: [{className: h100, count: 1, name: nvidia.com/H100}]":   "gpus[0]: className goes with count alone, not with name",
		"gpus: [{className: h100, count: 1, units: 2, Count: 3}]":      "gpus[0]: className goes with count alone, not with Count, units",
		"gpus: [{className: h100}]":                                    "gpus[0].count: must be a whole number of at least 1, got null",
		"gpus: [{className: h100, count: 0}]":                          "gpus[0].count: must be a whole number of at least 1, got 0",
		"gpus: [{className: h100, count: -1}]":                         "gpus[0].count: must be a whole number of at least 1, got -1",
		"gpus: [{className: h100, count: 1.5}]":                        "gpus[0].count: must be a whole number of at least 1, got 1.5",
		`gpus: [{className: h100, count: "1"}]`:                        `gpus[0].count: must be a whole number of at least 1, got "1"`,
		"gpus: [{className: h100, count: true}]":                       "gpus[0].count: must be a whole number of at least 1, got true",
		`gpus: [{className: "", count: 1}]`:                            "gpus[0].className: must be the name of a GPUClass",
		"gpus: [{className: 1, count: 1}]":                             "gpus[0].className: must be the name of a GPUClass",
		"gpus: [{className: null, count: 1}]":                          "gpus[0].className: must be the name of a GPUClass",
		"gpus: [{className: h100, count: 1}, {ClassName: h100}]":       "gpus[1]: " + neither,
		"gpus: [{count: 1}]":                                           "gpus[0]: " + neither,
		"gpus: [h100]":                                                 "gpus[0]: " + neither,
		"gpus: [null]":                                                 "gpus[0]: " + neither,
	} {
		t.Run(values, func(t *testing.T) {
			for _, name := range []string{"vm", "pool"} {
				c := Wired(t, name)
				c.Schema = nil
				_, err := Render(c, "tenant-example", "example", Values(t, values))
				assert.ErrorContains(t, err, want, name)
			}
		})
	}
}

// A tenant chooses the name: whatever it holds stays one string of the list.
func TestAClassNameCannotBreakOutOfItsAnnotation(t *testing.T) {
	for _, name := range []string{`a"b`, "a'b", `a\b`, "a\nlabels: {x: y}", "a: {b}", "a<&>b", "#a", "{{ .Values }}", "é\u2028\x00"} {
		c := Wired(t, "vm")
		c.Schema = nil
		vm := Object(t, render(t, c, map[string]any{"gpus": []any{map[string]any{"className": name, "count": 1}}}))
		annotations, _, err := unstructured.NestedStringMap(vm.Object, "spec", "template", "metadata", "annotations")
		require.NoError(t, err)
		assert.Len(t, annotations, 2)
		entries, err := model.ParseEntries(annotations[gpu.AnnotationGPUs])
		require.NoError(t, err, "%q", name)
		assert.Equal(t, []model.Entry{{ClassName: name, Count: 1}}, entries)
	}
}
