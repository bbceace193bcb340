// SPDX-License-Identifier: Apache-2.0

package shipping

import (
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"cozystack.io/gpu/hack/devcluster"
	"cozystack.io/gpu/hack/e2e/suite"
)

// The README's commands make certificates, and its patch names the CA, by which
// the API server trusts each webhook under the name of its Service.
func TestREADMEsCertificatesAreTrusted(t *testing.T) {
	const section = "### Without cert-manager"
	dir := t.TempDir()
	recipe := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", block(t, readme(t), section, "sh"))
	recipe.Dir = dir
	recipe.Env = append(os.Environ(), "KUBECONFIG="+env.Cluster.Kubeconfig(),
		"PATH="+filepath.Join(env.Cluster.Dir(), "bin")+string(filepath.ListSeparator)+os.Getenv("PATH"))
	out, err := recipe.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Cleanup(func() { kubectl(t, "-n", namespace, "delete", "secrets", "--field-selector=type=kubernetes.io/tls") })
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	require.NoError(t, err)
	patch := regexp.MustCompile(`value: LS0t\S+`).ReplaceAllString(block(t, readme(t), section, "yaml"),
		"value: "+base64.StdEncoding.EncodeToString(ca))

	env.Create(t, suite.GPUClasses, class(t))
	tooMany := suite.Object(t, vmInstance, "gpus: [{className: l40s, count: 2}]")
	tooMany.SetNamespace(tenantOfOneUnit(t))
	for service, tc := range map[string]struct {
		resource schema.GroupVersionResource
		object   *unstructured.Unstructured
		judged   func(answer *unstructured.Unstructured, err error) (bool, error)
	}{
		"vmi-webhook":    {suite.VMIs, suite.Object(t, vmi, labelled), has("spec", "domain", "devices", "gpus")},
		"pod-webhook":    {pods, suite.Object(t, pod, labelled), has("spec", "tolerations")},
		"budget-checker": {vmInstances, tooMany, isRefused},
	} {
		t.Run(service, func(t *testing.T) {
			s, err := env.Cluster.InstallService(t.Context(), env.Root, service, devcluster.ServiceOptions{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Stop()) })
			useSecret(t, service)
			kubectl(t, "delete", "mutatingwebhookconfigurations,validatingwebhookconfigurations", "-l", "app.kubernetes.io/name="+service)
			var last error
			judged := func(want bool) {
				assert.Eventually(t, func() bool {
					var now bool
					now, last = tc.judged(tryCreate(t, tc.resource, tc.object))
					return last == nil && now == want
				}, timeout, interval)
				assert.NoError(t, last)
			}
			judged(false) // no longer by the configuration that trusts the cluster's own CA
			install(t, withRoute(t, overlay(t, service, "own-certificates"), patch, s.Replicas[0].Addr))
			judged(true)
		})
	}
}

// useSecret has the service's process serve with the certificate in its Secret, as
// kubelet would mount it.
func useSecret(t testing.TB, service string) {
	t.Helper()
	secret, err := env.Kube.CoreV1().Secrets(namespace).Get(t.Context(), service+"-tls", metav1.GetOptions{})
	require.NoError(t, err)
	for _, file := range []string{"tls.crt", "tls.key"} {
		require.NotEmpty(t, secret.Data[file])
		require.NoError(t, os.WriteFile(filepath.Join(env.Cluster.ServiceCerts(service), file), secret.Data[file], 0o600))
	}
}

// withRoute adds the patches to an overlay, and what takes the place of a pod
// network: the API server finds the Service, under its own name, at the address.
func withRoute(t testing.TB, dir, patches, addr string) string {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	route := fmt.Sprintf(`
- target: {kind: Service}
  patch: |
    - {op: add, path: /spec/type, value: ExternalName}
    - {op: add, path: /spec/externalName, value: %s}
- target: {kind: .*WebhookConfiguration}
  patch: |
    - {op: add, path: /webhooks/0/clientConfig/service/port, value: %s}
`, host, port)
	appendTo(t, dir, strings.TrimRight(patches, "\n")+route)
	return dir
}
