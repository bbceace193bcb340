// SPDX-License-Identifier: Apache-2.0

// Package cozystack renders small charts that stand for Cozystack's: as they
// are, and with the changes of deploy/cozystack.
package cozystack

import (
	"context"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"cozystack.io/gpu/hack/devcluster"
)

//go:embed testdata
var testdata embed.FS

// Plain returns a chart as Cozystack has it: vm, pool or quota.
func Plain(t testing.TB, name string) *chart.Chart {
	t.Helper()
	return load(t, "plain", name)
}

// Wired returns the same chart with the changes of deploy/cozystack. As in
// Cozystack, the named templates come from the library chart.
func Wired(t testing.TB, name string) *chart.Chart {
	t.Helper()
	c := load(t, "wired", name)
	c.Schema = fmt.Appendf(nil, `{"type": "object", "properties": {"gpus": %s}}`, Shipped(t, "gpus.schema.json"))
	c.AddDependency(&chart.Chart{
		Metadata:  &chart.Metadata{APIVersion: chart.APIVersionV2, Name: "cozy-lib", Version: "0.0.0", Type: "library"},
		Templates: []*common.File{{Name: "templates/_gpu.tpl", Data: Shipped(t, "_gpu.tpl")}},
	})
	return c
}

// Shipped returns a file of deploy/cozystack.
func Shipped(t testing.TB, name string) []byte {
	t.Helper()
	root, err := devcluster.FindRoot(".")
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(root, "deploy", "cozystack", name))
	require.NoError(t, err)
	return data
}

func load(t testing.TB, variant, name string) *chart.Chart {
	t.Helper()
	template, err := testdata.ReadFile("testdata/" + variant + "/" + name + ".yaml")
	require.NoError(t, err)
	return &chart.Chart{
		Metadata:  &chart.Metadata{APIVersion: chart.APIVersionV2, Name: name, Version: "0.0.0"},
		Templates: []*common.File{{Name: "templates/" + name + ".yaml", Data: template}},
		Values:    map[string]any{"gpus": []any{}},
	}
}

// Render renders the chart's one template as a release of that name and
// namespace, after the values have passed the chart's schema.
func Render(c *chart.Chart, namespace, name string, values map[string]any) (string, error) {
	release := common.ReleaseOptions{Name: name, Namespace: namespace, IsInstall: true}
	all, err := util.ToRenderValues(c, values, release, nil)
	if err != nil {
		return "", err
	}
	files, err := engine.Engine{}.RenderWithContext(context.Background(), c, all)
	if err != nil {
		return "", err
	}
	return files[c.Name()+"/"+c.Templates[0].Name], nil
}

// Values reads values as Helm reads a file of them.
func Values(t testing.TB, text string) map[string]any {
	t.Helper()
	values, err := common.ReadValues([]byte(text))
	require.NoError(t, err)
	return values
}

// Object parses a rendered manifest.
func Object(t testing.TB, manifest string) *unstructured.Unstructured {
	t.Helper()
	raw, err := yaml.YAMLToJSONStrict([]byte(manifest))
	require.NoError(t, err)
	object := &unstructured.Unstructured{}
	require.NoError(t, object.UnmarshalJSON(raw))
	return object
}
