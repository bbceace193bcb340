// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"cozystack.io/gpu/hack/devcluster"
)

// binaries are the paths of what takes long to build.
type binaries struct{ controlPlane, kubevirt string }

func (c *command) build(ctx context.Context) error {
	b, err := c.buildBinaries(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(c.stdout, b.controlPlane)
	fmt.Fprintln(c.stdout, b.kubevirt)
	return nil
}

func (c *command) buildBinaries(ctx context.Context) (b binaries, err error) {
	if b.controlPlane, err = devcluster.Build(ctx, devcluster.ControlPlane(c.root), c.stderr); err != nil {
		return b, err
	}
	b.kubevirt, err = devcluster.Build(ctx, devcluster.KubeVirt(c.root), c.stderr)
	return b, err
}

func (c *command) up(ctx context.Context) error {
	running, err := c.running()
	if err != nil {
		return err
	}
	if running {
		fmt.Fprintln(c.stdout, "The development cluster is up already.")
		c.explain()
		return nil
	}
	b, err := c.buildBinaries(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := c.start(ctx, b); err != nil {
		return err
	}
	fmt.Fprintf(c.stdout, "The development cluster is up (%.1f s).\n", time.Since(start).Seconds())
	c.explain()
	return nil
}

// running tells whether the cluster is up, whole and sound. Of one that has
// ended, by a reboot for example, it clears the state away.
func (c *command) running() (bool, error) {
	processes, err := devcluster.Recorded(c.state)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var ended []string
	for _, p := range processes {
		if !p.Running() {
			ended = append(ended, p.Name)
		}
	}
	if len(ended) == len(processes) {
		fmt.Fprintln(c.stderr, "removing what an earlier cluster left")
		return false, devcluster.Remove(c.state)
	}
	if len(ended) > 0 {
		return false, fmt.Errorf("the cluster runs without %s: end what is left with `make down`; the logs are in %s", strings.Join(ended, ", "), filepath.Join(c.state, "logs"))
	}
	if _, err := os.Stat(c.complete()); err != nil {
		return false, errors.New("the cluster's start is under way, or was cut short: `make down` clears it away")
	}
	return true, nil
}

// complete is the file that a cluster has once all of it was started.
func (c *command) complete() string { return filepath.Join(c.state, "complete") }

func (c *command) start(ctx context.Context, b binaries) error {
	fmt.Fprintln(c.stderr, "starting the control plane")
	cluster, err := devcluster.Start(ctx, devcluster.Options{
		Dir:          c.state,
		ControlPlane: b.controlPlane,
		AuditLog:     c.auditLog,
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(c.stderr, "installing CRDs")
	if err := cluster.InstallCRDs(ctx, c.root, b.kubevirt); err != nil {
		return errors.Join(err, cluster.Stop())
	}
	fmt.Fprintln(c.stderr, "starting KubeVirt's control plane")
	if err := cluster.InstallKubeVirt(ctx, b.kubevirt); err != nil {
		return errors.Join(err, cluster.Stop())
	}
	if err := cluster.InstallNodes(ctx, c.root); err != nil {
		return errors.Join(err, cluster.Stop())
	}
	for _, name := range devcluster.Services() {
		fmt.Fprintln(c.stderr, "building and starting", name)
		if _, err := cluster.InstallService(ctx, c.root, name, devcluster.ServiceOptions{}); err != nil {
			return errors.Join(err, cluster.Stop())
		}
	}
	if err := os.WriteFile(c.complete(), nil, 0o644); err != nil {
		return errors.Join(err, cluster.Stop())
	}
	return nil
}

// explain prints how to use the cluster.
func (c *command) explain() {
	fmt.Fprintf(c.stdout, `
  export KUBECONFIG=%s
  %s get gpuclasses

Logs are in %s.
`, filepath.Join(c.state, "kubeconfig"), filepath.Join(c.state, "bin", "kubectl"), filepath.Join(c.state, "logs"))
}

func (c *command) status(context.Context) error {
	processes, err := devcluster.Recorded(c.state)
	if errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(c.stdout, "There is no development cluster.")
		return nil
	}
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tPID\tSTATE\tLOG")
	for _, p := range processes {
		state := "running"
		if !p.Running() {
			state = "ended"
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", p.Name, p.Pid(), state, p.Log)
	}
	return table.Flush()
}

func (c *command) down(context.Context) error {
	err := devcluster.Remove(c.state)
	if errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(c.stdout, "There is no development cluster.")
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(c.stdout, "The development cluster is gone.")
	return nil
}
