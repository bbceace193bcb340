// SPDX-License-Identifier: Apache-2.0

// Command kubevirt is one binary that holds KubeVirt's virt-api and
// virt-controller and prints what virt-operator would install for them. The
// first argument (or the name it is called by) picks the program; the rest are
// that program's own arguments.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"kubevirt.io/client-go/log"
	"kubevirt.io/kubevirt/pkg/service"
	virtapi "kubevirt.io/kubevirt/pkg/virt-api"
	virtcontroller "kubevirt.io/kubevirt/pkg/virt-controller/watch"
)

// programs maps a name to what runs it with os.Args holding its own arguments.
var programs = map[string]func() error{
	"crds":      func() error { return printList(crds) },
	"manifests": func() error { return printList(manifests) },
	"virt-api": func() error {
		log.InitializeLogging("virt-api")
		app := virtapi.NewVirtApi()
		service.Setup(app)
		app.Execute()
		return nil
	},
	"virt-controller": func() error {
		virtcontroller.Execute()
		return nil
	},
}

func main() {
	name := filepath.Base(os.Args[0])
	if _, ok := programs[name]; !ok && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	run, ok := programs[name]
	if !ok {
		fmt.Fprintln(os.Stderr, "usage: kubevirt crds|manifests|virt-api|virt-controller [arguments]")
		os.Exit(2)
	}
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "kubevirt %s: %v\n", name, err)
		os.Exit(1)
	}
}

// printList writes the objects to stdout as one JSON List, ready for kubectl.
func printList(build func() ([]runtime.Object, error)) error {
	objects, err := build()
	if err != nil {
		return err
	}
	list := corev1.List{}
	list.APIVersion, list.Kind = "v1", "List"
	for _, object := range objects {
		list.Items = append(list.Items, runtime.RawExtension{Object: object})
	}
	return json.NewEncoder(os.Stdout).Encode(list)
}
