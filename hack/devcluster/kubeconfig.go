// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// tokenLifetime outlasts any development cluster, and the certificates.
const tokenLifetime = 365 * 24 * time.Hour

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// Config returns a new client configuration of the administrator, without the
// client-side rate limit.
func (c *Cluster) Config() *rest.Config {
	config := rest.CopyConfig(c.admin)
	config.QPS = -1
	return config
}

// KubeconfigFor writes a kubeconfig with a token of the ServiceAccount, and
// returns its path.
func (c *Cluster) KubeconfigFor(ctx context.Context, namespace, serviceAccount string) (string, error) {
	client, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return "", err
	}
	seconds := int64(tokenLifetime / time.Second)
	request, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, serviceAccount,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}},
		metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("request a token of ServiceAccount %s/%s: %w", namespace, serviceAccount, err)
	}
	path := filepath.Join(c.dir, "kubeconfigs", namespace+"."+serviceAccount)
	return path, writeKubeconfig(path, c.admin.Host, c.CABundle(), &clientcmdapi.AuthInfo{Token: request.Status.Token})
}

// CABundle returns the certificate of the cluster's CA, PEM-encoded. It signed
// the API server's certificate and those of IssueServingCert.
func (c *Cluster) CABundle() []byte { return c.admin.CAData }

// IssueServingCert writes tls.crt and tls.key for a server on the loopback
// interface to dir, valid also for the given DNS names. Called again for the
// same directory, it renews them.
func (c *Cluster) IssueServingCert(dir string, dnsNames ...string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	cert, key, err := c.pki.ca.issue(servingCert(filepath.Base(dir), dnsNames...))
	return errors.Join(err, pki{dir: dir}.write("tls", cert, key))
}

// writeClientKubeconfig writes a kubeconfig with a client certificate.
func (p pki) writeClientKubeconfig(path, server, user string, groups ...string) error {
	ca, err := os.ReadFile(p.path("ca.crt"))
	if err != nil {
		return err
	}
	cert, key, err := p.ca.issue(clientCert(user, groups...))
	if err != nil {
		return err
	}
	return writeKubeconfig(path, server, ca, &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
}

func writeKubeconfig(path, server string, ca []byte, user *clientcmdapi.AuthInfo) error {
	const name = "devcluster"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[name] = user
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	data, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return writeFile(path, data, 0o600)
}
