// SPDX-License-Identifier: Apache-2.0

package vmiwebhook

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cozystack.io/gpu/hack/e2e/suite"
)

func TestWebhookDownStopsOnlyVMIsThatAskForGPUs(t *testing.T) {
	classes(t)
	namespace := env.Namespace(t, entitled)
	process := webhook.Replicas[0].Process
	require.NoError(t, process.Kill())
	t.Cleanup(func() {
		if !process.Running() {
			require.NoError(t, env.Cluster.Restart(context.WithoutCancel(t.Context()), process))
		}
	})

	_, err := create(t, vmi(t, namespace, oneVGPU, deviceless))
	status := suite.Status(t, err)
	assert.EqualValues(t, http.StatusInternalServerError, status.Code)
	assert.Contains(t, status.Message, `failed calling webhook "vmi-webhook.gpu.cozystack.io"`)

	other := vmi(t, namespace, oneVGPU, deviceless)
	other.SetLabels(nil)
	_, err = create(t, other)
	require.NoError(t, err)

	require.NoError(t, env.Cluster.Restart(t.Context(), process))
	_, err = create(t, vmi(t, namespace, oneVGPU, deviceless))
	require.NoError(t, err)
}

// callAt points the webhook configuration at another URL until the test ends.
func callAt(t *testing.T, url string) {
	t.Helper()
	client := env.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations()
	const name = "vmi-webhook.gpu.cozystack.io"
	set := func(ctx context.Context, url string) (before string) {
		configuration, err := client.Get(ctx, name, metav1.GetOptions{})
		require.NoError(t, err)
		before = *configuration.Webhooks[0].ClientConfig.URL
		configuration.Webhooks[0].ClientConfig.URL = &url
		_, err = client.Update(ctx, configuration, metav1.UpdateOptions{})
		require.NoError(t, err)
		return before
	}
	before := set(t.Context(), url)
	t.Cleanup(func() {
		set(context.WithoutCancel(t.Context()), before)
		assert.Eventually(t, func() bool {
			_, err := env.Dynamic.Resource(suite.VMIs).Namespace("default").Create(context.WithoutCancel(t.Context()), vmi(t, "default", `[]`, deviceless), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err == nil
		}, pollTimeout, pollInterval)
	})
}

func TestAPIServerOutOfReachIsAnErrorThatNamesTheReads(t *testing.T) {
	namespace := env.Namespace(t, entitled)
	for name, tc := range map[string]struct {
		server func(t *testing.T) string
		want   string
	}{
		"nobody listens": {
			func(*testing.T) string { return "https://127.0.0.1:1" },
			"connection refused",
		},
		"nobody answers": {
			func(t *testing.T) string {
				listener, err := net.Listen("tcp", "127.0.0.1:0")
				require.NoError(t, err)
				t.Cleanup(func() { listener.Close() })
				return "https://" + listener.Addr().String()
			},
			"deadline exceeded",
		},
	} {
		t.Run(name, func(t *testing.T) {
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			require.NoError(t, os.WriteFile(kubeconfig, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
clusters: [{name: x, cluster: {server: %q, insecure-skip-tls-verify: true}}]
contexts: [{name: x, context: {cluster: x}}]
current-context: x
`, tc.server(t)), 0o600))
			second := startWebhook(t, kubeconfig)
			callAt(t, "https://"+second.addr+"/mutate")
			assert.EventuallyWithT(t, func(c *assert.CollectT) {
				_, err := create(t, vmi(t, namespace, oneVGPU, deviceless))
				status := suite.Status(t, err)
				assert.EqualValues(c, http.StatusInternalServerError, status.Code)
				for _, read := range []string{"read gpuclasses", "read kubevirts", "read namespace"} {
					assert.Contains(c, status.Message, read)
				}
				assert.Contains(c, status.Message, tc.want)
			}, 2*pollTimeout, pollInterval)
		})
	}
}

// standalone is a webhook process that the test started itself.
type standalone struct {
	addr, health string
	cmd          *exec.Cmd
	log          *bytes.Buffer
}

// startWebhook runs the service's binary with the kubeconfig.
func startWebhook(t *testing.T, kubeconfig string) *standalone {
	t.Helper()
	free := func() string {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer listener.Close()
		return listener.Addr().String()
	}
	s := &standalone{addr: free(), health: free(), log: &bytes.Buffer{}}
	certs := env.Cluster.ServiceCerts(service)
	s.cmd = exec.Command(webhook.Replicas[0].Path,
		"--kubeconfig="+kubeconfig, "--addr="+s.addr, "--health-addr="+s.health, "--metrics-addr="+free(),
		"--tls-cert-file="+filepath.Join(certs, "tls.crt"), "--tls-private-key-file="+filepath.Join(certs, "tls.key"),
		"--shutdown-delay=0s")
	s.cmd.Stderr = s.log
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() { _ = s.cmd.Process.Kill(); _ = s.cmd.Wait() })
	require.Eventually(t, func() bool {
		response, err := http.Get("http://" + s.health + "/readyz")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	}, pollTimeout, 20*time.Millisecond)
	return s
}

func TestEndsCleanlyWhenTerminated(t *testing.T) {
	s := startWebhook(t, env.Cluster.Kubeconfig())
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, s.cmd.Wait(), "exit code 0; log:\n%s", s.log)
	for line := range strings.Lines(s.log.String()) {
		assert.True(t, json.Valid([]byte(line)), "logs are JSON, also client-go's: %s", line)
	}
}

func TestWrongFlagIsOneClearLine(t *testing.T) {
	out, err := exec.Command(webhook.Replicas[0].Path, "--log-level=loud").CombinedOutput()
	require.Error(t, err)
	assert.Equal(t, 1, strings.Count(string(out), "\n"), "%s", out)
	assert.Contains(t, string(out), `invalid value "loud" for flag -log-level`)
}

func TestRenewedCertificateIsPickedUpWhileServing(t *testing.T) {
	classes(t)
	namespace := env.Namespace(t, entitled)
	serial := func() string {
		conn, err := tls.Dial("tcp", webhook.Replicas[0].Addr, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return ""
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := serial()
	require.NotEmpty(t, before)
	require.NoError(t, env.Cluster.IssueServingCert(env.Cluster.ServiceCerts(service)))
	assert.Eventually(t, func() bool {
		_, err := create(t, vmi(t, namespace, oneVGPU, deviceless), metav1.DryRunAll)
		require.NoError(t, err, "no creation fails meanwhile")
		return serial() != before
	}, pollTimeout, pollInterval)
}

func TestDecisionsAreLoggedAndCounted(t *testing.T) {
	classes(t)
	namespace := env.Namespace(t, entitled)
	_, err := create(t, vmi(t, namespace, `[{"className":"no-such-class","count":1}]`, deviceless))
	require.Error(t, err)

	log, err := os.Open(webhook.Replicas[0].Log)
	require.NoError(t, err)
	defer log.Close()
	var decision map[string]any
	for scanner := bufio.NewScanner(log); scanner.Scan(); {
		line := map[string]any{}
		require.NoError(t, json.Unmarshal(scanner.Bytes(), &line), "%s", scanner.Text())
		if line["namespace"] == namespace {
			decision = line
		}
	}
	require.NotNil(t, decision)
	assert.Equal(t, "refused", decision["outcome"])
	assert.Equal(t, "ClassNotFound", decision["reason"])
	for _, field := range []string{"uid", "name", "duration"} {
		assert.Contains(t, decision, field)
	}

	response, err := http.Get("http://" + webhook.Replicas[0].MetricsAddr + "/metrics")
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	for _, metric := range []string{
		`gpu_vmi_webhook_refusal_causes_total{cause="ClassNotFound"}`,
		`gpu_vmi_webhook_review_duration_seconds_count{outcome="refused"}`,
		`gpu_vmi_webhook_read_duration_seconds_count{read="gpuclasses",result="success"}`,
		"gpu_vmi_webhook_certificate_expiry_timestamp_seconds",
	} {
		assert.Contains(t, string(body), metric)
	}
}
