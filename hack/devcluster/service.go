// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// serviceTimeout bounds the installation of a service that is built.
const serviceTimeout = time.Minute

// services names the services of this repository and what sets each apart.
func services() map[string]serviceKind {
	return map[string]serviceKind{
		"budget-checker": {webhook: true},
		"license-copier": {},
		"pod-webhook":    {webhook: true},
		"vmi-webhook":    {webhook: true},
	}
}

type serviceKind struct {
	webhook bool // serves admission reviews, so it has --addr and --tls-…
}

// Services returns the names of the services that InstallService knows.
func Services() []string {
	return slices.Sorted(maps.Keys(services()))
}

// ServiceOptions say how a service is run. The zero value runs it as its
// manifests do, with one replica.
type ServiceOptions struct {
	// Replicas is the number of processes. With more than one, a balancer in
	// this program stands before those that are ready, as a Service would.
	Replicas int
	// Args are added to the container's arguments.
	Args []string
	// Env is added to the environment, as NAME=value.
	Env []string
	// Binary replaces the one that is built from services/<name>.
	Binary string
}

// Service is a service of this repository that runs beside the cluster.
type Service struct {
	Replicas []*Replica
	// URL is where the API server calls a webhook.
	URL string
}

// Replica is one process of a service. Its addresses are the same after each
// start.
type Replica struct {
	*Process
	Addr, MetricsAddr, HealthAddr string // host:port; Addr is a webhook's
}

// InstallService installs deploy/<name> of the repository in root and runs the
// service as processes of this machine, with a token of its own ServiceAccount
// and the arguments of its manifest. It returns when the service is ready and the
// API server calls it.
func (c *Cluster) InstallService(ctx context.Context, root, name string, o ServiceOptions) (*Service, error) {
	s, err := c.installService(ctx, root, name, o)
	if err != nil {
		return nil, fmt.Errorf("install %s: %w", name, err)
	}
	return s, nil
}

func (c *Cluster) installService(ctx context.Context, root, name string, o ServiceOptions) (*Service, error) {
	kind, ok := services()[name]
	if !ok {
		return nil, fmt.Errorf("unknown service, known are %s", strings.Join(Services(), ", "))
	}
	if o.Binary == "" {
		o.Binary = c.path("bin", name)
		if err := BuildService(ctx, root, name, o.Binary); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, serviceTimeout)
	defer cancel()
	s, err := newService(kind, max(1, o.Replicas))
	if err != nil {
		return nil, err
	}
	if kind.webhook && len(s.Replicas) > 1 {
		if s.URL, err = balance(c.client, s.Replicas); err != nil {
			return nil, err
		}
	}
	objects, err := c.Kustomize(ctx, filepath.Join(root, "deploy", name))
	if err != nil {
		return nil, err
	}
	m, err := localManifests(objects, s.URL, c.CABundle())
	if err != nil {
		return nil, err
	}
	if err := Apply(ctx, c.Config(), m.objects); err != nil {
		return nil, err
	}
	if err := c.runReplicas(ctx, name, kind, m, s, o); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	if err := c.applyWebhooks(ctx, m.webhooks); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// newService chooses the replicas' addresses.
func newService(kind serviceKind, replicas int) (*Service, error) {
	free, err := freePorts(3 * replicas)
	if err != nil {
		return nil, err
	}
	s := &Service{}
	for ports := range slices.Chunk(free, 3) {
		r := &Replica{MetricsAddr: loopback(ports[0]), HealthAddr: loopback(ports[1])}
		if kind.webhook {
			r.Addr = loopback(ports[2])
		}
		s.Replicas = append(s.Replicas, r)
	}
	if kind.webhook {
		s.URL = "https://" + s.Replicas[0].Addr
	}
	return s, nil
}

func (c *Cluster) runReplicas(ctx context.Context, name string, kind serviceKind, m manifests, s *Service, o ServiceOptions) error {
	pod := m.service.Spec.Template.Spec
	kubeconfig, err := c.KubeconfigFor(ctx, m.service.Namespace, pod.ServiceAccountName)
	if err != nil {
		return err
	}
	certs := c.path("certs", name)
	if kind.webhook {
		if err := c.IssueServingCert(certs); err != nil {
			return err
		}
	}
	for i, r := range s.Replicas {
		// Of a flag given twice the last one counts.
		args := slices.Concat(pod.Containers[0].Args, []string{
			"--kubeconfig=" + kubeconfig,
			"--metrics-addr=" + r.MetricsAddr,
			"--health-addr=" + r.HealthAddr,
		})
		if kind.webhook {
			args = append(args,
				"--addr="+r.Addr,
				"--tls-cert-file="+filepath.Join(certs, "tls.crt"),
				"--tls-private-key-file="+filepath.Join(certs, "tls.key"),
				// The balancer hears of it in a twentieth of a second.
				"--shutdown-delay=250ms", "--drain-timeout=3s")
		}
		process := name
		if len(s.Replicas) > 1 {
			process = fmt.Sprintf("%s-%d", name, i)
		}
		environment := o.Env
		if kind.webhook && len(s.Replicas) > 1 {
			// The API server calls a Service by HTTP/1.1, so that all of its pods
			// are called, but a loopback address by HTTP/2 if it can: over one
			// connection, which ends in one replica.
			environment = append([]string{"GODEBUG=http2server=0"}, environment...)
		}
		r.Process, err = c.Spawn(Command{
			Name: process, Path: o.Binary, Args: append(args, o.Args...), Env: environment,
			Ready: "http://" + r.HealthAddr + "/readyz",
		})
		if err != nil {
			return err
		}
	}
	for _, r := range s.Replicas {
		if err := c.WaitReady(ctx, r.Process); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends all replicas that were started.
func (s *Service) Stop() error {
	var errs []error
	for _, r := range s.Replicas {
		if r.Process != nil {
			errs = append(errs, r.Stop(stopGrace))
		}
	}
	return errors.Join(errs...)
}

// BuildService builds services/<name> of the repository in root the way its
// image does: as a module of its own.
func BuildService(ctx context.Context, root, name, binary string) error {
	return buildPackage(ctx, root, "services/"+name, ".", binary)
}

// buildPackage builds a command of a module of the repository in root.
func buildPackage(ctx context.Context, root, module, pkg, binary string) error {
	cmd := goCommand(ctx, filepath.Join(root, module), "build", "-trimpath", "-o", binary, pkg)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s of %s: %w\n%s", pkg, module, err, out)
	}
	return nil
}

// ServiceCerts is the directory of the serving certificate of a service that
// InstallService runs; IssueServingCert renews it.
func (c *Cluster) ServiceCerts(name string) string { return c.path("certs", name) }
