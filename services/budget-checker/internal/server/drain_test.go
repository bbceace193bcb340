// SPDX-License-Identifier: Apache-2.0

package server

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// keepingClient keeps its connection, and uses HTTP/2 if it is told to.
func keepingClient(t *testing.T, http2 bool) *http.Client {
	client := insecureClient()
	transport := client.Transport.(*http.Transport)
	transport.DisableKeepAlives = false
	transport.ForceAttemptHTTP2 = http2
	t.Cleanup(transport.CloseIdleConnections)
	return client
}

func review(t *testing.T, client *http.Client, config Config) *http.Response {
	t.Helper()
	response, err := client.Post("https://"+config.Addr+Path, "application/json", strings.NewReader(reviewBody))
	require.NoError(t, err)
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode)
	return response
}

func TestKeptConnectionsAreLeftToTheClientToEnd(t *testing.T) {
	config, stop, done := start(t, admitFunc(allow), 0)
	unused, used := keepingClient(t, false), keepingClient(t, false)
	review(t, unused, config)
	require.False(t, review(t, used, config).Close)
	stop()
	require.Eventually(t, func() bool { return status(config.HealthAddr+"/readyz") == http.StatusServiceUnavailable }, 10*time.Second, 10*time.Millisecond)
	assert.True(t, review(t, used, config).Close, "one that is used ends with the answer")
	select {
	case <-done:
		t.Fatal("ended while a connection is open")
	case <-time.After(300 * time.Millisecond):
	}
	unused.CloseIdleConnections()
	assert.NoError(t, <-done)
}

func TestHTTP2ConnectionsAreNotWaitedFor(t *testing.T) {
	config, stop, done := start(t, admitFunc(allow), 0)
	require.Equal(t, 2, review(t, keepingClient(t, true), config).ProtoMajor)
	stop()
	select {
	case err := <-done:
		assert.NoError(t, err)
	case <-time.After(30 * time.Second):
		t.Fatal("waits for a connection that it can end")
	}
}

func TestClientsThatKeepUnusedConnectionsAreNotWaitedForLong(t *testing.T) {
	config, stop, done := startWith(t, admitFunc(allow), Config{DrainTimeout: 500 * time.Millisecond})
	review(t, keepingClient(t, false), config)
	stop()
	assert.NoError(t, <-done)
}
