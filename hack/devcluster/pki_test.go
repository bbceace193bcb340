// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
)

func TestCertificatesVerify(t *testing.T) {
	p, err := newPKI(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) *x509.Certificate {
		pair, err := tls.LoadX509KeyPair(p.path(name+".crt"), p.path(name+".key"))
		if err != nil {
			t.Fatal(err)
		}
		return pair.Leaf
	}
	verify := func(name, ca, dnsName string, usage x509.ExtKeyUsage) error {
		roots := x509.NewCertPool()
		roots.AddCert(read(ca))
		_, err := read(name).Verify(x509.VerifyOptions{DNSName: dnsName, Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}})
		return err
	}
	for _, name := range []string{"127.0.0.1", "localhost", "kubernetes.default.svc"} {
		if err := verify("server", "ca", name, x509.ExtKeyUsageServerAuth); err != nil {
			t.Errorf("server as %s: %v", name, err)
		}
	}
	if err := verify("front-proxy", "front-proxy-ca", "", x509.ExtKeyUsageClientAuth); err != nil {
		t.Errorf("front proxy: %v", err)
	}
	if verify("front-proxy", "ca", "", x509.ExtKeyUsageClientAuth) == nil {
		t.Error("the front proxy is a client of the cluster's CA")
	}
	if verify("server", "ca", "", x509.ExtKeyUsageClientAuth) == nil {
		t.Error("the server's certificate makes a client")
	}
	if verify("server", "ca", "example.org", x509.ExtKeyUsageServerAuth) == nil {
		t.Error("the server's certificate is valid for any name")
	}
	for _, key := range []string{"ca.key", "server.key", "sa.key"} {
		info, err := os.Stat(p.path(key))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", key, info.Mode())
		}
	}
}

func TestServingCertificateIsRenewedInPlace(t *testing.T) {
	p, err := newPKI(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(p.path("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{pki: p, admin: &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: ca}}}
	dir := t.TempDir()
	var serials []string
	for range 2 {
		if err := c.IssueServingCert(dir, "webhook.example.svc"); err != nil {
			t.Fatal(err)
		}
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(c.CABundle())
		for _, name := range []string{"127.0.0.1", "localhost", "webhook.example.svc"} {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots}); err != nil {
				t.Errorf("as %s: %v", name, err)
			}
		}
		serials = append(serials, pair.Leaf.SerialNumber.String())
	}
	if serials[0] == serials[1] {
		t.Error("the certificate was not renewed")
	}
}
