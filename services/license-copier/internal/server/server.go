// SPDX-License-Identifier: Apache-2.0

// Package server serves a controller's metrics and health.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// Config holds the server's addresses, as host:port.
type Config struct {
	MetricsAddr, HealthAddr string
}

// Run serves while work runs and returns what work returns. Work is told to
// end when ctx ends or a listener fails. A replica is ready from the start,
// whether it leads or stands by, until it is told to end.
func Run(ctx context.Context, config Config, metrics prometheus.Gatherer, log *zap.Logger, work func(context.Context) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	metricsMux := http.NewServeMux()
	metricsMux.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	healthMux := http.NewServeMux()
	healthMux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	healthMux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if ctx.Err() != nil {
			http.Error(w, "shutting down", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	failed := errors.New("a listener failed")
	for _, endpoint := range []struct {
		flag, addr string
		mux        http.Handler
	}{{"metrics-addr", config.MetricsAddr, metricsMux}, {"health-addr", config.HealthAddr, healthMux}} {
		listener, err := net.Listen("tcp", endpoint.addr)
		if err != nil {
			return fmt.Errorf("serve on --%s: %w", endpoint.flag, err)
		}
		server := &http.Server{
			Handler:           endpoint.mux,
			ReadHeaderTimeout: 10 * time.Second,
			ReadTimeout:       30 * time.Second,
			WriteTimeout:      60 * time.Second,
			IdleTimeout:       120 * time.Second,
			ErrorLog:          zap.NewStdLog(log),
		}
		defer server.Close()
		go func() {
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				stop(fmt.Errorf("%w: serve on --%s: %w", failed, endpoint.flag, err))
			}
		}()
	}
	err := work(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, failed) {
		err = errors.Join(cause, err)
	}
	return err
}
