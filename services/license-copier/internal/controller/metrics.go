// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"cozystack.io/gpu/pkg/model/v1alpha1"
)

const (
	metricNamespace = "gpu"
	metricSubsystem = "license_copier"
)

var (
	writes = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: metricNamespace,
		Subsystem: metricSubsystem,
		Name:      "writes_total",
		Help:      "Writes of copies, by verb (create, update, delete) and result.",
	}, []string{"verb", "result"})
	panics = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: metricNamespace,
		Subsystem: metricSubsystem,
		Name:      "panics_total",
		Help:      "Pieces of work that ended in a panic and were tried again.",
	})
	units = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: metricNamespace,
		Subsystem: metricSubsystem,
		Name:      "class_units",
		Help:      "Units of a class on the cluster's nodes, by state: allocatable, requested, free, or max_free_on_node, the most that are free on one node.",
	}, []string{"class", "state"})
)

// setUnits notes what was counted last of the class.
func setUnits(class string, capacity v1alpha1.Capacity) {
	for state, value := range map[string]int64{
		"allocatable": capacity.Allocatable, "requested": capacity.Requested,
		"free": capacity.Free, "max_free_on_node": capacity.MaxFreeOnNode,
	} {
		units.WithLabelValues(class, state).Set(float64(value))
	}
}

func dropUnits(class string) { units.DeletePartialMatch(prometheus.Labels{"class": class}) }

// Metrics returns the package's collectors.
func Metrics() []prometheus.Collector { return []prometheus.Collector{writes, panics, units} }

// State is how it stands with a wanted copy.
type State int

// The states of a wanted copy.
const (
	Absent   State = iota // not written yet, or not writable now
	Present               // as wanted, or held while the source is missing
	InTheWay              // a Secret that is not ours has the name
)

// Tally counts the wanted copies and how it stands with them, as far as this
// replica leads.
type Tally struct {
	mu         sync.Mutex
	working    bool
	namespaces map[string]map[string]standing // by namespace and class

	atWork, wanted, present, blocked, oldest *prometheus.Desc
}

type standing struct {
	state State
	since time.Time // of an unmet copy: when it was first known to be
}

var _ prometheus.Collector = (*Tally)(nil)

// NewTally returns an empty tally.
func NewTally() *Tally {
	gauge := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(metricNamespace, metricSubsystem, name), help, labels, nil)
	}
	return &Tally{
		namespaces: map[string]map[string]standing{},
		atWork:     gauge("working", "1 on the replica that leads, once it has read what it works from; else 0."),
		wanted:     gauge("copies_wanted", "Copies that there must be, by class.", "class"),
		present:    gauge("copies_present", "Wanted copies that exist, by class.", "class"),
		blocked:    gauge("copies_blocked", "Wanted copies whose name a Secret has that is no copy, by class.", "class"),
		oldest:     gauge("oldest_unmet_copy_age_seconds", "How long the wanted copy has been missing that has been so the longest; 0 when none is."),
	}
}

// work notes whether this replica leads and has read what it works from.
func (t *Tally) work(now bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.working = now
}

// set notes the state of the namespace's wanted copies, by class. One that is
// unmet for the first time has been so since the given time.
func (t *Tally) set(namespace string, states map[string]State, since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(states) == 0 {
		delete(t.namespaces, namespace)
		return
	}
	before, after := t.namespaces[namespace], make(map[string]standing, len(states))
	for class, state := range states {
		s := standing{state: state}
		if state != Present {
			s.since = since
			if old, found := before[class]; found && old.state != Present {
				s.since = old.since
			}
		}
		after[class] = s
	}
	t.namespaces[namespace] = after
}

// Describe implements prometheus.Collector.
func (t *Tally) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{t.atWork, t.wanted, t.present, t.blocked, t.oldest} {
		descs <- desc
	}
}

// Collect implements prometheus.Collector.
func (t *Tally) Collect(metrics chan<- prometheus.Metric) {
	t.mu.Lock()
	defer t.mu.Unlock()
	type count struct{ wanted, present, blocked int }
	classes := map[string]*count{}
	now := time.Now()
	oldest := time.Duration(0)
	for _, standings := range t.namespaces {
		for class, s := range standings {
			c := classes[class]
			if c == nil {
				c = &count{}
				classes[class] = c
			}
			c.wanted++
			switch s.state {
			case Present:
				c.present++
				continue
			case InTheWay:
				c.blocked++
			}
			oldest = max(oldest, now.Sub(s.since))
		}
	}
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for class, c := range classes {
		gauge(t.wanted, float64(c.wanted), class)
		gauge(t.present, float64(c.present), class)
		gauge(t.blocked, float64(c.blocked), class)
	}
	gauge(t.oldest, oldest.Seconds())
	working := 0.0
	if t.working {
		working = 1
	}
	gauge(t.atWork, working)
}
