// SPDX-License-Identifier: Apache-2.0

// Command pod-webhook is a mutating admission webhook that gives the launcher
// pods of VMs the tolerations of the GPU classes the VMs name.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/zapr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"k8s.io/klog/v2"

	"cozystack.io/gpu/services/pod-webhook/internal/admit"
	"cozystack.io/gpu/services/pod-webhook/internal/kube"
	"cozystack.io/gpu/services/pod-webhook/internal/server"
)

func main() {
	options, err := parseOptions(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "pod-webhook: %v (see --help)\n", err)
		os.Exit(2)
	case options.version:
		fmt.Println(thisBuild())
		return
	}
	if err := run(options); err != nil {
		fmt.Fprintf(os.Stderr, "pod-webhook: %v\n", err)
		os.Exit(1)
	}
}

func run(options options) error {
	logConfig := zap.NewProductionConfig()
	logConfig.Level.SetLevel(options.logLevel)
	logConfig.Sampling = nil // one line for every decision
	log, err := logConfig.Build()
	if err != nil {
		return fmt.Errorf("set up logging: %w", err)
	}
	defer func() { _ = log.Sync() }()
	klog.SetLogger(zapr.NewLogger(log)) // client-go's lines

	config, err := options.restConfig()
	if err != nil {
		return err
	}
	reader, err := kube.NewReader(config)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), thisBuild().metric())
	registry.MustRegister(server.Metrics()...)
	registry.MustRegister(kube.Metrics()...)

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	return server.Run(ctx, options.server, admit.Admitter{Reader: reader}, registry, log)
}
