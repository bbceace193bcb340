// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strings"

	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/services/license-copier/internal/server"
)

type options struct {
	server           server.Config
	licenseNamespace string
	workers          int
	leaderElect      bool
	leaseNamespace   string
	leaseName        string
	kubeconfig       string
	qps              float64
	burst            int
	logLevel         zapcore.Level
	version          bool
}

// parseOptions reads the command line. For --help it prints the flags to out
// and returns flag.ErrHelp; any other error is one line that names the flag.
func parseOptions(args []string, out io.Writer) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("license-copier", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.licenseNamespace, "license-namespace", gpu.LicenseSecretNamespace, "`namespace` of the licence Secrets that classes name")
	flags.IntVar(&o.workers, "workers", 8, "namespaces that are worked on at once")
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "write only while holding a lease, so that several replicas may run")
	flags.StringVar(&o.leaseNamespace, "leader-elect-namespace", "cozy-gpu", "`namespace` of the lease")
	flags.StringVar(&o.leaseName, "leader-elect-name", "license-copier", "`name` of the lease")
	flags.StringVar(&o.server.MetricsAddr, "metrics-addr", ":8080", "`host:port` of /metrics")
	flags.StringVar(&o.server.HealthAddr, "health-addr", ":8081", "`host:port` of /healthz and /readyz")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` that says how to reach the API server; without it, the pod's service account is used")
	flags.Float64Var(&o.qps, "kube-api-qps", 1000, "requests per second to the API server, sustained")
	flags.IntVar(&o.burst, "kube-api-burst", 2000, "requests to the API server at once")
	flags.TextVar(&o.logLevel, "log-level", zapcore.InfoLevel, "least `level` that is logged: debug, info, warn or error")
	flags.BoolVar(&o.version, "version", false, "print the version and end")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(out, "license-copier keeps a copy of each GPU class's licence in every entitled namespace,\nand the conditions and capacity of GPUClasses.\n\nFlags:")
			flags.SetOutput(out)
			flags.PrintDefaults()
		}
		return o, err
	}
	return o, o.validate(flags.Args())
}

func (o options) validate(arguments []string) error {
	if len(arguments) > 0 {
		return fmt.Errorf("unexpected argument %q: only flags are taken", arguments[0])
	}
	for _, addr := range []struct{ flag, value string }{
		{"metrics-addr", o.server.MetricsAddr}, {"health-addr", o.server.HealthAddr},
	} {
		if _, _, err := net.SplitHostPort(addr.value); err != nil {
			return fmt.Errorf("invalid value %q for flag --%s: want host:port", addr.value, addr.flag)
		}
	}
	for _, name := range []struct {
		flag, value string
		check       func(string) []string
	}{
		{"license-namespace", o.licenseNamespace, validation.IsDNS1123Label},
		{"leader-elect-namespace", o.leaseNamespace, validation.IsDNS1123Label},
		{"leader-elect-name", o.leaseName, validation.IsDNS1123Subdomain},
	} {
		if faults := name.check(name.value); len(faults) > 0 {
			return fmt.Errorf("invalid value %q for flag --%s: %s", name.value, name.flag, strings.Join(faults, "; "))
		}
	}
	if o.workers < 1 {
		return fmt.Errorf("invalid value %d for flag --workers: must be above 0", o.workers)
	}
	if !(o.qps >= 1 && o.qps <= 1e6) || o.burst < 1 {
		return fmt.Errorf("flags --kube-api-qps (up to 1e6) and --kube-api-burst must be at least 1, got %v and %d", o.qps, o.burst)
	}
	if o.logLevel > zapcore.ErrorLevel {
		return fmt.Errorf("invalid value %q for flag --log-level: want debug, info, warn or error", o.logLevel)
	}
	return nil
}

func (o options) restConfig() (config *rest.Config, err error) {
	if o.kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	} else {
		config, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("read how to reach the API server, from --kubeconfig or else the pod's account: %w", err)
	}
	config.QPS, config.Burst = float32(o.qps), o.burst
	config.UserAgent = "license-copier"
	return config, nil
}
