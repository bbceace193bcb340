// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// gauges returns the values of gauges and counters by name and labels.
func gauges(t *testing.T, collector prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector)
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			values[name] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
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

// An alert must tell replicas of which none works from those of which one does.
func TestOnlyTheReplicaThatWorksIsShownAsWorking(t *testing.T) {
	const working = "gpu_license_copier_working"
	tally := NewTally()
	values := gauges(t, tally)
	require.Contains(t, values, working)
	assert.Zero(t, values[working])
	tally.work(true)
	assert.EqualValues(t, 1, gauges(t, tally)[working])
	tally.work(false)
	assert.Zero(t, gauges(t, tally)[working])
}

func TestAPanicIsCountedAndItsStackLogged(t *testing.T) {
	log, logs := observer.New(zap.InfoLevel)
	before := gauges(t, panics)["gpu_license_copier_panics_total"]
	c := &Controller{log: zap.New(log)}
	err := c.guard(t.Context(), "tenant-a", func(context.Context, string) error { panic("spilled") })
	require.ErrorContains(t, err, "spilled")
	assert.Equal(t, before+1, gauges(t, panics)["gpu_license_copier_panics_total"])
	require.Equal(t, 1, logs.Len())
	fields := logs.All()[0].ContextMap()
	assert.Equal(t, "tenant-a", fields["item"])
	assert.Contains(t, fields["stack"], "TestAPanicIsCountedAndItsStackLogged")
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
