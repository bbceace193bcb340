// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	admissionv1 "k8s.io/api/admission/v1"
)

// writePair writes a self-signed pair with the serial number to the files.
func writePair(t *testing.T, certFile, keyFile string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
}

func freeAddr(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

func always() bool { return true }

// start runs a server until the test ends or stop is called; done yields what
// Run returned.
func start(t *testing.T, admitter Admitter, delay time.Duration) (config Config, stop context.CancelFunc, done chan error) {
	t.Helper()
	return startWith(t, admitter, Config{ShutdownDelay: delay, DrainTimeout: time.Minute})
}

func startWith(t *testing.T, admitter Admitter, config Config) (_ Config, stop context.CancelFunc, done chan error) {
	t.Helper()
	dir := t.TempDir()
	config.Addr, config.MetricsAddr, config.HealthAddr = freeAddr(t), freeAddr(t), freeAddr(t)
	config.CertFile, config.KeyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	writePair(t, config.CertFile, config.KeyFile, 1)
	ctx, stop := context.WithCancel(t.Context())
	done = make(chan error, 1)
	registry := prometheus.NewRegistry()
	registry.MustRegister(Metrics()...)
	go func() { done <- Run(ctx, config, admitter, always, registry, zap.NewNop()) }()
	t.Cleanup(stop)
	require.Eventually(t, func() bool { return status(config.HealthAddr+"/readyz") == http.StatusOK }, 10*time.Second, 10*time.Millisecond)
	return config, stop, done
}

func status(url string) int {
	response, err := http.Get("http://" + url)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return response.StatusCode
}

func insecureClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
		Timeout:   20 * time.Second,
	}
}

func TestNotReadyBeforeTheStateIsRead(t *testing.T) {
	dir := t.TempDir()
	config := Config{Addr: freeAddr(t), MetricsAddr: freeAddr(t), HealthAddr: freeAddr(t), CertFile: filepath.Join(dir, "c"), KeyFile: filepath.Join(dir, "k")}
	writePair(t, config.CertFile, config.KeyFile, 1)
	var read atomic.Bool
	log, logs := observer.New(zap.InfoLevel)
	go func() {
		_ = Run(t.Context(), config, admitFunc(allow), read.Load, prometheus.NewRegistry(), zap.New(log))
	}()
	require.Eventually(t, func() bool { return logs.FilterMessage("serving").Len() == 1 }, 10*time.Second, 10*time.Millisecond)
	assert.Equal(t, http.StatusServiceUnavailable, status(config.HealthAddr+"/readyz"))
	assert.Equal(t, http.StatusOK, status(config.HealthAddr+"/healthz"))
	read.Store(true)
	assert.Equal(t, http.StatusOK, status(config.HealthAddr+"/readyz"))
}

func TestRequestInFlightIsFinishedAfterTheServerIsToldToEnd(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	config, stop, done := start(t, admitFunc(func(ctx context.Context, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		close(entered)
		<-release
		return allow(ctx, r)
	}), 0)
	answered := make(chan int, 1)
	go func() {
		response, err := insecureClient().Post("https://"+config.Addr+Path, "application/json", strings.NewReader(reviewBody))
		if err != nil {
			answered <- 0
			return
		}
		defer response.Body.Close()
		answered <- response.StatusCode
	}()
	<-entered
	stop()
	require.Eventually(t, func() bool { return status(config.HealthAddr+"/readyz") == http.StatusServiceUnavailable }, 10*time.Second, 10*time.Millisecond)
	assert.Equal(t, http.StatusOK, status(config.HealthAddr+"/healthz"), "alive until the last answer")
	close(release)
	assert.Equal(t, http.StatusOK, <-answered)
	assert.NoError(t, <-done)
}

func TestReviewsAreStillAcceptedDuringTheShutdownDelay(t *testing.T) {
	config, stop, done := start(t, admitFunc(allow), 2*time.Second)
	stop()
	require.Eventually(t, func() bool { return status(config.HealthAddr+"/readyz") == http.StatusServiceUnavailable }, 10*time.Second, 10*time.Millisecond)
	response, err := insecureClient().Post("https://"+config.Addr+Path, "application/json", strings.NewReader(reviewBody))
	require.NoError(t, err)
	defer response.Body.Close()
	assert.Equal(t, http.StatusOK, response.StatusCode)
	assert.NoError(t, <-done)
}

func TestRenewedCertificateIsServedWithoutARestart(t *testing.T) {
	config, _, _ := start(t, admitFunc(allow), 0)
	serial := func() int64 {
		conn, err := tls.Dial("tcp", config.Addr, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return 0
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	require.EqualValues(t, 1, serial())

	// Half of a renewal: the last good pair stays in use.
	good, err := os.ReadFile(config.KeyFile)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(config.KeyFile, []byte("not a key"), 0o600))
	time.Sleep(certificateCheckInterval)
	require.EqualValues(t, 1, serial())
	require.NoError(t, os.WriteFile(config.KeyFile, good, 0o600))

	writePair(t, config.CertFile, config.KeyFile, 2)
	assert.Eventually(t, func() bool { return serial() == 2 }, 10*time.Second, 50*time.Millisecond)
}

func TestOldTLSVersionsAreRefused(t *testing.T) {
	config, _, _ := start(t, admitFunc(allow), 0)
	_, err := tls.Dial("tcp", config.Addr, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	require.ErrorContains(t, err, "protocol version")
}

func TestMetricsAreServed(t *testing.T) {
	config, _, _ := start(t, admitFunc(allow), 0)
	response, err := http.Get("http://" + config.MetricsAddr + "/metrics")
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	assert.Contains(t, string(body), "gpu_budget_checker_panics_total")
	assert.Contains(t, string(body), "gpu_budget_checker_certificate_expiry_timestamp_seconds")
	for _, outcome := range []string{"admitted", "refused", "busy", "unavailable", "failed"} {
		assert.Contains(t, string(body), `gpu_budget_checker_review_duration_seconds_count{outcome="`+outcome+`"}`)
	}
}

func TestRunFailsWhereItCannotServe(t *testing.T) {
	dir := t.TempDir()
	config := Config{Addr: freeAddr(t), MetricsAddr: freeAddr(t), HealthAddr: freeAddr(t), CertFile: filepath.Join(dir, "c"), KeyFile: filepath.Join(dir, "k")}
	err := Run(t.Context(), config, admitFunc(allow), always, prometheus.NewRegistry(), zap.NewNop())
	require.ErrorContains(t, err, "--tls-cert-file")

	writePair(t, config.CertFile, config.KeyFile, 1)
	taken, err := net.Listen("tcp", config.Addr)
	require.NoError(t, err)
	defer taken.Close()
	err = Run(t.Context(), config, admitFunc(allow), always, prometheus.NewRegistry(), zap.NewNop())
	require.ErrorContains(t, err, "--addr: ")
	require.ErrorContains(t, err, "address already in use")
}
