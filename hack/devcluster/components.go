// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"fmt"
	"path/filepath"
)

// The components of the control plane, as Options.ExtraArgs and
// Cluster.Process know them.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
)

// ports of one cluster, all on the loopback interface.
type ports struct{ etcd, etcdPeer, apiserver, controllerManager, scheduler int }

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

// component is a program of the control plane and how it is run.
type component struct {
	name  string
	args  []string
	ready string // URL that answers 200 once it serves
}

func (c *Cluster) etcd(p ports) component {
	client, peer := "http://"+loopback(p.etcd), "http://"+loopback(p.etcdPeer)
	return component{Etcd, []string{
		"--name=devcluster",
		"--data-dir=" + filepath.Join(c.dir, "etcd"),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=devcluster=" + peer,
		// The state is thrown away, so it need not survive a power cut.
		"--unsafe-no-fsync",
	}, client + "/readyz"}
}

func (c *Cluster) apiserver(p ports, auditLog bool) component {
	args := []string{
		"--etcd-servers=http://" + loopback(p.etcd),
		"--bind-address=127.0.0.1",
		// Not published anywhere; without it the address of a network
		// interface is asked for, and there may be none.
		"--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", p.apiserver),
		"--tls-cert-file=" + c.pki.path("server.crt"),
		"--tls-private-key-file=" + c.pki.path("server.key"),
		"--client-ca-file=" + c.pki.path("ca.crt"),
		"--requestheader-client-ca-file=" + c.pki.path("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-uid-headers=X-Remote-Uid",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.pki.path("front-proxy.crt"),
		"--proxy-client-key-file=" + c.pki.path("front-proxy.key"),
		"--enable-aggregator-routing=false",
		"--authorization-mode=Node,RBAC",
		"--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.pki.path("sa.pub"),
		"--service-account-signing-key-file=" + c.pki.path("sa.key"),
		"--service-cluster-ip-range=10.96.0.0/16",
		// Without it the server waits a minute for its watchers to leave.
		"--shutdown-watch-termination-grace-period=1s",
		// An Endpoints object must not hold a loopback address.
		"--endpoint-reconciler-type=none",
	}
	if auditLog {
		args = append(args,
			"--audit-policy-file="+c.path("audit-policy.yaml"),
			"--audit-log-path="+c.AuditLog())
	}
	return component{APIServer, args, "https://" + loopback(p.apiserver) + "/readyz"}
}

func (c *Cluster) controllerManager(p ports) component {
	return component{ControllerManager, append(c.clientArgs(ControllerManager, p.controllerManager),
		"--use-service-account-credentials=true",
		"--service-account-private-key-file="+c.pki.path("sa.key"),
		"--root-ca-file="+c.pki.path("ca.crt"),
	), "https://" + loopback(p.controllerManager) + "/healthz"}
}

func (c *Cluster) scheduler(p ports) component {
	return component{Scheduler, c.clientArgs(Scheduler, p.scheduler), "https://" + loopback(p.scheduler) + "/readyz"}
}

// clientArgs are the arguments of a component that lives by the API.
func (c *Cluster) clientArgs(name string, port int) []string {
	kubeconfig := c.path("kubeconfigs", name)
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port),
		"--tls-cert-file=" + c.pki.path("server.crt"),
		"--tls-private-key-file=" + c.pki.path("server.key"),
		"--leader-elect=false", // there is but one
		// At the default rate the controllers take five seconds to start.
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
	}
}
