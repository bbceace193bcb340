// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Over HTTP/1.1, which the API server speaks with Services, a connection that a
// server ends may at that moment carry the next request, which is then lost. Only
// the client can end an unused connection safely. So at the end, used ones are
// ended with their next answer, and unused ones are left to the client for a while.

// closing asks the client to end its connection with each answer that is given
// while the server does not accept new ones.
func closing(accepting *atomic.Bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !accepting.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// connections are those that clients have open over HTTP/1.1. Over HTTP/2 a server
// that ends says which requests it will not answer, and clients send them elsewhere.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]bool
}

// track is the ConnState of an http.Server.
func (c *connections) track(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	secure, ok := conn.(*tls.Conn)
	switch {
	case state == http.StateClosed, state == http.StateHijacked,
		state != http.StateNew && ok && secure.ConnectionState().NegotiatedProtocol == "h2":
		delete(c.open, conn)
	default:
		if c.open == nil {
			c.open = map[net.Conn]bool{}
		}
		c.open[conn] = true
	}
}

// wait returns when none are open, or after the timeout.
func (c *connections) wait(timeout time.Duration) {
	for end := time.Now().Add(timeout); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		c.mu.Lock()
		open := len(c.open)
		c.mu.Unlock()
		if open == 0 {
			return
		}
	}
}
