// SPDX-License-Identifier: Apache-2.0

// Package server holds what every GPU webhook has around its decision: a TLS
// listener for reviews, plain ones for metrics and health, and an orderly end.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// Path is where reviews are answered.
const Path = "/mutate"

// shutdownTimeout bounds how long requests in flight may take once no new
// ones are accepted. It exceeds the longest timeout the API server grants.
const shutdownTimeout = 31 * time.Second

// Config holds the server's addresses, as host:port, and files.
type Config struct {
	Addr, MetricsAddr, HealthAddr string
	CertFile, KeyFile             string
	// ShutdownDelay is how long reviews are still accepted after the server
	// was told to end and reports that it is not ready: until then the API
	// server may not have heard of it.
	ShutdownDelay time.Duration
	// DrainTimeout bounds how long after that the connections are waited for
	// that clients keep over HTTP/1.1.
	DrainTimeout time.Duration
}

// Metrics returns the package's collectors.
func Metrics() []prometheus.Collector {
	// From the start, so that alerts see the first of each.
	for _, outcome := range []string{"admitted", "patched", "refused", "failed"} {
		reviews.WithLabelValues(outcome)
	}
	return []prometheus.Collector{reviews, refusals, panics, certificateExpiry}
}

// Run serves until ctx ends, then finishes the requests in flight. It returns
// an error if it could not serve or finish.
func Run(ctx context.Context, config Config, admitter Admitter, metrics prometheus.Gatherer, log *zap.Logger) error {
	cert, err := newCertificate(config.CertFile, config.KeyFile, log)
	if err != nil {
		return err
	}
	var ready atomic.Bool
	reviewMux := http.NewServeMux()
	reviewMux.Handle(Path, closing(&ready, newReviewer(admitter, log)))
	metricsMux := http.NewServeMux()
	metricsMux.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	healthMux := http.NewServeMux()
	healthMux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	healthMux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready.Load() {
			http.Error(w, "shutting down or not started", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})

	failed := make(chan error, 3)
	var kept connections
	serve := func(flag, addr string, handler http.Handler, tlsConfig *tls.Config) (*http.Server, error) {
		listener, err := net.Listen("tcp", addr)
		if err != nil {
			return nil, fmt.Errorf("serve on --%s: %w", flag, err)
		}
		server := &http.Server{
			Handler:           handler,
			TLSConfig:         tlsConfig,
			ReadHeaderTimeout: 10 * time.Second,
			ReadTimeout:       30 * time.Second,
			WriteTimeout:      60 * time.Second,
			// Longer than the API server keeps a connection that it does not use
			// (90 s in client-go): ended here first, one could meet its next review.
			IdleTimeout: 120 * time.Second,
			ErrorLog:    zap.NewStdLog(log),
		}
		if tlsConfig != nil {
			server.ConnState = kept.track
		}
		go func() {
			var err error
			if tlsConfig != nil {
				err = server.ServeTLS(listener, "", "")
			} else {
				err = server.Serve(listener)
			}
			if !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serve on --%s: %w", flag, err)
			}
		}()
		return server, nil
	}
	health, err := serve("health-addr", config.HealthAddr, healthMux, nil)
	if err != nil {
		return err
	}
	defer health.Close()
	scrape, err := serve("metrics-addr", config.MetricsAddr, metricsMux, nil)
	if err != nil {
		return err
	}
	defer scrape.Close()
	webhook, err := serve("addr", config.Addr, reviewMux, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: cert.get})
	if err != nil {
		return err
	}
	defer webhook.Close()
	ready.Store(true)
	log.Info("serving", zap.String("addr", config.Addr))

	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	ready.Store(false)
	log.Info("shutting down", zap.Duration("delay", config.ShutdownDelay))
	time.Sleep(config.ShutdownDelay)
	kept.wait(config.DrainTimeout)
	finish, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if err := webhook.Shutdown(finish); err != nil {
		return fmt.Errorf("finish requests in flight: %w", err)
	}
	return nil
}
