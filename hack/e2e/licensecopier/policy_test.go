// SPDX-License-Identifier: Apache-2.0

package licensecopier

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"cozystack.io/gpu/pkg/gpu"
)

// thief is a client with the service's own token that has more verbs than the
// service is installed with: what stops it is the policy.
func thief(t *testing.T) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig(t))
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	roles := env.Kube.RbacV1()
	meta := metav1.ObjectMeta{Name: "license-copier-thief"}
	_, err = roles.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"*"}},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = roles.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "license-copier", Namespace: "cozy-gpu"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		require.NoError(t, roles.ClusterRoleBindings().Delete(ctx, meta.Name, metav1.DeleteOptions{}))
		require.NoError(t, roles.ClusterRoles().Delete(ctx, meta.Name, metav1.DeleteOptions{}))
	})
	return client
}

func TestTheAccountCanWriteCopiesOnly(t *testing.T) {
	// The service must not put right what is tried here.
	process := service.Replicas[0].Process
	require.NoError(t, process.Stop(time.Minute))
	t.Cleanup(func() { require.NoError(t, env.Cluster.Restart(withoutCancel(t), process)) })
	client := thief(t)
	namespace := env.Namespace(t, nil)
	secrets := client.CoreV1().Secrets(namespace)

	// The change makes a forbidden Secret of a proper copy.
	make := func(change func(*corev1.Secret)) *corev1.Secret {
		s := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gpu-license-x", Labels: map[string]string{gpu.LabelGPUClass: "x"}},
			Type:       corev1.SecretTypeOpaque,
			Data:       map[string][]byte{gpu.LicenseTokenKey: []byte(token)},
		}
		change(s)
		return s
	}
	proper := func(*corev1.Secret) {}
	denied := func(t *testing.T, err error) {
		t.Helper()
		require.Error(t, err)
		assert.True(t, apierrors.IsInvalid(err) || apierrors.IsForbidden(err), "%v", err)
		assert.Contains(t, err.Error(), "license-copier may")
	}
	require.Eventually(t, func() bool { // until the policy and the role are in force
		_, err := secrets.Create(t.Context(), make(func(s *corev1.Secret) { s.Labels = nil }), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && contains(err.Error(), "license-copier may")
	}, pollTimeout, pollInterval)

	immutable, force := true, true
	for name, change := range map[string]func(*corev1.Secret){
		"no label":             func(s *corev1.Secret) { s.Labels = nil },
		"another label only":   func(s *corev1.Secret) { s.Labels = map[string]string{"a": "b"} },
		"another class":        func(s *corev1.Secret) { s.Labels[gpu.LabelGPUClass] = "y" },
		"another name":         func(s *corev1.Secret) { s.Name = "x" },
		"a generated name":     func(s *corev1.Secret) { s.Name, s.GenerateName = "", "gpu-license-" },
		"no data":              func(s *corev1.Secret) { s.Data = nil },
		"no token":             func(s *corev1.Secret) { s.Data = map[string][]byte{gpu.LicenseGriddConfKey: nil} },
		"another key":          func(s *corev1.Secret) { s.Data["more"] = nil },
		"another key, as text": func(s *corev1.Secret) { s.StringData = map[string]string{"more": "x"} },
		"immutable":            func(s *corev1.Secret) { s.Immutable = &immutable },
		"another type":         func(s *corev1.Secret) { s.Type = "example.com/other" },
		"a ServiceAccount's new token": func(s *corev1.Secret) {
			s.Type = corev1.SecretTypeServiceAccountToken
			s.Annotations = map[string]string{corev1.ServiceAccountNameKey: "default"}
		},
	} {
		t.Run("creates no Secret with "+name, func(t *testing.T) {
			_, err := secrets.Create(t.Context(), make(change), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			denied(t, err)
		})
	}

	apply := `{"apiVersion":"v1","kind":"Secret","metadata":{"name":%q},"data":{"client_configuration_token.tok":"bm90"}}`
	mine := put(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "mine"}})
	unlabelled := put(t, make(func(s *corev1.Secret) { s.Labels = nil }))
	labelled := put(t, make(func(s *corev1.Secret) { s.Name = "other-name" }))
	for name, try := range map[string]func() error{
		"updates no foreign Secret": func() error {
			_, err := secrets.Update(t.Context(), mine.DeepCopy(), metav1.UpdateOptions{})
			return err
		},
		"labels no foreign Secret": func() error {
			_, err := secrets.Patch(t.Context(), unlabelled.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"cozystack.io/gpu-class":"x"}}}`), metav1.PatchOptions{})
			return err
		},
		"applies no foreign Secret": func() error {
			_, err := secrets.Patch(t.Context(), unlabelled.Name, types.ApplyPatchType, []byte(fmt.Sprintf(apply, unlabelled.Name)), metav1.PatchOptions{FieldManager: "thief", Force: &force})
			return err
		},
		"applies no new Secret": func() error {
			_, err := secrets.Patch(t.Context(), "new", types.ApplyPatchType, []byte(fmt.Sprintf(apply, "new")), metav1.PatchOptions{FieldManager: "thief", Force: &force})
			return err
		},
		"deletes no foreign Secret":                  func() error { return secrets.Delete(t.Context(), unlabelled.Name, metav1.DeleteOptions{}) },
		"deletes no labelled Secret of another name": func() error { return secrets.Delete(t.Context(), labelled.Name, metav1.DeleteOptions{}) },
		"deletes no collection": func() error {
			return secrets.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=mine"})
		},
	} {
		t.Run(name, func(t *testing.T) { denied(t, try()) })
	}
	for _, before := range []*corev1.Secret{mine, unlabelled, labelled} {
		after, err := env.Kube.CoreV1().Secrets(namespace).Get(t.Context(), before.Name, metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, before.ResourceVersion, after.ResourceVersion, before.Name)
	}

	t.Run("writes proper copies, and no more of them than that", func(t *testing.T) {
		deleteSecret(t, namespace, unlabelled.Name)
		_, err := secrets.Create(t.Context(), make(proper), metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = secrets.Patch(t.Context(), "gpu-license-x", types.MergePatchType, []byte(`{"metadata":{"labels":null}}`), metav1.PatchOptions{})
		denied(t, err)
		_, err = secrets.Patch(t.Context(), "gpu-license-x", types.MergePatchType, []byte(`{"stringData":{"more":"x"}}`), metav1.PatchOptions{})
		denied(t, err)
		_, err = secrets.Patch(t.Context(), "gpu-license-x", types.MergePatchType, []byte(`{"stringData":{"gridd.conf":"FeatureType=1"}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		// What a tenant made of a copy can still be deleted.
		patchSecret(t, namespace, "gpu-license-x", `{"metadata":{"labels":{"cozystack.io/gpu-class":"y"}},"stringData":{"more":"x"}}`)
		require.NoError(t, secrets.Delete(t.Context(), "gpu-license-x", metav1.DeleteOptions{}))
	})
	t.Run("nobody else is judged", func(t *testing.T) {
		put(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "somebodys"}})
	})
}
