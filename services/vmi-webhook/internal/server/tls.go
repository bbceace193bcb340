// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

var certificateExpiry = prometheus.NewGauge(prometheus.GaugeOpts{
	Namespace: "gpu",
	Subsystem: "vmi_webhook",
	Name:      "certificate_expiry_timestamp_seconds",
	Help:      "End of the serving certificate's validity, in seconds since the epoch.",
})

// certificateCheckInterval bounds how often handshakes look at the files, and
// so how long a renewed certificate waits for its first use.
const certificateCheckInterval = time.Second

// certificate serves a key pair from files and follows their renewal. A pair
// that cannot be read, such as one half written, leaves the last good one in
// use.
type certificate struct {
	certFile, keyFile string
	log               *zap.Logger

	mu      sync.Mutex
	pair    *tls.Certificate
	loaded  [2]time.Time // modification times of the files that pair came from
	checked time.Time
}

// newCertificate reads the files once, and fails if they hold no key pair.
func newCertificate(certFile, keyFile string, log *zap.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	if err := c.load(); err != nil {
		return nil, err
	}
	return c, nil
}

// get is a tls.Config's GetCertificate.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.checked) >= certificateCheckInterval {
		if err := c.load(); err != nil {
			c.log.Error("serving certificate not renewed, the last one stays in use", zap.Error(err))
		}
	}
	return c.pair, nil
}

// load reads the files if they changed since pair was read from them.
func (c *certificate) load() error {
	c.checked = time.Now()
	var modified [2]time.Time
	for i, file := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(file)
		if err != nil {
			return fmt.Errorf("read the serving certificate of --tls-cert-file and --tls-private-key-file: %w", err)
		}
		modified[i] = info.ModTime()
	}
	if modified == c.loaded {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("read the serving certificate of --tls-cert-file %s and --tls-private-key-file %s: %w", c.certFile, c.keyFile, err)
	}
	c.pair, c.loaded = &pair, modified
	certificateExpiry.Set(float64(pair.Leaf.NotAfter.Unix()))
	c.log.Info("serving certificate read", zap.Time("notAfter", pair.Leaf.NotAfter))
	return nil
}
