// SPDX-License-Identifier: Apache-2.0

package shipping

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cozystack.io/gpu/hack/devcluster"
	"cozystack.io/gpu/hack/e2e/suite"
)

func readme(t testing.TB) string {
	t.Helper()
	raw, err := os.ReadFile(target("README.md"))
	require.NoError(t, err)
	return string(raw)
}

var (
	metricName = regexp.MustCompile(`\bgpu_[a-z_]+\b`)
	suffix     = regexp.MustCompile(`_(count|sum|bucket)$`)
)

// The README, the alerts and the services' own words must not drift apart.
func TestREADMEKnowsEveryFlagAndMetric(t *testing.T) {
	text := readme(t)
	installed := map[string]*devcluster.Service{}
	for _, name := range services(t) {
		s, err := env.Cluster.InstallService(t.Context(), env.Root, name, devcluster.ServiceOptions{})
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, s.Stop())
			kubectl(t, "delete", "-k", target(name), "--ignore-not-found")
		})
		installed[name] = s
		help, err := exec.Command(s.Replicas[0].Path, "--help").CombinedOutput()
		require.NoError(t, err)
		assert.Equal(t, flagsOf(string(help)), documentedFlags(t, name), "flags of %s", name)
	}
	causeEachMetric(t)

	served := map[string]bool{}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		for name, s := range installed {
			own := "gpu_" + strings.ReplaceAll(name, "-", "_")
			found := false
			for metric := range scrape(c, s) {
				served[metric] = true
				found = found || strings.HasPrefix(metric, own)
				assert.Contains(c, text, "`"+metric+"`", "a metric of %s", name)
			}
			assert.True(c, found, "metrics of %s", name)
		}
		for alert, expression := range expressions(t) {
			for _, absent := range absence.FindAllStringSubmatch(expression, -1) {
				assert.Regexp(c, `(?m)^`+absent[1]+`(\{.*\})? 1$`, scrapeText(c, installed[absent[2]]), alert)
			}
		}
		for _, text := range append(alerts(t), text) {
			for _, metric := range metricName.FindAllString(text, -1) {
				assert.True(c, served[suffix.ReplaceAllString(metric, "")], "no service has %s", metric)
			}
		}
	}, timeout, interval)
}

// causeEachMetric gives each service something to count.
func causeEachMetric(t testing.TB) {
	t.Helper()
	_, err := env.Kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "cozy-gpu-operator"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { kubectl(t, "delete", "namespace", "cozy-gpu-operator") })
	kubectl(t, "-n", "cozy-gpu-operator", "create", "secret", "generic", "l40s", "--from-literal=client_configuration_token.tok=not-a-real-token")
	env.Create(t, suite.GPUClasses, suite.Object(t, "{apiVersion: cozystack.io/v1alpha1, kind: GPUClass, metadata: {name: licensed}, spec: {mode: VGPU, resourceName: nvidia.com/X, license: {secretName: l40s}}}"))
	env.Namespace(t, map[string]string{"namespace.cozystack.io/vgpu": "true"})
	for _, object := range []string{vmi, pod} { // of a class that there is not
		resource := suite.VMIs
		if object == pod {
			resource = pods
		}
		require.Eventually(t, func() bool {
			_, err := tryCreate(t, resource, suite.Object(t, object, labelled))
			return err != nil && strings.Contains(err.Error(), "there is no GPUClass of this name")
		}, timeout, interval)
	}
	tooMany := suite.Object(t, vmInstance, "gpus: [{className: l40s, count: 2}]")
	tooMany.SetNamespace(tenantOfOneUnit(t))
	require.Eventually(t, func() bool {
		refused, err := isRefused(tryCreate(t, vmInstances, tooMany))
		return err == nil && refused
	}, timeout, interval)
}

// scrape returns the names of a service's own metrics.
func scrape(t require.TestingT, s *devcluster.Service) map[string]bool {
	metrics := map[string]bool{}
	for line := range strings.Lines(scrapeText(t, s)) {
		if rest, ok := strings.CutPrefix(line, "# TYPE gpu_"); ok {
			name, _, _ := strings.Cut(rest, " ")
			metrics["gpu_"+name] = true
		}
	}
	return metrics
}

func scrapeText(t require.TestingT, s *devcluster.Service) string {
	response, err := http.Get("http://" + s.Replicas[0].MetricsAddr + "/metrics")
	require.NoError(t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(raw)
}

// alerts are the texts of all rules.
func alerts(t testing.TB) (texts []string) {
	t.Helper()
	files, err := filepath.Glob(target("components", "monitoring", "*", "rules.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		texts = append(texts, string(raw))
	}
	return texts
}
