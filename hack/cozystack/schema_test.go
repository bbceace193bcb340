// SPDX-License-Identifier: Apache-2.0

package cozystack

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
)

func TestSchemaPassesWhatTheTemplatesRead(t *testing.T) {
	for name, values := range withoutClasses {
		_, err := Render(Wired(t, "vm"), "tenant-example", "example", Values(t, values))
		assert.NoError(t, err, name)
	}
	for _, values := range []string{
		"gpus: [{className: h100, count: 1}]",
		"gpus: [{className: h100, count: 1e3}]",
		"gpus: [{className: h100, count: 2147483647}]",
		"gpus: [{className: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, count: 1}]",
		"gpus: [{className: h100, count: 16}, {className: l40s-24c, count: 1}, {className: h100, count: 1}]",
	} {
		_, err := Render(Wired(t, "vm"), "tenant-example", "example", Values(t, values))
		assert.NoError(t, err, values)
	}
}

func TestSchemaRefusesTheRest(t *testing.T) {
	for _, values := range []string{
		"gpus: {}",
		"gpus: h100",
		"gpus: [h100]",
		"gpus: [{}]",
		"gpus: [{count: 1}]",
		"gpus: [{className: h100}]",
		"gpus: [{className: h100, count: 0}]",
		"gpus: [{className: h100, count: -1}]",
		"gpus: [{className: h100, count: 1.5}]",
		`gpus: [{className: h100, count: "1"}]`,
		`gpus: [{className: "", count: 1}]`,
		"gpus: [{className: 1, count: 1}]",
		"gpus: [{className: null, count: 1}]",
		"gpus: [{className: h100, count: null}]",
		"gpus: [{className: h100, count: 2147483648}]",
		"gpus: [{className: h100, count: []}]",
		"gpus: [{name: null}]",
		"gpus: [{name: 1}]",
		"gpus: [null]",
		"gpus: [{className: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, count: 1}]",
		"gpus: [{className: h100, count: 1, name: nvidia.com/H100}]",
		"gpus: [{className: h100, name: nvidia.com/H100}]",
		"gpus: [{name: nvidia.com/H100, count: 2}]",
		"gpus: [{name: nvidia.com/H100, mdev: x}]",
		"gpus: [{className: h100, count: 1, units: 2}]",
		"gpus: [{className: h100, count: 1}, {name: nvidia.com/H100}]",
	} {
		_, err := Render(Wired(t, "vm"), "tenant-example", "example", Values(t, values))
		assert.ErrorContains(t, err, "don't meet the specifications of the schema", values)
	}
}

// Cozystack's API server reads the schema of an ApplicationDefinition as that
// of a custom resource, to set defaults.
func TestSchemaIsStructural(t *testing.T) {
	var v1 apiextensionsv1.JSONSchemaProps
	require.NoError(t, json.Unmarshal(Shipped(t, "gpus.schema.json"), &v1))
	var internal apiextensions.JSONSchemaProps
	require.NoError(t, apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&v1, &internal, nil))
	structural, err := schema.NewStructural(&internal)
	require.NoError(t, err)
	assert.Equal(t, []any{}, structural.Default.Object)
	assert.Contains(t, structural.Items.Properties, "className")
}
