// SPDX-License-Identifier: Apache-2.0

package shipping

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

var (
	matcher  = regexp.MustCompile(`\b(job|namespace)="([^"]*)"`)
	absence  = regexp.MustCompile(`absent\((gpu_[a-z_]+)\{[^}]*job="([^"]+)"\}( == 1)?\)`)
	rejected = regexp.MustCompile(`apiserver_admission_webhook_rejection_count\{([^}]*)\}`)
)

// expressions returns those of all alerts, by alert.
func expressions(t testing.TB) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, object := range build(t, overlay(t, ".", "monitoring")) {
		if object.GetKind() != "PrometheusRule" {
			continue
		}
		groups, _, err := unstructured.NestedSlice(object.Object, "spec", "groups")
		require.NoError(t, err)
		for _, group := range groups {
			for _, rule := range group.(map[string]any)["rules"].([]any) {
				rule := rule.(map[string]any)
				found[rule["alert"].(string)] = rule["expr"].(string)
			}
		}
	}
	require.NotEmpty(t, found)
	return found
}

// Prometheus labels what it scrapes by the Service that a ServiceMonitor selects,
// and by its namespace.
func TestAlertsSelectWhatServiceMonitorsScrape(t *testing.T) {
	objects := build(t, overlay(t, ".", "monitoring"))
	scraped := map[string]bool{}
	for _, monitor := range objects {
		if monitor.GetKind() != "ServiceMonitor" {
			continue
		}
		selector, _, err := unstructured.NestedStringMap(monitor.Object, "spec", "selector", "matchLabels")
		require.NoError(t, err)
		endpoints, _, err := unstructured.NestedSlice(monitor.Object, "spec", "endpoints")
		require.NoError(t, err)
		for _, service := range objects {
			if service.GetKind() != "Service" || !labels.SelectorFromSet(selector).Matches(labels.Set(service.GetLabels())) {
				continue
			}
			ports, _, err := unstructured.NestedSlice(service.Object, "spec", "ports")
			require.NoError(t, err)
			for _, port := range ports {
				if port.(map[string]any)["name"] == endpoints[0].(map[string]any)["port"] && service.GetNamespace() == monitor.GetNamespace() {
					scraped["namespace "+service.GetNamespace()], scraped["job "+service.GetName()] = true, true
				}
			}
		}
	}
	for _, service := range services(t) {
		assert.True(t, scraped["job "+service], "no ServiceMonitor finds %s", service)
	}
	for alert, expression := range expressions(t) {
		for _, m := range matcher.FindAllStringSubmatch(expression, -1) {
			assert.True(t, scraped[m[1]+" "+m[2]], "%s selects %s", alert, m[0])
		}
	}
}

// rejections returns, by webhook, the labels by which an alert counts the calls of
// it that fail.
func rejections(t testing.TB) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for _, expression := range expressions(t) {
		for _, selector := range rejected.FindAllStringSubmatch(expression, -1) {
			matchers := strings.Split(selector[1], ", ")
			found[strings.TrimSuffix(strings.TrimPrefix(matchers[0], `name="`), `"`)] = matchers
		}
	}
	return found
}

// checkRejectionsAreCounted fails unless the API server has counted, as each alert
// selects them, calls of the webhook that failed.
func checkRejectionsAreCounted(t testing.TB, webhook string) {
	t.Helper()
	matchers := rejections(t)[webhook]
	require.NotEmpty(t, matchers, "no alert on failing calls of %s", webhook)
	raw, err := env.Kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	require.NoError(t, err)
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, "apiserver_admission_webhook_rejection_count{") {
			continue
		}
		counted := true
		for _, matcher := range matchers {
			counted = counted && strings.Contains(line, matcher)
		}
		if counted {
			return
		}
	}
	assert.Fail(t, "the API server counts no failing calls", webhook)
}
