// SPDX-License-Identifier: Apache-2.0

package budget

import "github.com/prometheus/client_golang/prometheus"

var ledgerWrites = prometheus.NewCounterVec(prometheus.CounterOpts{
	Namespace: "gpu",
	Subsystem: "budget_checker",
	Name:      "ledger_writes_total",
	Help:      "Writes of GPUBudgets, by result. A conflict is tried again.",
}, []string{"result"})

// Metrics returns the collectors of the package and of the book.
func (b *Book) Metrics() []prometheus.Collector {
	// From the start, so that alerts can compare them.
	for _, result := range []string{"success", "conflict", "error"} {
		ledgerWrites.WithLabelValues(result)
	}
	ready := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "gpu",
		Subsystem: "budget_checker",
		Name:      "ready",
		Help:      "1 once the replica has read all that is counted, and so can decide; 0 before.",
	}, func() float64 {
		if b.view.Ready() {
			return 1
		}
		return 0
	})
	return []prometheus.Collector{ledgerWrites, pools{b}, ready}
}

// pools shows the ledgers as this replica knows them.
type pools struct{ book *Book }

var poolUnits = prometheus.NewDesc("gpu_budget_checker_pool_units",
	"Units of a GPU budget, by the namespace of its tenant, its key, and what they are: the limit, carved out for tenants below, used, reserved by writes in flight, or free.",
	[]string{"namespace", "key", "state"}, nil)

// Describe implements prometheus.Collector.
func (p pools) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- poolUnits }

// Collect implements prometheus.Collector.
func (p pools) Collect(metrics chan<- prometheus.Metric) {
	p.book.mu.Lock()
	defer p.book.mu.Unlock()
	for namespace, ledger := range p.book.shelf {
		for _, pool := range ledger.budget.Status.Pools {
			for state, units := range map[string]int64{
				"limit": pool.Limit, "carved_out": pool.CarvedOut, "used": pool.Used, "reserved": pool.Reserved, "free": pool.Free,
			} {
				metrics <- prometheus.MustNewConstMetric(poolUnits, prometheus.GaugeValue, float64(units), namespace, pool.Key, state)
			}
		}
	}
}
