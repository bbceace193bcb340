// SPDX-License-Identifier: Apache-2.0

// Command license-copier is a controller that keeps a copy of each GPU class's
// licence in every entitled namespace, and the conditions and capacity of
// GPUClasses.
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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"cozystack.io/gpu/services/license-copier/internal/controller"
	"cozystack.io/gpu/services/license-copier/internal/kube"
	"cozystack.io/gpu/services/license-copier/internal/server"
)

func main() {
	options, err := parseOptions(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "license-copier: %v (see --help)\n", err)
		os.Exit(2)
	case options.version:
		fmt.Println(thisBuild())
		return
	}
	if err := run(options); err != nil {
		fmt.Fprintf(os.Stderr, "license-copier: %v\n", err)
		os.Exit(1)
	}
}

func run(options options) error {
	logConfig := zap.NewProductionConfig()
	logConfig.Level.SetLevel(options.logLevel)
	logConfig.Sampling = nil // one line for every write
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
	clients, err := kube.NewClients(config)
	if err != nil {
		return err
	}
	tally := controller.NewTally()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), thisBuild().metric(), tally)
	registry.MustRegister(controller.Metrics()...)

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	copyLicenses := func(ctx context.Context) error {
		broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: clients.Events})
		defer broadcaster.Shutdown()
		if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
			return fmt.Errorf("start to record events: %w", err)
		}
		caches, err := kube.NewCaches(clients, options.licenseNamespace)
		if err != nil {
			return err
		}
		recorder := broadcaster.NewRecorder(runtime.NewScheme(), "license-copier")
		c, err := controller.New(clients, caches, options.licenseNamespace, recorder, tally, log)
		if err != nil {
			return err
		}
		return c.Run(ctx, options.workers)
	}
	return server.Run(ctx, options.server, registry, log, func(ctx context.Context) error {
		if !options.leaderElect {
			return copyLicenses(ctx)
		}
		return controller.Lead(ctx, clients.Leases, options.leaseNamespace, options.leaseName, log, copyLicenses)
	})
}
