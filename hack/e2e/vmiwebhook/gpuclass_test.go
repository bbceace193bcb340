// SPDX-License-Identifier: Apache-2.0

package vmiwebhook

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cozystack.io/gpu/hack/e2e/suite"
)

func TestGPUClassSchema(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	passthrough := func(fields string) string {
		return "{mode: Passthrough, resourceName: nvidia.com/H100, " + fields + "}"
	}
	toleration := func(fields string) string { return passthrough("tolerations: [{" + fields + "}]") }
	for title, tc := range map[string]struct{ name, spec, field, fault string }{
		"a plain class":                     {"h100", passthrough(""), "", ""},
		"a name of 57 characters":           {long(57), passthrough(""), "", ""},
		"a name of 58 characters":           {long(58), passthrough(""), "", "at most 57 characters"},
		"a name with a dot":                 {"h.100", passthrough(""), "", "without dots"},
		"a name in capitals":                {"H100", passthrough(""), "metadata.name", "lowercase"},
		"no mode":                           {"x", "{resourceName: nvidia.com/H100}", "spec.mode", "Required"},
		"an unknown mode":                   {"x", "{mode: Shared, resourceName: nvidia.com/H100}", "spec.mode", "Unsupported value"},
		"no resource":                       {"x", "{mode: VGPU}", "spec.resourceName", "Required"},
		"a resource without a domain":       {"x", "{mode: VGPU, resourceName: gpu}", "spec.resourceName", "should match"},
		"a resource under kubernetes.io":    {"x", "{mode: VGPU, resourceName: x.kubernetes.io/gpu}", "spec.resourceName", "Kubernetes' own"},
		"a resource with two slashes":       {"x", "{mode: VGPU, resourceName: a/b/c}", "spec.resourceName", "should match"},
		"a resource that begins requests.":  {"x", "{mode: VGPU, resourceName: requests.nvidia.com/x}", "spec.resourceName", "requests."},
		"a resource with a long name":       {"x", "{mode: VGPU, resourceName: a/" + long(64) + "}", "spec.resourceName", "should match"},
		"a resource with a long domain":     {"x", "{mode: VGPU, resourceName: " + long(245) + "/a}", "spec.resourceName", "at most 244"},
		"a resource of the longest names":   {"x", "{mode: VGPU, resourceName: " + long(244) + "/" + long(63) + "}", "", ""},
		"a licence on vGPU":                 {"x", "{mode: VGPU, resourceName: a/b, license: {secretName: s}}", "", ""},
		"a licence on passthrough":          {"x", passthrough("license: {secretName: s}"), "spec.license", "only a class of mode VGPU"},
		"a licence without a name":          {"x", "{mode: VGPU, resourceName: a/b, license: {}}", "spec.license.secretName", "Required"},
		"a licence with a bad name":         {"x", "{mode: VGPU, resourceName: a/b, license: {secretName: 'S_'}}", "spec.license.secretName", "should match"},
		"a count of 1":                      {"x", passthrough("maxCount: 1"), "", ""},
		"a count of 16":                     {"x", passthrough("maxCount: 16"), "", ""},
		"a count of 0":                      {"x", passthrough("maxCount: 0"), "spec.maxCount", "greater than or equal to 1"},
		"a count of 17":                     {"x", passthrough("maxCount: 17"), "spec.maxCount", "less than or equal to 16"},
		"a toleration by equality":          {"x", toleration("key: gpu, value: 'yes', effect: NoSchedule"), "", ""},
		"a toleration of everything":        {"x", toleration("operator: Exists"), "", ""},
		"a toleration for a while":          {"x", toleration("key: nvidia.com/gpu, operator: Exists, effect: NoExecute, tolerationSeconds: -1"), "", ""},
		"a toleration without a key":        {"x", toleration("operator: Equal, value: x"), "spec.tolerations[0].operator", "must be Exists when key is empty"},
		"an empty toleration":               {"x", toleration(""), "spec.tolerations[0].operator", "must be Exists when key is empty"},
		"a toleration with a bad key":       {"x", toleration("key: 'a b'"), "spec.tolerations[0].key", "should match"},
		"a toleration with a bad value":     {"x", toleration("key: a, value: 'b c'"), "spec.tolerations[0].value", "should match"},
		"a toleration with a useless value": {"x", toleration("key: a, operator: Exists, value: b"), "spec.tolerations[0].value", "must be empty"},
		"a toleration by comparison":        {"x", toleration("key: a, operator: Lt, value: '5'"), "spec.tolerations[0].operator", "Unsupported value"},
		"a toleration of no known effect":   {"x", toleration("key: a, effect: Never"), "spec.tolerations[0].effect", "Unsupported value"},
		"seconds on another effect":         {"x", toleration("key: a, effect: NoSchedule, tolerationSeconds: 5"), "spec.tolerations[0].effect", "must be NoExecute"},
	} {
		t.Run(title, func(t *testing.T) {
			object := suite.Object(t, "{apiVersion: cozystack.io/v1alpha1, kind: GPUClass, metadata: {name: %s}, spec: %s}", tc.name, tc.spec)
			_, err := env.Dynamic.Resource(suite.GPUClasses).Create(t.Context(), object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if tc.fault == "" {
				require.NoError(t, err)
				return
			}
			status := suite.Status(t, err)
			assert.EqualValues(t, 422, status.Code)
			assert.Contains(t, status.Message, tc.fault)
			assert.Contains(t, status.Message, tc.field)
		})
	}
}

func TestGPUClassesAreListedAtAGlance(t *testing.T) {
	classes(t)
	class(t, "a16", "{mode: VGPU, resourceName: nvidia.com/A16, maxCount: 4}")
	out, err := exec.Command(filepath.Join(env.Cluster.Dir(), "bin", "kubectl"), "--kubeconfig="+env.Cluster.Kubeconfig(), "get", "gpuc").CombinedOutput()
	require.NoError(t, err, "%s", out)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Len(t, lines, 4)
	assert.Equal(t, []string{"NAME", "MODE", "RESOURCE", "MAX", "FREE", "CONFLICT", "LICENSE", "AGE"}, strings.Fields(lines[0]))
	assert.Regexp(t, `^a16 +VGPU +nvidia.com/A16 +4 `, lines[1])
	assert.Regexp(t, `^h100 +Passthrough +nvidia.com/H100 `, lines[2])
	assert.Regexp(t, `^l40s +VGPU +nvidia.com/L40S-24C .*l40s-token`, lines[3])
}
