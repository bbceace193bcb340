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

// An alert on conflicts compares them with successes: it must see both.
func TestWritesOfEachResultAreShownFromTheStart(t *testing.T) {
	ledgerWrites.Reset()
	registry := prometheus.NewRegistry()
	registry.MustRegister(NewBook(NewView(time.Now), nil, zap.NewNop()).Metrics()...)
	families, err := registry.Gather()
	require.NoError(t, err)
	results := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.Metric {
			results[metric.Label[0].GetValue()] = metric.Counter.GetValue()
		}
	}
	assert.Equal(t, map[string]float64{"success": 0, "conflict": 0, "error": 0}, results)
}
