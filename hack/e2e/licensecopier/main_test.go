// SPDX-License-Identifier: Apache-2.0

// Package licensecopier tests license-copier against a real API server, under
// the account and the permissions that it is installed with.
package licensecopier

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/hack/devcluster"
	"cozystack.io/gpu/hack/e2e/suite"
	"cozystack.io/gpu/pkg/gpu"
)

const (
	accountNamespace = "cozy-gpu"
	accountName      = "license-copier"
	account          = "system:serviceaccount:" + accountNamespace + ":" + accountName
	pollTimeout      = time.Minute // a killed leader's lease alone takes a quarter
	pollInterval     = 25 * time.Millisecond
	token            = "not-a-real-token"
)

var (
	env      = suite.Env{AuditLog: true, Services: []string{accountName}}
	service  *devcluster.Service
	entitled = map[string]string{gpu.LabelNamespaceVGPU: gpu.LabelValueTrue}
)

func TestMain(m *testing.M) {
	os.Exit(suite.Main(m, &env, func(ctx context.Context) (err error) {
		_, err = env.Kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: gpu.LicenseSecretNamespace},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		service, err = env.Cluster.InstallService(ctx, env.Root, "license-copier", devcluster.ServiceOptions{})
		return err
	}))
}

// class creates a vGPU class with the licence Secret.
func class(t testing.TB, name, secret string) *unstructured.Unstructured {
	t.Helper()
	return env.Create(t, suite.GPUClasses, suite.Object(t,
		"{apiVersion: cozystack.io/v1alpha1, kind: GPUClass, metadata: {name: %s}, spec: {mode: VGPU, resourceName: nvidia.com/%s, license: {secretName: %s}}}",
		name, name, secret))
}

// patchClass applies a merge patch to the class.
func patchClass(t testing.TB, name, patch string) {
	t.Helper()
	_, err := env.Dynamic.Resource(suite.GPUClasses).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
}

// put writes a Secret and has it deleted when the test ends.
func put(t testing.TB, secret *corev1.Secret) *corev1.Secret {
	t.Helper()
	if secret.Namespace == "" {
		secret.Namespace = gpu.LicenseSecretNamespace
	}
	client := env.Kube.CoreV1().Secrets(secret.Namespace)
	created, err := client.Create(t.Context(), secret, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = client.Delete(context.WithoutCancel(t.Context()), secret.Name, metav1.DeleteOptions{})
	})
	return created
}

// source writes a licence Secret with the token.
func source(t testing.TB, name, token string) *corev1.Secret {
	t.Helper()
	return put(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Data:       map[string][]byte{gpu.LicenseTokenKey: []byte(token)},
	})
}

// patchSecret applies a merge patch to the Secret.
func patchSecret(t testing.TB, namespace, name, patch string) *corev1.Secret {
	t.Helper()
	secret, err := env.Kube.CoreV1().Secrets(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
	return secret
}

func deleteSecret(t testing.TB, namespace, name string) {
	t.Helper()
	require.NoError(t, env.Kube.CoreV1().Secrets(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
}

// label sets a label of the namespace, in JSON: a string or null.
func label(t testing.TB, namespace, value string) {
	t.Helper()
	_, err := env.Kube.CoreV1().Namespaces().Patch(t.Context(), namespace, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, gpu.LabelNamespaceVGPU, value), metav1.PatchOptions{})
	require.NoError(t, err)
}

// secret returns the Secret that has the name of the class's copy, or nil.
func secret(t testing.TB, namespace, class string) *corev1.Secret {
	t.Helper()
	secret, err := env.Kube.CoreV1().Secrets(namespace).Get(t.Context(), gpu.LicenseSecretName(class), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(t, err)
	return secret
}

// copied waits until the copy is there, exactly as it must be.
func copied(t testing.TB, namespace, class, token string) *corev1.Secret {
	t.Helper()
	var last *corev1.Secret
	require.Eventually(t, func() bool {
		last = secret(t, namespace, class)
		return last != nil && last.Labels[gpu.LabelGPUClass] == class && last.Type == corev1.SecretTypeOpaque && last.Immutable == nil &&
			len(last.Data) == 1 && string(last.Data[gpu.LicenseTokenKey]) == token
	}, pollTimeout, pollInterval, "the copy of class %s in %s is not as it must be", class, namespace)
	return last
}

// gone waits until no Secret has the name of the class's copy.
func gone(t testing.TB, namespace, class string) {
	t.Helper()
	require.Eventually(t, func() bool { return secret(t, namespace, class) == nil }, pollTimeout, pollInterval,
		"the copy of class %s in %s is not gone", class, namespace)
}

// audit reads what the service writes from now on, once it has nothing left
// to do.
func audit(t testing.TB) *suite.Audit {
	t.Helper()
	env.NewAudit(t, account).Settled(t)
	return env.NewAudit(t, account)
}

// verbs returns the verbs of the settled writes to Secrets of the namespace,
// and fails on one that was refused.
func verbs(t testing.TB, audit *suite.Audit, namespace string) string {
	t.Helper()
	var verbs []string
	for _, write := range audit.Settled(t) {
		if write.Resource == "secrets" && write.Namespace == namespace {
			assert.Less(t, write.Code, 300, "%+v", write)
			verbs = append(verbs, write.Verb)
		}
	}
	return strings.Join(verbs, " ")
}

// condition returns the class's condition of that type, or an empty one.
func condition(t testing.TB, class, kind string) metav1.Condition {
	t.Helper()
	object, err := env.Dynamic.Resource(suite.GPUClasses).Get(t.Context(), class, metav1.GetOptions{})
	require.NoError(t, err)
	raw, err := json.Marshal(object.Object["status"])
	require.NoError(t, err)
	var status struct{ Conditions []metav1.Condition }
	require.NoError(t, json.Unmarshal(raw, &status))
	for _, c := range status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return metav1.Condition{}
}

// reason waits until the class's licence condition has the reason.
func reason(t testing.TB, class, reason string) metav1.Condition {
	t.Helper()
	var last metav1.Condition
	require.Eventually(t, func() bool {
		last = condition(t, class, gpu.ConditionLicenseSecretMissing)
		return last.Reason == reason
	}, pollTimeout, pollInterval, "class %s: want reason %s", class, reason)
	return last
}
