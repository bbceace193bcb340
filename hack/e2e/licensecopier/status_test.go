// SPDX-License-Identifier: Apache-2.0

package licensecopier

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cozystack.io/gpu/hack/e2e/suite"
	"cozystack.io/gpu/pkg/gpu"
)

var gpuclasses = suite.GPUClasses

func contains(text, part string) bool { return strings.Contains(text, part) }

// events returns how often each reason was reported on the class.
func events(t testing.TB, class string) map[string]int {
	t.Helper()
	list, err := env.Kube.EventsV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "regarding.kind=GPUClass,regarding.name=" + class})
	require.NoError(t, err)
	counts := map[string]int{}
	for _, event := range list.Items {
		counts[event.Reason]++
		if event.Series != nil {
			counts[event.Reason] += int(event.Series.Count)
		}
	}
	return counts
}

// event waits for an event of that reason.
func event(t testing.TB, class, reason string) {
	t.Helper()
	require.Eventually(t, func() bool { return events(t, class)[reason] > 0 }, pollTimeout, pollInterval, "no event %s on class %s", reason, class)
}

// metric returns the value of a line of /metrics.
func metric(t testing.TB, name string) float64 {
	t.Helper()
	value, found := scrape(t, name)
	require.True(t, found, "no metric %s", name)
	return value
}

// scrape returns the value of a line of /metrics, and whether there is one.
func scrape(t testing.TB, name string) (float64, bool) {
	t.Helper()
	response, err := http.Get("http://" + service.Replicas[0].MetricsAddr + "/metrics")
	if err != nil {
		return 0, false // not started yet
	}
	defer response.Body.Close()
	for scanner := bufio.NewScanner(response.Body); scanner.Scan(); {
		if value, found := strings.CutPrefix(scanner.Text(), name+" "); found {
			number, err := strconv.ParseFloat(value, 64)
			require.NoError(t, err)
			return number, true
		}
	}
	return 0, false
}

// conflict waits until the class's conflict condition has the status.
func conflict(t testing.TB, class string, status metav1.ConditionStatus) metav1.Condition {
	t.Helper()
	var last metav1.Condition
	require.Eventually(t, func() bool {
		last = condition(t, class, gpu.ConditionResourceNameConflict)
		return last.Status == status
	}, pollTimeout, pollInterval, "class %s: want conflict %s", class, status)
	assert.NotEmpty(t, last.Reason)
	assert.NotEmpty(t, last.Message)
	assert.False(t, last.LastTransitionTime.IsZero())
	return last
}

func TestConflictsAreJudgedOnEveryChange(t *testing.T) {
	make := func(name, resource string) {
		env.Create(t, suite.GPUClasses, suite.Object(t,
			"{apiVersion: cozystack.io/v1alpha1, kind: GPUClass, metadata: {name: %s, finalizers: [example.com/keep]}, spec: {mode: Passthrough, resourceName: %s}}", name, resource))
		t.Cleanup(func() { unfinalize(t, name) })
	}
	make("elder", "nvidia.com/SAME")
	conflict(t, "elder", metav1.ConditionFalse)
	assert.Equal(t, "NoLicenseNeeded", reason(t, "elder", "NoLicenseNeeded").Reason)
	make("younger", "nvidia.com/SAME")
	lost := conflict(t, "younger", metav1.ConditionTrue)
	assert.Contains(t, lost.Message, `"elder"`)
	conflict(t, "elder", metav1.ConditionFalse)
	event(t, "younger", "ResourceNameTaken")
	assert.Empty(t, events(t, "elder"))

	// Edited away and back.
	patchClass(t, "younger", `{"spec":{"resourceName":"nvidia.com/OTHER"}}`)
	conflict(t, "younger", metav1.ConditionFalse)
	patchClass(t, "younger", `{"spec":{"resourceName":"nvidia.com/SAME"}}`)
	back := conflict(t, "younger", metav1.ConditionTrue)
	assert.EqualValues(t, 3, back.ObservedGeneration)

	// A class being deleted holds its name until it is gone.
	require.NoError(t, env.Dynamic.Resource(suite.GPUClasses).Delete(t.Context(), "elder", metav1.DeleteOptions{}))
	audit(t)
	conflict(t, "younger", metav1.ConditionTrue)
	unfinalize(t, "elder")
	conflict(t, "younger", metav1.ConditionFalse)
}

// unfinalize lets a class go that a test holds.
func unfinalize(t *testing.T, class string) {
	_, err := env.Dynamic.Resource(suite.GPUClasses).Patch(withoutCancel(t), class, "application/merge-patch+json",
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if err != nil {
		require.ErrorContains(t, err, "not found")
	}
}

func TestFaultsAreReportedOnceAlsoOverARestart(t *testing.T) {
	class(t, "reported", "no-such-secret")
	namespace := env.Namespace(t, entitled)
	reason(t, "reported", "SecretNotFound")
	event(t, "reported", "SecretNotFound")
	log := audit(t)
	patchClass(t, "reported", `{"metadata":{"annotations":{"example.com/a":"b"}}}`)
	restart(t)
	assert.Empty(t, log.Settled(t))
	assert.Equal(t, map[string]int{"SecretNotFound": 1}, events(t, "reported"))
	assert.Nil(t, secret(t, namespace, "reported"))
}

func TestAStatusThatIsEditedIsPutRight(t *testing.T) {
	class(t, "edited", "no-such-secret")
	before := reason(t, "edited", "SecretNotFound")
	_, err := env.Dynamic.Resource(suite.GPUClasses).Patch(t.Context(), "edited", "application/merge-patch+json",
		[]byte(`{"status":{"conditions":[],"capacity":{"allocatable":3,"requested":1,"free":2,"maxFreeOnNode":2}}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	assert.Equal(t, before.Message, reason(t, "edited", "SecretNotFound").Message)
	capacity(t, "edited", units{})
}

func TestWritesAreLoggedAndCountedWithoutContent(t *testing.T) {
	source(t, "logged", token)
	class(t, "logged", "logged")
	namespace := env.Namespace(t, entitled)
	copied(t, namespace, "logged", token)
	require.Eventually(t, func() bool {
		wanted, found := scrape(t, `gpu_license_copier_copies_wanted{class="logged"}`)
		present, _ := scrape(t, `gpu_license_copier_copies_present{class="logged"}`)
		return found && wanted == present
	}, pollTimeout, pollInterval)
	assert.Positive(t, metric(t, `gpu_license_copier_writes_total{result="success",verb="create"}`))

	raw, err := os.ReadFile(service.Replicas[0].Log)
	require.NoError(t, err)
	assert.NotContains(t, string(raw), token)
	lines := 0
	for line := range strings.Lines(string(raw)) {
		var fields map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &fields), "%s", line)
		if fields["namespace"] == namespace && fields["msg"] == "write" {
			lines++
			assert.Equal(t, "create", fields["verb"])
			assert.Equal(t, "success", fields["outcome"])
			assert.Contains(t, fields, "uid")
			assert.Contains(t, fields, "duration")
		}
	}
	assert.Equal(t, 1, lines)
}
