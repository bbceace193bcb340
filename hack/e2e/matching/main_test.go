// SPDX-License-Identifier: Apache-2.0

// Package matching tests budget-checker's manifests while no replica of it runs:
// which writes depend on it, and who may read budgets.
package matching

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"cozystack.io/gpu/hack/devcluster"
	"cozystack.io/gpu/hack/e2e/suite"
)

const (
	pollTimeout  = 60 * time.Second
	pollInterval = 20 * time.Millisecond
	namespace    = "tenant-matching"
)

// kinds are those that budget-checker judges, by resource.
var kinds = map[string]string{
	"vminstances":       "VMInstance",
	"kubernetesnodeses": "KubernetesNodes",
	"tenants":           "Tenant",
}

// withGPUs are specs of objects that were stored before the webhook was
// installed, by the prefix of their names.
var withGPUs = map[string]string{
	"gpus":   `{gpus: [{className: l40s, count: 1}]}`,
	"quotas": `{resourceQuotas: {cpu: "8", gpu.cozystack.io/total: "4"}}`,
}

var env suite.Env

func TestMain(m *testing.M) {
	os.Exit(suite.Main(m, &env, func(ctx context.Context) error {
		if err := store(ctx); err != nil {
			return err
		}
		if err := install(ctx); err != nil {
			return err
		}
		return awaitWebhook(ctx)
	}))
}

// store creates the namespace and, of each kind, an object without a spec and two
// of each spec of withGPUs, one of which may be deleted.
func store(ctx context.Context) error {
	ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
	ns.SetName(namespace)
	if _, err := env.Dynamic.Resource(suite.Namespaces).Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return err
	}
	specs := map[string]string{"plain": ""}
	for prefix, spec := range withGPUs {
		specs[prefix+"-kept"], specs[prefix+"-deleted"] = spec, spec
	}
	for resource := range kinds {
		for name, spec := range specs {
			object, err := object(resource, name, spec)
			if err != nil {
				return err
			}
			if _, err := client(resource).Create(ctx, object, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("create %s %s: %w", resource, name, err)
			}
		}
	}
	return nil
}

// install applies the service's manifests without its Deployment. The webhook is
// called where nobody listens.
func install(ctx context.Context) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	closed := listener.Addr().String()
	if err := listener.Close(); err != nil {
		return err
	}
	objects, err := env.Cluster.Kustomize(ctx, filepath.Join(env.Root, "deploy", "budget-checker"))
	if err != nil {
		return err
	}
	var applied []*unstructured.Unstructured
	for _, object := range objects {
		switch object.GroupVersionKind().Group {
		case "apps", "cert-manager.io": // there is nothing to run, nor to certify
			continue
		case "admissionregistration.k8s.io":
			webhooks := object.Object["webhooks"].([]any)
			for _, webhook := range webhooks {
				webhook.(map[string]any)["clientConfig"] = map[string]any{"url": "https://" + closed + "/validate"}
			}
		}
		applied = append(applied, object)
	}
	return devcluster.Apply(ctx, env.Cluster.Config(), applied)
}

// awaitWebhook waits until the API server has taken in the configuration.
func awaitWebhook(ctx context.Context) error {
	object, err := object("vminstances", "awaited", withGPUs["gpus"])
	if err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, pollInterval, pollTimeout, true, func(ctx context.Context) (bool, error) {
		_, err := client("vminstances").Create(ctx, object, metav1.CreateOptions{DryRun: dryRun})
		return err != nil, nil
	})
}

// object returns an object with the spec, in YAML's flow style, or with none if
// it is empty.
func object(resource, name, spec string) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps.cozystack.io/v1alpha1", "kind": kinds[resource]}}
	object.SetNamespace(namespace)
	object.SetName(name)
	if spec == "" {
		return object, nil
	}
	var parsed any
	err := yaml.Unmarshal([]byte(spec), &parsed)
	object.Object["spec"] = parsed
	return object, err
}

func client(resource string) dynamic.ResourceInterface {
	return env.Dynamic.Resource(schema.GroupVersionResource{Group: "apps.cozystack.io", Version: "v1alpha1", Resource: resource}).Namespace(namespace)
}

// newObject is object for tests.
func newObject(t testing.TB, resource, name, spec string) *unstructured.Unstructured {
	t.Helper()
	o, err := object(resource, name, spec)
	require.NoError(t, err)
	return o
}
