// SPDX-License-Identifier: Apache-2.0

package shipping

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// block returns the first block of code of the language that follows the words.
func block(t testing.TB, text, words, language string) string {
	t.Helper()
	_, rest, found := strings.Cut(text, words)
	require.True(t, found, words)
	_, rest, found = strings.Cut(rest, "```"+language+"\n")
	require.True(t, found, "%s after %s", language, words)
	code, _, found := strings.Cut(rest, "```")
	require.True(t, found)
	return code
}

// readmesOverlay writes the README's overlay into a folder beside a copy of deploy,
// with paths that lead there, and returns the folder's path.
func readmesOverlay(t testing.TB, folder string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS(target())))
	up, err := filepath.Rel(folder, ".")
	require.NoError(t, err)
	text := strings.ReplaceAll(block(t, readme(t), "## Install", "yaml"), "- deploy", "- "+filepath.Join(up, "deploy"))
	folder = filepath.Join(dir, folder)
	require.NoError(t, os.MkdirAll(folder, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(text), 0o644))
	return folder
}

// The README's overlay, beside deploy and elsewhere, names the image of each
// service and adds the component that is in it.
func TestREADMEsOverlayBuildsWhereverItLies(t *testing.T) {
	for _, folder := range []string{".", "clusters/a"} {
		kinds := map[string]int{}
		for _, object := range build(t, readmesOverlay(t, folder)) {
			kinds[object.GetKind()]++
			if object.GetKind() != "Deployment" {
				continue
			}
			containers, _, err := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
			require.NoError(t, err)
			for _, container := range containers {
				assert.Equal(t, "registry.example.com/gpu/"+object.GetName()+":v0.1.0", container.(map[string]any)["image"])
			}
		}
		assert.Equal(t, len(services(t)), kinds["Deployment"])
		assert.Equal(t, len(services(t)), kinds["PrometheusRule"])
	}
}

// The patches in the guards' own comment make them judge other namespaces.
func TestGuardsCommentSaysHowToChooseNamespaces(t *testing.T) {
	raw, err := os.ReadFile(target("components", "guards", "kustomization.yaml"))
	require.NoError(t, err)
	_, patches, found := strings.Cut(string(raw), "#   patches:\n")
	require.True(t, found)
	patches, _, found = strings.Cut(patches, "apiVersion:")
	require.True(t, found)
	dir := overlay(t, ".", "guards")
	appendTo(t, dir, "patches:\n"+strings.ReplaceAll(patches, "#   ", ""))
	patched := 0
	for _, object := range build(t, dir) {
		if object.GetLabels()["app.kubernetes.io/name"] != "guards" {
			continue
		}
		switch object.GetKind() {
		case "ValidatingAdmissionPolicy":
			patched++
			conditions, _, err := unstructured.NestedSlice(object.Object, "spec", "matchConditions")
			require.NoError(t, err)
			assert.Equal(t, "true", conditions[0].(map[string]any)["expression"])
		case "ValidatingAdmissionPolicyBinding":
			patched++
			selected, _, err := unstructured.NestedStringMap(object.Object, "spec", "matchResources", "namespaceSelector", "matchLabels")
			require.NoError(t, err)
			assert.NotEmpty(t, selected)
		}
	}
	assert.Equal(t, 6, patched, "three policies and their bindings")
}

// The README's patch gives its service the flags, also where dev has set some, and
// no other service.
func TestREADMEsPatchSetsFlags(t *testing.T) {
	patch := block(t, readme(t), "## Flags", "yaml")
	for _, dir := range []string{overlay(t, "."), overlay(t, ".", "dev")} {
		appendTo(t, dir, patch)
		for _, object := range build(t, dir) {
			if object.GetKind() != "Deployment" {
				continue
			}
			containers, _, err := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
			require.NoError(t, err)
			args, _, err := unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
			require.NoError(t, err)
			patched := []string{"--license-namespace=gpu-operator", "--log-level=debug"}
			if object.GetName() == "license-copier" {
				assert.Equal(t, patched, args)
			} else {
				assert.NotContains(t, args, patched[0])
			}
		}
	}
}

// The README's own commands, in their order and in the overlay's directory, from
// an empty cluster to an empty one, and once more.
func TestREADMEsCommandsInstallAndRemove(t *testing.T) {
	kubectl(t, "delete", "-k", target("crds"))
	t.Cleanup(func() { installTypes(t) })
	commands := regexp.MustCompile(`(?m)^kubectl (apply -k|delete) .*`).FindAllString(readme(t), -1)
	require.NotEmpty(t, commands)
	dir := readmesOverlay(t, ".")
	for range 2 {
		for _, command := range commands {
			args := strings.Fields(command)[1:]
			path := filepath.Join(dir, args[len(args)-1])
			if args[1] == "-k" {
				args[len(args)-1] = path
			}
			kubectl(t, args...)
			switch {
			case args[0] == "apply":
				waitTypes(t)
				waitPods(t, path)
			case args[1] == "-k":
				assert.Empty(t, stored(t, path), "after %s", command)
			}
		}
		assert.Empty(t, stored(t, dir), "at the end of the README")
	}
}
