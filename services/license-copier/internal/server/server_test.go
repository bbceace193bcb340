// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// freeAddr returns a local address that nothing listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	response, err := http.Get("http://" + url)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

func TestReplicaIsReadyUntilItIsToldToEnd(t *testing.T) {
	config := Config{MetricsAddr: freeAddr(t), HealthAddr: freeAddr(t)}
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "gpu_test", Help: "Tests."}))
	ctx, stop := context.WithCancel(t.Context())
	begun, finish, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- Run(ctx, config, registry, zap.NewNop(), func(ctx context.Context) error {
			close(begun)
			<-ctx.Done()
			<-finish
			return nil
		})
	}()
	<-begun
	for path, want := range map[string]string{
		config.HealthAddr + "/healthz":  "ok",
		config.HealthAddr + "/readyz":   "ok",
		config.MetricsAddr + "/metrics": "gpu_test 0",
	} {
		code, body := get(t, path)
		assert.Equal(t, http.StatusOK, code, path)
		assert.Contains(t, body, want, path)
	}
	code, _ := get(t, config.HealthAddr+"/metrics")
	assert.Equal(t, http.StatusNotFound, code, "each port has its own paths")

	stop()
	code, _ = get(t, config.HealthAddr+"/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, code, "work still ends")
	code, _ = get(t, config.HealthAddr+"/healthz")
	assert.Equal(t, http.StatusOK, code)
	close(finish)
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(30 * time.Second):
		require.Fail(t, "the server does not end")
	}
	_, err := net.Dial("tcp", config.HealthAddr)
	assert.Error(t, err, "the ports are free again")
}

func TestRunReturnsWhatWorkReturns(t *testing.T) {
	broken := errors.New("broken")
	config := Config{MetricsAddr: "127.0.0.1:0", HealthAddr: "127.0.0.1:0"}
	err := Run(t.Context(), config, prometheus.NewRegistry(), zap.NewNop(), func(context.Context) error { return broken })
	assert.ErrorIs(t, err, broken)
}

func TestAnAddressThatIsTakenIsAnErrorBeforeWorkBegins(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	same := freeAddr(t)
	for name, config := range map[string]Config{
		"by another process": {MetricsAddr: "127.0.0.1:0", HealthAddr: taken.Addr().String()},
		"by both flags":      {MetricsAddr: same, HealthAddr: same},
	} {
		t.Run(name, func(t *testing.T) {
			err := Run(t.Context(), config, prometheus.NewRegistry(), zap.NewNop(), func(context.Context) error {
				assert.Fail(t, "work has begun")
				return nil
			})
			require.ErrorContains(t, err, "--health-addr: ")
			require.ErrorContains(t, err, "address already in use")
		})
	}
}
