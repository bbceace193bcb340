// SPDX-License-Identifier: Apache-2.0

// Command budget-checker is a validating admission webhook that holds tenants
// to their GPU budgets.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/zapr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"k8s.io/klog/v2"

	"cozystack.io/gpu/services/budget-checker/internal/budget"
	"cozystack.io/gpu/services/budget-checker/internal/kube"
	"cozystack.io/gpu/services/budget-checker/internal/review"
	"cozystack.io/gpu/services/budget-checker/internal/server"
)

func main() {
	options, err := parseOptions(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "budget-checker: %v (see --help)\n", err)
		os.Exit(2)
	case options.version:
		fmt.Println(thisBuild())
		return
	}
	if err := run(options); err != nil {
		fmt.Fprintf(os.Stderr, "budget-checker: %v\n", err)
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
	clients, err := kube.NewClients(config)
	if err != nil {
		return err
	}
	view := budget.NewView(time.Now)
	ledgers := kube.NewLedgers(clients, options.ledgerNamespace, log)
	book := budget.NewBook(view, ledgers, log)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), thisBuild().metric())
	registry.MustRegister(server.Metrics()...)
	registry.MustRegister(book.Metrics()...)

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once

	// What decides goes on until the last review is answered.
	work, end := context.WithCancel(context.Background())
	var background sync.WaitGroup
	defer background.Wait()
	defer end()
	clients.Watch(work, view, review.Amounts)
	admitter := review.Admitter{Checker: book, Classes: clients.Hints(work)}
	background.Go(func() {
		ledgers.Watch(work, book)
		if view.Wait(work) {
			book.Run(work)
		}
	})
	return server.Run(ctx, options.server, admitter, view.Ready, registry, log)
}
