// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// balancer hands each new connection to the next replica that is ready, as
// kube-proxy does for a Service. Connections are passed on as they are: TLS
// ends in the replica. It lives as long as this program.
type balancer struct {
	client   *http.Client
	replicas []*Replica
	ready    []atomic.Bool
	next     atomic.Uint32
}

// balance starts a balancer and returns its URL.
func balance(client *http.Client, replicas []*Replica) (string, error) {
	free, err := freePorts(1)
	if err != nil {
		return "", err
	}
	listener, err := net.Listen("tcp", loopback(free[0]))
	if err != nil {
		return "", fmt.Errorf("listen for the replicas: %w", err)
	}
	b := &balancer{client: client, replicas: replicas, ready: make([]atomic.Bool, len(replicas))}
	for i := range replicas {
		go b.probe(i)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go b.serve(conn)
		}
	}()
	return "https://" + listener.Addr().String(), nil
}

// probe keeps track of whether a replica is ready.
func (b *balancer) probe(i int) {
	client := *b.client
	client.Timeout = time.Second
	for ; ; time.Sleep(50 * time.Millisecond) {
		response, err := client.Get("http://" + b.replicas[i].HealthAddr + "/readyz")
		if err == nil {
			response.Body.Close()
		}
		b.ready[i].Store(err == nil && response.StatusCode == http.StatusOK)
	}
}

func (b *balancer) serve(client net.Conn) {
	defer client.Close()
	first := int(b.next.Add(1))
	for k := range b.replicas {
		i := (first + k) % len(b.replicas)
		if !b.ready[i].Load() {
			continue
		}
		replica, err := net.DialTimeout("tcp", b.replicas[i].Addr, time.Second)
		if err != nil {
			continue
		}
		defer replica.Close()
		go pipe(replica, client)
		pipe(client, replica)
		return
	}
}

// pipe copies until one side ends and passes the end on, so that an answer
// still in flight in the other direction arrives.
func pipe(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}
