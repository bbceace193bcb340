// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"bytes"
	"context"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// The processes of KubeVirt's control plane.
const (
	VirtAPI        = "virt-api"
	VirtController = "virt-controller"
)

const (
	kubevirtNamespace = "kubevirt"
	// virtAPIServer is the name under which the API server knows virt-api,
	// and checks its certificate.
	virtAPIServer = VirtAPI + "." + kubevirtNamespace + ".svc"
	// Each start takes five seconds of CPU, more on a machine that is busy.
	kubevirtTimeout = 4 * time.Minute
)

//go:embed fixtures
var fixtures embed.FS

func fixture(name string) ([]*unstructured.Unstructured, error) {
	data, err := fixtures.ReadFile("fixtures/" + name)
	if err != nil {
		return nil, err
	}
	return ParseObjects(bytes.NewReader(data))
}

// InstallKubeVirt starts KubeVirt's control plane: virt-api and
// virt-controller from the binary of the module KubeVirt, under tokens of their
// own ServiceAccounts, with the configuration of fixtures/kubevirt.yaml. It
// returns when VMs can be created.
func (c *Cluster) InstallKubeVirt(ctx context.Context, binary string) error {
	ctx, cancel := context.WithTimeout(ctx, kubevirtTimeout)
	defer cancel()
	if err := c.installKubeVirt(ctx, binary); err != nil {
		return fmt.Errorf("install KubeVirt: %w", err)
	}
	return nil
}

func (c *Cluster) installKubeVirt(ctx context.Context, binary string) error {
	free, err := freePorts(2)
	if err != nil {
		return err
	}
	apiPort, controllerPort := free[0], free[1]
	objects, err := kubevirtObjects(ctx, binary, "manifests")
	if err != nil {
		return err
	}
	before, after, err := c.localKubeVirt(objects, apiPort)
	if err != nil {
		return err
	}
	cdi, err := fixture("cdi.yaml")
	if err != nil {
		return err
	}
	kubevirt, err := fixture("kubevirt.yaml")
	if err != nil {
		return err
	}
	if err := Apply(ctx, c.Config(), append(append(cdi, before...), kubevirt...)); err != nil {
		return err
	}
	if err := ApplyStatus(ctx, c.Config(), kubevirt); err != nil {
		return err
	}
	// Its folder holds nothing else: both programs watch it.
	certs := c.path("certs", kubevirtNamespace)
	if err := c.IssueServingCert(certs, virtAPIServer); err != nil {
		return err
	}
	cert, key := filepath.Join(certs, "tls.crt"), filepath.Join(certs, "tls.key")
	api, err := c.spawnKubeVirt(ctx, binary, VirtAPI, "kubevirt-apiserver", apiPort, "/apis/subresources.kubevirt.io/v1/healthz",
		"--subresources-only",
		"--tls-cert-file="+cert, "--tls-key-file="+key,
		"--handler-cert-file="+cert, "--handler-key-file="+key)
	if err != nil {
		return err
	}
	controller, err := c.spawnKubeVirt(ctx, binary, VirtController, "kubevirt-controller", controllerPort, "/leader",
		"--launcher-image=virt-launcher", "--exporter-image=virt-exportserver",
		"--prom-cert-file="+cert, "--prom-key-file="+key)
	if err != nil {
		return err
	}
	if err := c.WaitReady(ctx, api); err != nil {
		return err
	}
	if err := controller.waitFor(ctx, func(ctx context.Context) error {
		body, err := c.fetch(ctx, controller.Ready)
		if err == nil && !strings.Contains(body, `"leader": "true"`) {
			err = fmt.Errorf("virt-controller does not lead: %s", body)
		}
		return err
	}); err != nil {
		return err
	}
	if err := c.applyWebhooks(ctx, after); err != nil {
		return err
	}
	return c.waitAPIServices(ctx, after)
}

// localKubeVirt changes KubeVirt's manifests so that the API server reaches
// virt-api on the loopback interface. The objects by which it calls virt-api
// come back apart: they are applied once virt-api serves.
func (c *Cluster) localKubeVirt(objects []*unstructured.Unstructured, apiPort int) (before, after []*unstructured.Unstructured, err error) {
	for _, object := range objects {
		switch kind := object.GetKind(); {
		case kind == "Service":
			object.Object["spec"] = map[string]any{"type": "ExternalName", "externalName": "localhost"}
			before = append(before, object)
		case kind == "APIService":
			spec, _, _ := unstructured.NestedMap(object.Object, "spec")
			delete(spec, "insecureSkipTLSVerify")
			spec["caBundle"] = base64.StdEncoding.EncodeToString(c.CABundle())
			err = errors.Join(err, unstructured.SetNestedField(spec, int64(apiPort), "service", "port"))
			object.Object["spec"] = spec
			after = append(after, object)
		case configuresWebhooks(kind):
			err = errors.Join(err, callByURL(object, "https://"+loopback(apiPort), c.CABundle()))
			after = append(after, object)
		default:
			before = append(before, object)
		}
	}
	return before, after, err
}

func (c *Cluster) spawnKubeVirt(ctx context.Context, binary, program, serviceAccount string, port int, ready string, args ...string) (*Process, error) {
	kubeconfig, err := c.KubeconfigFor(ctx, kubevirtNamespace, serviceAccount)
	if err != nil {
		return nil, err
	}
	return c.Spawn(Command{
		Name: program,
		Path: binary,
		Args: append([]string{program, "--kubeconfig=" + kubeconfig, "--listen=127.0.0.1", fmt.Sprintf("--port=%d", port), "-v=2"}, args...),
		// Told to end, virt-api sleeps for five seconds first. Neither program
		// has anything to lose.
		Grace: 100 * time.Millisecond,
		Ready: "https://" + loopback(port) + ready,
	})
}

// waitAPIServices waits until the API server serves what virt-api aggregates.
func (c *Cluster) waitAPIServices(ctx context.Context, objects []*unstructured.Unstructured) error {
	client, err := dynamic.NewForConfig(c.Config())
	if err != nil {
		return err
	}
	resource := client.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	for _, object := range objects {
		if object.GetKind() != "APIService" {
			continue
		}
		err := poll(ctx, kubevirtTimeout, func() error {
			current, err := resource.Get(ctx, object.GetName(), metav1.GetOptions{})
			if err != nil {
				return err
			}
			return hasCondition(current, "Available")
		})
		if err != nil {
			return err
		}
	}
	return nil
}
