// SPDX-License-Identifier: Apache-2.0

// Command nodekeeper stands in for what runs on the nodes of a development
// cluster.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"

	"cozystack.io/gpu/hack/devcluster/nodekeeper"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "`file` of the kubelets' stand-in")
	handler := flag.String("handler-kubeconfig", "", "`file` of virt-handler's stand-in")
	flag.Parse()
	if err := run(*kubeconfig, *handler); err != nil {
		fmt.Fprintln(os.Stderr, "nodekeeper:", err)
		os.Exit(1)
	}
}

func run(kubeconfig, handlerKubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	handler, err := clientcmd.BuildConfigFromFlags("", handlerKubeconfig)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return nodekeeper.Run(ctx, config, handler)
}
