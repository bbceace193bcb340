// SPDX-License-Identifier: Apache-2.0

package licensecopier

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cozystack.io/gpu/hack/devcluster"
	"cozystack.io/gpu/pkg/gpu"
)

func withoutCancel(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }

// restart ends the service in good order and starts it again.
func restart(t *testing.T) {
	t.Helper()
	require.NoError(t, env.Cluster.Restart(withoutCancel(t), service.Replicas[0].Process))
	leads(t, service.Replicas[0].MetricsAddr)
}

// leads waits until the replica works: it reports what it counts.
func leads(t *testing.T, addr string) {
	t.Helper()
	require.Eventually(t, func() bool {
		response, err := http.Get("http://" + addr + "/metrics")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		return err == nil && strings.Contains(string(body), "gpu_license_copier_copies_wanted")
	}, pollTimeout, pollInterval, "the replica does not lead")
}

// spawn starts a process of the service by the kubeconfig until the test ends.
func spawn(t *testing.T, name, kubeconfig string, args ...string) (process *devcluster.Process, metricsAddr string) {
	t.Helper()
	free := func() string {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer listener.Close()
		return listener.Addr().String()
	}
	metricsAddr = free()
	health := free()
	process, err := env.Cluster.Spawn(devcluster.Command{
		Name: name, Path: service.Replicas[0].Path, Ready: "http://" + health + "/readyz",
		Args: append([]string{"--kubeconfig=" + kubeconfig, "--metrics-addr=" + metricsAddr, "--health-addr=" + health}, args...),
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = process.Stop(time.Minute) })
	require.NoError(t, env.Cluster.WaitReady(t.Context(), process))
	return process, metricsAddr
}

func kubeconfig(t *testing.T) string {
	t.Helper()
	path, err := env.Cluster.KubeconfigFor(t.Context(), "cozy-gpu", "license-copier")
	require.NoError(t, err)
	return path
}

func TestARestartInTheMiddleOfAFanOutWritesNothingTwice(t *testing.T) {
	const count = 60
	var namespaces []string
	for range count {
		namespaces = append(namespaces, env.Namespace(t, entitled))
	}
	source(t, "fan-out", token)
	log := audit(t)
	process := service.Replicas[0].Process
	class(t, "fan-out", "fan-out")
	// A request whose client was killed is logged with 500 or 504, whether the
	// API server went on and stored it or not.
	created := func() (granted, unknown int) {
		for _, write := range log.Writes(t) {
			switch {
			case write.Verb != "create" || write.Resource != "secrets":
			case write.Code == http.StatusInternalServerError, write.Code == http.StatusGatewayTimeout:
				unknown++
			default:
				assert.Less(t, write.Code, 300, "%+v", write)
				granted++
			}
		}
		return granted, unknown
	}
	require.Eventually(t, func() bool { granted, _ := created(); return granted > 0 }, pollTimeout, time.Millisecond)
	require.NoError(t, process.Kill()) // no time to finish anything
	partly, _ := created()
	require.NoError(t, env.Cluster.Restart(withoutCancel(t), process))
	for _, namespace := range namespaces {
		copied(t, namespace, "fan-out", token)
	}
	t.Logf("killed after %d of %d creations", partly, count)
	log.Settled(t)
	granted, unknown := created()
	assert.LessOrEqual(t, granted, count, "nothing is created twice")
	assert.GreaterOrEqual(t, granted+unknown, count)
	assert.LessOrEqual(t, unknown, 8, "as many as --workers")

	log = audit(t)
	restart(t)
	assert.Empty(t, log.Settled(t), "a restart costs no writes")
}

func TestTheStandbyTakesOverFromAKilledLeader(t *testing.T) {
	source(t, "failover", token)
	class(t, "failover", "failover")
	copied(t, env.Namespace(t, entitled), "failover", token)
	_, standby := spawn(t, "license-copier-standby", kubeconfig(t))
	log := audit(t)
	leader := service.Replicas[0].Process
	require.NoError(t, leader.Kill())
	t.Cleanup(func() { require.NoError(t, env.Cluster.Restart(withoutCancel(t), leader)) })
	killed := time.Now()
	namespace := env.Namespace(t, entitled)
	copied(t, namespace, "failover", token)
	t.Logf("taken over after %s", time.Since(killed).Round(time.Second/10))
	leads(t, standby)
	assert.Equal(t, "create", verbs(t, log, namespace))
	for _, write := range log.Writes(t) {
		assert.Equal(t, namespace, write.Namespace, "nothing else is written: %+v", write)
	}
}

func TestEndingReleasesTheLease(t *testing.T) {
	leases := env.Kube.CoordinationV1().Leases("cozy-gpu")
	process := service.Replicas[0].Process
	require.NoError(t, process.Stop(time.Minute))
	lease, err := leases.Get(t.Context(), "license-copier", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Empty(t, *lease.Spec.HolderIdentity)
	require.NoError(t, process.Start())
	require.NoError(t, env.Cluster.WaitReady(t.Context(), process))
	source(t, "released", token)
	class(t, "released", "released")
	copied(t, env.Namespace(t, entitled), "released", token)
	assert.NotContains(t, logOf(t, process), "panic")
}

func logOf(t *testing.T, process *devcluster.Process) string {
	t.Helper()
	raw, err := os.ReadFile(process.Log)
	require.NoError(t, err)
	return string(raw)
}

func TestTheServiceSurvivesARestartOfTheAPIServer(t *testing.T) {
	source(t, "survives", token)
	class(t, "survives", "survives")
	before := env.Namespace(t, entitled)
	version := copied(t, before, "survives", token).ResourceVersion
	process := service.Replicas[0].Process
	pid, start := process.Pid(), time.Now()
	require.NoError(t, env.Cluster.Restart(withoutCancel(t), env.Cluster.Process(devcluster.APIServer)))
	away := time.Since(start)
	after := env.Namespace(t, entitled)
	require.Eventually(t, func() bool {
		if !process.Running() {
			// The outage was longer than a lease lasts. A kubelet would start it again.
			assert.NoError(t, process.Start())
		}
		return secret(t, after, "survives") != nil
	}, pollTimeout, pollInterval)
	copied(t, after, "survives", token)
	assert.Equal(t, version, secret(t, before, "survives").ResourceVersion)
	assert.True(t, process.Running())
	if away < leaseRenewal/2 {
		assert.Equal(t, pid, process.Pid())
	}
}

// leaseRenewal is how long the leader tries to renew its lease.
const leaseRenewal = 10 * time.Second

// breaker is a proxy to the API server that can be cut.
type breaker struct {
	listener net.Listener
	target   string
	mu       sync.Mutex
	conns    []net.Conn
	open     bool
}

func newBreaker(t *testing.T, target string) *breaker {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &breaker{listener: listener, target: target, open: true}
	t.Cleanup(func() { listener.Close(); b.cut() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				client.Close()
				continue
			}
			b.mu.Lock()
			b.conns = append(b.conns, client, server)
			open := b.open
			b.mu.Unlock()
			if !open {
				client.Close()
				server.Close()
				continue
			}
			go func() { _, _ = io.Copy(server, client); server.Close() }()
			go func() { _, _ = io.Copy(client, server); client.Close() }()
		}
	}()
	return b
}

func (b *breaker) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open = false
	for _, conn := range b.conns {
		conn.Close()
	}
	b.conns = nil
}

func (b *breaker) mend() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open = true
}

func TestNothingIsMissedWhileAWatchIsDown(t *testing.T) {
	server, err := url.Parse(env.Cluster.Config().Host)
	require.NoError(t, err)
	b := newBreaker(t, server.Host)
	raw, err := os.ReadFile(kubeconfig(t))
	require.NoError(t, err)
	proxied := t.TempDir() + "/kubeconfig"
	require.NoError(t, os.WriteFile(proxied, []byte(strings.ReplaceAll(string(raw), server.Host, b.listener.Addr().String())), 0o600))

	own := service.Replicas[0].Process
	require.NoError(t, own.Stop(time.Minute))
	t.Cleanup(func() { require.NoError(t, env.Cluster.Restart(withoutCancel(t), own)) })
	process, _ := spawn(t, "license-copier-proxied", proxied, "--leader-elect=false", "--log-level=debug")

	source(t, "dropped", token)
	class(t, "dropped", "dropped")
	edited, removed, unlabelled, stolen := env.Namespace(t, entitled), env.Namespace(t, entitled), env.Namespace(t, entitled), env.Namespace(t, entitled)
	for _, namespace := range []string{edited, removed, unlabelled, stolen} {
		copied(t, namespace, "dropped", token)
	}
	log := audit(t)
	b.cut()
	name := gpu.LicenseSecretName("dropped")
	patchSecret(t, edited, name, `{"stringData":{"client_configuration_token.tok":"edited-fake-token"}}`)
	deleteSecret(t, removed, name)
	label(t, unlabelled, "null")
	taken := patchSecret(t, stolen, name, `{"metadata":{"labels":{"cozystack.io/gpu-class":null}}}`)
	late := env.Namespace(t, entitled)
	b.mend()

	copied(t, edited, "dropped", token)
	copied(t, removed, "dropped", token)
	copied(t, late, "dropped", token)
	gone(t, unlabelled, "dropped")
	assert.Contains(t, reason(t, "dropped", "CopiesBlocked").Message, stolen)
	for namespace, want := range map[string]string{edited: "patch", removed: "create", late: "create", unlabelled: "delete", stolen: ""} {
		assert.Equal(t, want, verbs(t, log, namespace))
	}
	assert.Equal(t, taken.ResourceVersion, secret(t, stolen, "dropped").ResourceVersion)
	for _, content := range []string{token, "edited-fake-token"} {
		assert.NotContains(t, logOf(t, process), content, "at the level that says most")
		assert.NotContains(t, logOf(t, process), base64.StdEncoding.EncodeToString([]byte(content)))
	}
}

func TestTwoReplicasWriteOnce(t *testing.T) {
	second, _ := spawn(t, "license-copier-second", kubeconfig(t))
	source(t, "twice", token)
	log := audit(t)
	class(t, "twice", "twice")
	namespace := env.Namespace(t, entitled)
	copied(t, namespace, "twice", token)
	var writes []string // of the copy: that of a class that has just gone may come and go
	for _, write := range log.Settled(t) {
		if write.Namespace == namespace && write.Name == gpu.LicenseSecretName("twice") {
			writes = append(writes, write.Verb)
		}
	}
	assert.Equal(t, []string{"create"}, writes)
	assert.NotContains(t, logOf(t, second), fmt.Sprintf("%q:%q", "msg", "leading"))
}
