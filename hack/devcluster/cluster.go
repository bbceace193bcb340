// SPDX-License-Identifier: Apache-2.0

// Package devcluster runs a real Kubernetes control plane on this machine's
// loopback interface, with throw-away state, for development and tests. There
// is no kubelet: pods are scheduled and never run.
package devcluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	startTimeout = 2 * time.Minute
	stopGrace    = 10 * time.Second

	// marker is the file by which a directory is known to hold nothing but a
	// cluster's state, and may be deleted as a whole.
	marker = "devcluster"
)

// Options say how a cluster is started.
type Options struct {
	// Dir holds all of the cluster's state. It must not exist, or be empty.
	Dir string
	// ControlPlane is the binary that Build makes of the module ControlPlane.
	ControlPlane string
	// Attached ties every process to this program: the kernel kills them when
	// it ends, however it ends. Else they run on until they are stopped.
	Attached bool
	// AuditLog makes the API server log every request's metadata.
	AuditLog bool
	// ExtraArgs are further arguments by component.
	ExtraArgs map[string][]string
}

// Cluster is a running control plane and what was started beside it.
type Cluster struct {
	dir      string
	pki      pki
	admin    *rest.Config
	client   *http.Client // trusts the cluster's CA
	launcher launcher

	mu        sync.Mutex
	processes []*Process // in the order of their first start
}

// Start starts a control plane and returns once it serves and the namespace
// default has its ServiceAccount. When that fails, nothing is left running and
// Dir stays for a look at the logs.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir}
	if o.Attached {
		c.launcher = newLauncher()
	}
	if err := c.start(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("start the control plane: %w", err), c.Stop())
	}
	return c, nil
}

// Open returns the cluster whose state is in dir, started by another program.
func Open(dir string) (*Cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir}
	if c.processes, err = Recorded(dir); err != nil {
		return nil, err
	}
	if c.pki, err = loadPKI(c.path("pki")); err != nil {
		return nil, err
	}
	return c, c.connect()
}

// Recorded returns the processes of the cluster whose state is in dir, in the
// order of their start, with those that ended by themselves. The error is
// os.ErrNotExist when dir holds no cluster.
func Recorded(dir string) ([]*Process, error) {
	if !isFile(filepath.Join(dir, marker)) {
		return nil, fmt.Errorf("%s holds no cluster: %w", dir, os.ErrNotExist)
	}
	processes, err := load(filepath.Join(dir, "run"))
	slices.SortStableFunc(processes, func(a, b *Process) int { return cmp.Compare(a.ID.StartTime, b.ID.StartTime) })
	return processes, err
}

// Remove ends what still runs of the cluster whose state is in dir, and
// deletes the state. It works for a cluster that never was complete, too.
func Remove(dir string) error {
	processes, err := Recorded(dir)
	if err != nil {
		return err
	}
	if err := stop(processes); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func (c *Cluster) start(ctx context.Context, o Options) error {
	if entries, err := os.ReadDir(c.dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty", c.dir)
	}
	for _, dir := range []string{"bin", "kubeconfigs", "logs", "run"} {
		if err := os.MkdirAll(c.path(dir), 0o700); err != nil {
			return err
		}
	}
	if err := os.WriteFile(c.path(marker), nil, 0o644); err != nil {
		return err
	}
	for _, name := range []string{Etcd, APIServer, ControllerManager, Scheduler, "kubectl"} {
		if err := os.Symlink(o.ControlPlane, c.path("bin", name)); err != nil {
			return err
		}
	}
	p, err := c.configure(o)
	if err != nil {
		return err
	}
	for _, group := range [][]component{
		{c.etcd(p)}, {c.apiserver(p, o.AuditLog)}, {c.controllerManager(p), c.scheduler(p)},
	} {
		var started []*Process
		for _, component := range group {
			process, err := c.Spawn(Command{
				Name:  component.name,
				Path:  c.path("bin", component.name),
				Args:  append(component.args, o.ExtraArgs[component.name]...),
				Ready: component.ready,
			})
			if err != nil {
				return err
			}
			started = append(started, process)
		}
		for _, process := range started {
			if err := c.WaitReady(ctx, process); err != nil {
				return err
			}
		}
	}
	return c.waitDefaultServiceAccount(ctx)
}

// configure writes all the files that the components read.
func (c *Cluster) configure(o Options) (ports, error) {
	free, err := freePorts(5)
	if err != nil {
		return ports{}, err
	}
	p := ports{free[0], free[1], free[2], free[3], free[4]}
	if c.pki, err = newPKI(c.path("pki")); err != nil {
		return ports{}, err
	}
	server := "https://" + loopback(p.apiserver)
	err = errors.Join(
		os.WriteFile(c.path("audit-policy.yaml"), []byte(auditPolicy), 0o644),
		c.pki.writeClientKubeconfig(c.Kubeconfig(), server, "devcluster-admin", "system:masters"),
		c.pki.writeClientKubeconfig(c.path("kubeconfigs", ControllerManager), server, "system:kube-controller-manager"),
		c.pki.writeClientKubeconfig(c.path("kubeconfigs", Scheduler), server, "system:kube-scheduler"))
	if err != nil {
		return ports{}, err
	}
	return p, c.connect()
}

func (c *Cluster) connect() (err error) {
	if c.admin, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig()); err != nil {
		return err
	}
	// virt-api refuses a client certificate of a CA it does not know, and no
	// health endpoint wants one.
	c.client, err = rest.HTTPClientFor(rest.AnonymousClientConfig(c.admin))
	return err
}

// waitDefaultServiceAccount waits for what the controller manager makes first
// and no pod can do without.
func (c *Cluster) waitDefaultServiceAccount(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return err
	}
	return c.Process(ControllerManager).waitFor(ctx, func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// Spawn starts a process of the cluster: logged, recorded and stopped with it.
// It takes the place of an ended process of the same name.
func (c *Cluster) Spawn(command Command) (*Process, error) {
	if p := c.Process(command.Name); p != nil && p.Running() {
		return nil, fmt.Errorf("start %s: it runs already, as process %d", command.Name, p.Pid())
	}
	p := &Process{
		Command:  command,
		Log:      c.path("logs", command.Name+".log"),
		record:   c.path("run", command.Name+".json"),
		launcher: c.launcher,
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.processes = slices.DeleteFunc(c.processes, func(old *Process) bool { return old.Name == p.Name })
	c.processes = append(c.processes, p)
	return p, nil
}

// Process returns the process of that name, or nil.
func (c *Cluster) Process(name string) *Process {
	for _, p := range c.Processes() {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Processes returns all processes of the cluster in the order of their start.
func (c *Cluster) Processes() []*Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.processes)
}

// WaitReady waits until the process answers at its Ready URL.
func (c *Cluster) WaitReady(ctx context.Context, p *Process) error {
	return p.waitFor(ctx, func(ctx context.Context) error {
		_, err := c.fetch(ctx, p.Ready)
		return err
	})
}

// fetch returns what a process answers at the URL with 200.
func (c *Cluster) fetch(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := c.client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", url, response.Status, body)
	}
	return string(body), err
}

// Restart stops the process, starts it with the same arguments and waits until
// it is ready.
func (c *Cluster) Restart(ctx context.Context, p *Process) error {
	if err := p.Stop(stopGrace); err != nil {
		return err
	}
	if err := p.Start(); err != nil {
		return err
	}
	return c.WaitReady(ctx, p)
}

// Stop ends every process of the cluster, the one started last first. The
// state stays.
func (c *Cluster) Stop() error { return stop(c.Processes()) }

func stop(processes []*Process) error {
	var errs []error
	for _, p := range slices.Backward(processes) {
		errs = append(errs, p.Stop(cmp.Or(p.Grace, stopGrace)))
	}
	return errors.Join(errs...)
}

// Dir holds the cluster's state.
func (c *Cluster) Dir() string { return c.dir }

// AuditLog is the path of the API server's audit log.
func (c *Cluster) AuditLog() string { return c.path("logs", "audit.log") }

func (c *Cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}
