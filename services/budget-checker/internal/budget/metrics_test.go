// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// gather returns the values of the view's metrics, by name and labels.
func gather(t *testing.T, view *View) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(NewBook(view, nil, zap.NewNop()).Metrics()...)
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.Metric {
			name := family.GetName()
			for _, label := range metric.Label {
				name += " " + label.GetValue()
			}
			values[name] = metric.Counter.GetValue() + metric.Gauge.GetValue()
		}
	}
	return values
}

// An alert on conflicts compares them with successes: it must see both.
func TestWritesOfEachResultAreShownFromTheStart(t *testing.T) {
	ledgerWrites.Reset()
	values := gather(t, NewView(time.Now))
	for _, result := range []string{"success", "conflict", "error"} {
		assert.Contains(t, values, "gpu_budget_checker_ledger_writes_total "+result)
	}
}

// An alert must tell a replica that runs and cannot decide from one that can.
func TestAReplicaIsShownAsReadyOnceAllIsListed(t *testing.T) {
	const ready = "gpu_budget_checker_ready"
	view := NewView(time.Now)
	values := gather(t, view)
	require.Contains(t, values, ready)
	assert.Zero(t, values[ready])
	for _, resource := range []Resource{VMInstances, KubernetesNodes, Tenants} {
		view.Replace(resource, nil, "1")
	}
	assert.EqualValues(t, 1, gather(t, view)[ready])
}
