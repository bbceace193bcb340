// SPDX-License-Identifier: Apache-2.0

// Package guards tests the admission policies of deploy/components/guards with
// the tokens of those whom they judge: a tenant's administrator, the accounts that
// write VMs for tenants, and the real virt-controller.
package guards

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"cozystack.io/gpu/hack/devcluster"
	"cozystack.io/gpu/hack/e2e/suite"
)

const (
	timeout  = 60 * time.Second
	interval = 50 * time.Millisecond

	h100Resource = "nvidia.com/H100"
)

var (
	env suite.Env

	// Clients with the accounts' own tokens.
	helm, clusterAPI, virtController dynamic.Interface
)

var (
	vms             = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachines"}
	replicaSets     = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstancereplicasets"}
	pools           = schema.GroupVersionResource{Group: "pool.kubevirt.io", Version: "v1beta1", Resource: "virtualmachinepools"}
	instancetypes   = schema.GroupVersionResource{Group: "instancetype.kubevirt.io", Version: "v1beta1", Resource: "virtualmachineinstancetypes"}
	networks        = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}
	serviceAccounts = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	roleBindings    = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"}
	bindings        = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"}
	clusterBindings = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"}
)

// accounts are those of Cozystack that write VMs, with no more than that takes,
// a role for tenants that lets them do what they like in their namespace, and Multus' kind.
const accounts = `
{apiVersion: v1, kind: Namespace, metadata: {name: cozy-fluxcd}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: cozy-cluster-api}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: outside}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: tenant-probe}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: flux, namespace: cozy-fluxcd}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: capk-manager, namespace: cozy-cluster-api}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: vm-writer}
rules: [{apiGroups: [kubevirt.io, pool.kubevirt.io], resources: ["*"], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: vm-writer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: vm-writer}
subjects:
- {kind: ServiceAccount, name: flux, namespace: cozy-fluxcd}
- {kind: ServiceAccount, name: capk-manager, namespace: cozy-cluster-api}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: tenant-super-admin}
rules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: network-attachment-definitions.k8s.cni.cncf.io}
spec:
  group: k8s.cni.cncf.io
  names: {kind: NetworkAttachmentDefinition, plural: network-attachment-definitions}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

func TestMain(m *testing.M) {
	os.Exit(suite.Main(m, &env, setUp))
}

func setUp(ctx context.Context) error {
	if err := env.InstallKubeVirt(ctx); err != nil {
		return err
	}
	if _, err := env.Cluster.InstallService(ctx, env.Root, "vmi-webhook", devcluster.ServiceOptions{}); err != nil {
		return err
	}
	objects, err := devcluster.ParseObjects(strings.NewReader(accounts))
	if err != nil {
		return err
	}
	guards, err := env.Cluster.Kustomize(ctx, filepath.Join(env.Root, "hack", "e2e", "guards", "testdata"))
	if err != nil {
		return err
	}
	if err := devcluster.Apply(ctx, env.Cluster.Config(), append(objects, guards...)); err != nil {
		return err
	}
	for _, account := range []struct {
		client          *dynamic.Interface
		namespace, name string
	}{
		{&helm, "cozy-fluxcd", "flux"},
		{&clusterAPI, "cozy-cluster-api", "capk-manager"},
		{&virtController, "kubevirt", "kubevirt-controller"},
	} {
		if *account.client, err = login(ctx, account.namespace, account.name); err != nil {
			return err
		}
	}
	return nil
}

// login returns a client with a token of the ServiceAccount.
func login(ctx context.Context, namespace, name string) (dynamic.Interface, error) {
	path, err := env.Cluster.KubeconfigFor(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return dynamic.NewForConfig(config)
}

// tenant creates a tenant's namespace and returns a client of its administrator.
func tenant(t testing.TB) (namespace string, admin dynamic.Interface) {
	t.Helper()
	namespace = env.Namespace(t, nil)
	env.Create(t, serviceAccounts, suite.Object(t, "{apiVersion: v1, kind: ServiceAccount, metadata: {name: admin, namespace: %s}}", namespace))
	env.Create(t, roleBindings, suite.Object(t, `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: admin, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: tenant-super-admin}
subjects: [{kind: ServiceAccount, name: admin, namespace: %[1]s}]
`, namespace))
	admin, err := login(t.Context(), namespace, "admin")
	require.NoError(t, err)
	eventually(t, func(c *assert.CollectT) { // until the role is in force
		_, err := admin.Resource(vms).Namespace(namespace).List(context.Background(), metav1.ListOptions{})
		assert.NoError(c, err)
	})
	return namespace, admin
}

// class creates a passthrough class and returns once its device is guarded.
func class(t testing.TB, name, resourceName string) *unstructured.Unstructured {
	t.Helper()
	created := env.Create(t, suite.GPUClasses, suite.Object(t,
		"{apiVersion: cozystack.io/v1alpha1, kind: GPUClass, metadata: {name: %s}, spec: {mode: Passthrough, resourceName: %s}}", name, resourceName))
	waitGuarded(t, name, resourceName)
	return created
}

// waitGuarded waits until the device is refused as that of the class.
func waitGuarded(t testing.TB, class, resourceName string) {
	t.Helper()
	eventually(t, func(c *assert.CollectT) {
		err := try(env.Dynamic, vms, machine(t, "VirtualMachine", "tenant-probe", plain, gpus(resourceName)))
		if assert.Error(c, err) {
			assert.Contains(c, causes(err), `the device of GPU class "`+class+`"`)
		}
	})
}

// causes are all messages of a refusal.
func causes(err error) string {
	status, ok := err.(apierrors.APIStatus)
	if !ok || status.Status().Details == nil {
		return err.Error()
	}
	text := status.Status().Message
	for _, cause := range status.Status().Details.Causes {
		text += "\n" + cause.Message
	}
	return text
}

// waitNoGuard waits until the device passes.
func waitNoGuard(t testing.TB, resourceName string) {
	t.Helper()
	eventually(t, func(c *assert.CollectT) {
		assert.NoError(c, try(env.Dynamic, vms, machine(t, "VirtualMachine", "tenant-probe", plain, gpus(resourceName))))
	})
}

// try creates the object without keeping it.
func try(client dynamic.Interface, resource schema.GroupVersionResource, object *unstructured.Unstructured) error {
	_, err := client.Resource(resource).Namespace(object.GetNamespace()).Create(context.Background(), object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// eventually polls until check has no complaint.
func eventually(t testing.TB, check func(c *assert.CollectT), explanation ...any) {
	t.Helper()
	require.EventuallyWithT(t, check, timeout, interval, explanation...)
}

// assertForbidden checks that a policy refused for this reason.
func assertForbidden(t testing.TB, err error, want ...string) {
	t.Helper()
	if !assert.Error(t, err) {
		return
	}
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.Contains(t, err.Error(), "ValidatingAdmissionPolicy")
	for _, text := range want {
		assert.Contains(t, err.Error(), text)
	}
}
