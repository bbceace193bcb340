// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority signs certificates. Its own certificate and key are name.crt and
// name.key in dir.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// pki is what the components of one cluster prove their identity with.
type pki struct {
	dir string
	ca  authority
}

// newPKI writes certificates and keys to dir:
//
//	ca              signs everything but the front proxy's certificate
//	server          serves kube-apiserver, kube-controller-manager, kube-scheduler
//	front-proxy-ca  trusted to assert other users' names, so a CA of its own
//	front-proxy     with which kube-apiserver calls aggregated API servers
//	sa              signs the tokens of ServiceAccounts
func newPKI(dir string) (pki, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return pki{}, err
	}
	p := pki{dir: dir}
	var err error
	if p.ca, err = newAuthority(dir, "ca"); err != nil {
		return pki{}, err
	}
	frontProxy, err := newAuthority(dir, "front-proxy-ca")
	if err != nil {
		return pki{}, err
	}
	cert, key, err := frontProxy.issue(clientCert("front-proxy-client"))
	if err := errors.Join(err, p.write("front-proxy", cert, key)); err != nil {
		return pki{}, err
	}
	cert, key, err = p.ca.issue(servingCert("kube-apiserver",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"))
	if err := errors.Join(err, p.write("server", cert, key)); err != nil {
		return pki{}, err
	}
	return p, p.writeServiceAccountKey()
}

// loadPKI reads what newPKI wrote.
func loadPKI(dir string) (pki, error) {
	ca, err := loadAuthority(dir, "ca")
	return pki{dir: dir, ca: ca}, err
}

func (p pki) path(file string) string { return filepath.Join(p.dir, file) }

func (p pki) write(name string, cert, key []byte) error {
	return errors.Join(writeFile(p.path(name+".crt"), cert, 0o644), writeFile(p.path(name+".key"), key, 0o600))
}

func (p pki) writeServiceAccountKey() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	private, err := encodeKey(key)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	return errors.Join(
		writeFile(p.path("sa.key"), private, 0o600),
		writeFile(p.path("sa.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644))
}

// clientCert describes a client: to Kubernetes the user and its groups.
func clientCert(user string, groups ...string) *x509.Certificate {
	return &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

// servingCert describes a server on the loopback interface that is also called
// by the given DNS names.
func servingCert(name string, dnsNames ...string) *x509.Certificate {
	return &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    append([]string{"localhost"}, dnsNames...),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
}

func newAuthority(dir, name string) (authority, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "devcluster " + name},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, err
	}
	cert, encodedKey, err := sign(template, template, key, key)
	if err != nil {
		return authority{}, fmt.Errorf("create %s: %w", name, err)
	}
	if err := (pki{dir: dir}).write(name, cert, encodedKey); err != nil {
		return authority{}, err
	}
	return loadAuthority(dir, name)
}

func loadAuthority(dir, name string) (authority, error) {
	cert, err := decodeFile(filepath.Join(dir, name+".crt"), x509.ParseCertificate)
	if err != nil {
		return authority{}, err
	}
	key, err := decodeFile(filepath.Join(dir, name+".key"), x509.ParseECPrivateKey)
	return authority{cert: cert, key: key}, err
}

// issue returns a new certificate and its new key, PEM-encoded.
func (a authority) issue(template *x509.Certificate) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	cert, key, err = sign(template, a.cert, private, a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign a certificate for %s: %w", template.Subject.CommonName, err)
	}
	return cert, key, nil
}

func sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey, signer crypto.Signer) (cert, encodedKey []byte, err error) {
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = template.NotBefore.AddDate(1, 0, 0)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, err
	}
	encodedKey, err = encodeKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), encodedKey, err
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), err
}

func decodeFile[T any](path string, parse func(der []byte) (T, error)) (result T, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return result, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return result, fmt.Errorf("%s is not PEM-encoded", path)
	}
	if result, err = parse(block.Bytes); err != nil {
		return result, fmt.Errorf("read %s: %w", path, err)
	}
	return result, nil
}
