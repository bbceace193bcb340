// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// gauges returns the values by name and labels.
func gauges(t *testing.T, tally prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(tally)
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			values[name] = metric.GetGauge().GetValue()
		}
	}
	return values
}

func TestTallyCountsCopiesByClass(t *testing.T) {
	tally := NewTally()
	tally.set("a", map[string]State{"x": Present, "y": InTheWay}, time.Now())
	tally.set("b", map[string]State{"x": Absent}, time.Now())
	values := gauges(t, tally)
	assert.EqualValues(t, 2, values["gpu_license_copier_copies_wanted x"])
	assert.EqualValues(t, 1, values["gpu_license_copier_copies_present x"])
	assert.EqualValues(t, 0, values["gpu_license_copier_copies_blocked x"])
	assert.EqualValues(t, 1, values["gpu_license_copier_copies_blocked y"])

	tally.set("a", nil, time.Now())
	tally.set("b", map[string]State{"x": Present}, time.Now())
	values = gauges(t, tally)
	assert.EqualValues(t, 1, values["gpu_license_copier_copies_present x"])
	assert.NotContains(t, values, "gpu_license_copier_copies_wanted y")
	assert.Zero(t, values["gpu_license_copier_oldest_unmet_copy_age_seconds"])
}

func TestUnitsOfAClassGoWithIt(t *testing.T) {
	setUnits("x", v1alpha1.Capacity{Allocatable: 4, Requested: 1, Free: 3, MaxFreeOnNode: 2})
	setUnits("y", v1alpha1.Capacity{})
	values := gauges(t, units)
	for state, want := range map[string]float64{"allocatable": 4, "requested": 1, "free": 3, "max_free_on_node": 2} {
		assert.Equal(t, want, values["gpu_license_copier_class_units x "+state])
	}
	dropUnits("x")
	values = gauges(t, units)
	assert.NotContains(t, values, "gpu_license_copier_class_units x free")
	assert.Contains(t, values, "gpu_license_copier_class_units y free")
	dropUnits("y")
}

func TestAnUnmetCopyAgesFromWhenItWasFirstKnown(t *testing.T) {
	const age = "gpu_license_copier_oldest_unmet_copy_age_seconds"
	tally := NewTally()
	tally.set("a", map[string]State{"x": Absent}, time.Now().Add(-time.Hour))
	tally.set("a", map[string]State{"x": InTheWay}, time.Now())
	assert.InDelta(t, 3600, gauges(t, tally)[age], 60)
	tally.set("a", map[string]State{"x": Present}, time.Now())
	assert.Zero(t, gauges(t, tally)[age])
	tally.set("a", map[string]State{"x": Absent}, time.Now())
	assert.InDelta(t, 0, gauges(t, tally)[age], 60)
}
