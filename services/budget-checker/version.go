// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// What this binary is built from. The linker writes both: -X main.version=v1.2.3.
var version, revision string

type build struct{ version, revision, goVersion string }

// thisBuild returns the linker's values; without them, what Go itself noted in
// the binary, and else the version devel and the revision unknown.
func thisBuild() build {
	b := build{version, revision, runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "(devel)" {
			b.version = cmp.Or(b.version, info.Main.Version)
		}
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				b.revision = cmp.Or(b.revision, setting.Value)
			}
		}
	}
	b.version, b.revision = cmp.Or(b.version, "devel"), cmp.Or(b.revision, "unknown")
	return b
}

// String is what --version prints.
func (b build) String() string {
	return "budget-checker " + b.version + " (revision " + b.revision + ", " + b.goVersion + ")"
}

// metric returns a gauge that is always 1, for its labels.
func (b build) metric() prometheus.Collector {
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "gpu",
		Name:      "build_info",
		Help:      "Always 1; the labels say what the service was built from.",
	}, []string{"version", "revision", "goversion"})
	gauge.WithLabelValues(b.version, b.revision, b.goVersion).Set(1)
	return gauge
}
