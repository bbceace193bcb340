// SPDX-License-Identifier: Apache-2.0

package shipping

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// targets returns all that can be built in deploy, relative to it, and apart
// from them the components.
func targets(t testing.TB) (bases, components []string) {
	t.Helper()
	root := target()
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "kustomization.yaml" {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		require.NoError(t, err)
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		if name, ok := strings.CutPrefix(dir, "components/"); ok {
			assert.Contains(t, string(raw), "kind: Component")
			components = append(components, name)
		} else {
			bases = append(bases, dir)
		}
		return nil
	}))
	require.NotEmpty(t, bases)
	require.NotEmpty(t, components)
	return bases, components
}

func TestEveryTargetBuilds(t *testing.T) {
	bases, components := targets(t)
	dirs := map[string]string{}
	for _, base := range bases {
		dirs[base] = target(base)
	}
	for _, component := range components {
		dirs[". with "+component] = overlay(t, ".", component)
	}
	for name, dir := range dirs {
		t.Run(name, func(t *testing.T) {
			for _, object := range build(t, dir) {
				what := key(object)
				checkNoWildcard(t, what, object)
				if kind := object.GetKind(); kind != "Namespace" && kind != "CustomResourceDefinition" {
					labels := object.GetLabels()
					assert.Equal(t, "gpu", labels["app.kubernetes.io/part-of"], what)
					assert.NotEmpty(t, labels["app.kubernetes.io/name"], what)
					assert.NotEmpty(t, labels["app.kubernetes.io/component"], what)
				}
			}
		})
	}
}

// checkNoWildcard fails on a role that does not name what it allows, and on a
// webhook or policy that does not name what it judges.
func checkNoWildcard(t testing.TB, what string, object *unstructured.Unstructured) {
	t.Helper()
	var walk func(value any)
	walk = func(value any) {
		switch value := value.(type) {
		case map[string]any:
			for _, field := range value {
				walk(field)
			}
		case []any:
			for _, item := range value {
				walk(item)
			}
		case string:
			assert.NotContains(t, value, "*", what)
		}
	}
	switch object.GetKind() {
	case "ClusterRole", "Role":
		walk(object.Object["rules"])
	case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
		webhooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
		require.NoError(t, err)
		for _, webhook := range webhooks {
			walk(webhook.(map[string]any)["rules"])
		}
	case "ValidatingAdmissionPolicy":
		constraints, _, err := unstructured.NestedMap(object.Object, "spec", "matchConstraints")
		require.NoError(t, err)
		rules, _, err := unstructured.NestedSlice(constraints, "resourceRules")
		require.NoError(t, err)
		for _, rule := range rules {
			delete(rule.(map[string]any), "apiVersions") // may be all: none must be a way around
		}
		walk(rules)
	}
}

// Of a list and its reverse, one or the other has any two components in either
// order.
func TestComponentsGoTogetherInEachOrder(t *testing.T) {
	_, components := targets(t)
	var whole, parts []string // hpa, but not hpa/vmi-webhook; and the other way round
	for _, component := range components {
		if strings.Contains(component, "/") {
			parts = append(parts, component)
			continue
		}
		whole = append(whole, component)
		if folders, err := filepath.Glob(target("components", component, "*", "kustomization.yaml")); err == nil && folders == nil {
			parts = append(parts, component)
		}
	}
	require.Less(t, len(whole), len(components))
	for _, set := range [][]string{whole, parts} {
		forwards := objects(t, overlay(t, ".", set...))
		slices.Reverse(set)
		backwards := objects(t, overlay(t, ".", set...))
		assert.Equal(t, forwards, backwards, "%s", set)
	}
}

// objects returns the objects of a target by kind and name, but for the number of
// replicas: dev sets it and hpa leaves it to the autoscaler.
func objects(t testing.TB, dir string) map[string]map[string]any {
	t.Helper()
	found := map[string]map[string]any{}
	for _, object := range build(t, dir) {
		object = object.DeepCopy()
		unstructured.RemoveNestedField(object.Object, "spec", "replicas")
		found[key(object)] = object.Object
	}
	return found
}

func TestOwnCertificatesNeedNoCertManager(t *testing.T) {
	for _, object := range build(t, overlay(t, ".", "own-certificates")) {
		assert.NotEqual(t, "cert-manager.io", object.GroupVersionKind().Group, "%s", object.GetName())
		assert.NotContains(t, object.GetAnnotations(), "cert-manager.io/inject-ca-from", "%s %s", object.GetKind(), object.GetName())
	}
}
