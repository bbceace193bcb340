// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"time"

	"go.uber.org/zap/zapcore"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"cozystack.io/gpu/services/pod-webhook/internal/server"
)

// maxWait bounds each of the waits after SIGTERM.
const maxWait = 10 * time.Minute

type options struct {
	server     server.Config
	kubeconfig string
	qps        float64
	burst      int
	logLevel   zapcore.Level
	version    bool
}

// parseOptions reads the command line. For --help it prints the flags to out
// and returns flag.ErrHelp; any other error is one line that names the flag.
func parseOptions(args []string, out io.Writer) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("pod-webhook", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.server.Addr, "addr", ":8443", "`host:port` on which admission reviews are answered over TLS")
	flags.StringVar(&o.server.MetricsAddr, "metrics-addr", ":8080", "`host:port` of /metrics")
	flags.StringVar(&o.server.HealthAddr, "health-addr", ":8081", "`host:port` of /healthz and /readyz")
	flags.StringVar(&o.server.CertFile, "tls-cert-file", "/etc/tls/tls.crt", "`file` with the serving certificate; a renewed one is picked up")
	flags.StringVar(&o.server.KeyFile, "tls-private-key-file", "/etc/tls/tls.key", "`file` with the certificate's private key")
	flags.DurationVar(&o.server.ShutdownDelay, "shutdown-delay", 5*time.Second, "how long reviews are still accepted after SIGTERM, while /readyz already fails")
	flags.DurationVar(&o.server.DrainTimeout, "drain-timeout", 95*time.Second, "how long after that connections are waited for that the API server keeps; it ends unused ones after 90s")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` that says how to reach the API server; without it, the pod's service account is used")
	flags.Float64Var(&o.qps, "kube-api-qps", 100, "requests per second to the API server, sustained")
	flags.IntVar(&o.burst, "kube-api-burst", 200, "requests to the API server at once")
	flags.TextVar(&o.logLevel, "log-level", zapcore.InfoLevel, "least `level` that is logged: debug, info, warn or error")
	flags.BoolVar(&o.version, "version", false, "print the version and end")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(out, "pod-webhook gives the launcher pods of VMs the tolerations of the GPU classes the VMs name.\n\nFlags:")
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
		{"addr", o.server.Addr}, {"metrics-addr", o.server.MetricsAddr}, {"health-addr", o.server.HealthAddr},
	} {
		if _, _, err := net.SplitHostPort(addr.value); err != nil {
			return fmt.Errorf("invalid value %q for flag --%s: want host:port", addr.value, addr.flag)
		}
	}
	for _, file := range []struct{ flag, value string }{
		{"tls-cert-file", o.server.CertFile}, {"tls-private-key-file", o.server.KeyFile},
	} {
		if file.value == "" {
			return fmt.Errorf("flag --%s must not be empty", file.flag)
		}
	}
	for _, wait := range []struct {
		flag  string
		value time.Duration
	}{
		{"shutdown-delay", o.server.ShutdownDelay}, {"drain-timeout", o.server.DrainTimeout},
	} {
		if wait.value < 0 || wait.value > maxWait {
			return fmt.Errorf("invalid value %s for flag --%s: must be from 0s to %s", wait.value, wait.flag, maxWait)
		}
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
	config.UserAgent = "pod-webhook"
	return config, nil
}
