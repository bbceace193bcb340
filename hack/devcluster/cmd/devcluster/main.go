// SPDX-License-Identifier: Apache-2.0

// Command devcluster builds, starts and stops a development cluster with the
// services of this repository.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"cozystack.io/gpu/hack/devcluster"
)

const usage = `Usage: devcluster <command> [flags]

Commands:
  build   build what the cluster is made of, unless it is in the cache
  up      build, start the cluster and the services, and leave them running
  status  list the processes
  down    end what up started and delete its state

Flags:
`

// command is what all commands work on.
type command struct {
	root, state string
	auditLog    bool
	stdout      io.Writer // results
	stderr      io.Writer // progress
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	err := run(ctx, os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "devcluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	c := &command{stdout: os.Stdout, stderr: os.Stderr}
	flags := flag.NewFlagSet("devcluster", flag.ContinueOnError)
	flags.StringVar(&c.root, "root", "", "root `directory` of the repository (default: the nearest one with a go.work, from here upwards)")
	flags.StringVar(&c.state, "state", "", "`directory` of the cluster's state (default: .devcluster in the root)")
	flags.BoolVar(&c.auditLog, "audit-log", false, "up: have the API server log every request's metadata")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	commands := map[string]func(context.Context) error{
		"build": c.build, "up": c.up, "status": c.status, "down": c.down,
	}
	if len(args) == 0 {
		flags.Usage()
		return flag.ErrHelp
	}
	do, ok := commands[args[0]]
	if ok {
		args = args[1:]
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if !ok || flags.NArg() > 0 {
		return fmt.Errorf("want one command and its flags, got %q; try --help", args)
	}
	if err := c.locate(); err != nil {
		return err
	}
	return do(ctx)
}

// locate sets the directories that no flag named.
func (c *command) locate() error {
	if c.root == "" {
		root, err := devcluster.FindRoot(".")
		if err != nil {
			return err
		}
		c.root = root
	}
	if c.state == "" {
		c.state = filepath.Join(c.root, ".devcluster")
	}
	var err error
	c.state, err = filepath.Abs(c.state)
	return err
}
