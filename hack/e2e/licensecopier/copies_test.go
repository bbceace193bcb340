// SPDX-License-Identifier: Apache-2.0

package licensecopier

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cozystack.io/gpu/hack/e2e/suite"
	"cozystack.io/gpu/pkg/gpu"
)

func TestCopiesFollowTheNamespacesLabel(t *testing.T) {
	source(t, "label", token)
	class(t, "label", "label")
	namespace := env.Namespace(t, nil)
	log := audit(t)
	for _, off := range []string{"null", `"True"`, `"false"`, `""`} {
		label(t, namespace, `"true"`)
		copied(t, namespace, "label", token)
		label(t, namespace, off)
		gone(t, namespace, "label")
	}
	assert.Equal(t, strings.TrimSpace(strings.Repeat("create delete ", 4)), verbs(t, log, namespace))
}

func TestANamespaceMadeAgainHasItsCopyAgain(t *testing.T) {
	source(t, "again", token)
	class(t, "again", "again")
	namespaces := env.Kube.CoreV1().Namespaces()
	create := func() {
		_, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "made-again", Labels: entitled}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		_ = namespaces.Delete(context.WithoutCancel(t.Context()), "made-again", metav1.DeleteOptions{})
	})
	log := audit(t)
	create()
	first := copied(t, "made-again", "again", token)
	require.NoError(t, namespaces.Delete(t.Context(), "made-again", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, err := namespaces.Get(t.Context(), "made-again", metav1.GetOptions{})
		return err != nil
	}, pollTimeout, pollInterval)
	assert.Equal(t, "create", verbs(t, log, "made-again"), "the namespace took its copy along")
	create()
	assert.NotEqual(t, first.UID, copied(t, "made-again", "again", token).UID)
	assert.Equal(t, "create create", verbs(t, log, "made-again"))
}

func TestCopiesFollowTheClass(t *testing.T) {
	source(t, "one", token)
	source(t, "two", "another-fake-token")
	namespace := env.Namespace(t, entitled)
	log := audit(t)

	old := class(t, "old-name", "one")
	copied(t, namespace, "old-name", token)
	env.Delete(t, suite.GPUClasses, old)
	gone(t, namespace, "old-name")
	class(t, "new-name", "one")
	copied(t, namespace, "new-name", token)
	assert.Equal(t, "create delete create", verbs(t, log, namespace), "renamed")

	patchClass(t, "new-name", `{"spec":{"license":{"secretName":"two"}}}`)
	copied(t, namespace, "new-name", "another-fake-token")
	assert.Equal(t, "create delete create patch", verbs(t, log, namespace), "pointed at another Secret")

	patchClass(t, "new-name", `{"spec":{"license":null}}`)
	gone(t, namespace, "new-name")
	patchClass(t, "new-name", `{"spec":{"license":{"secretName":"one"}}}`)
	copied(t, namespace, "new-name", token)
	patchClass(t, "new-name", `{"spec":{"mode":"Passthrough","license":null}}`)
	gone(t, namespace, "new-name")
	reason(t, "new-name", "NoLicenseNeeded")
	assert.Equal(t, "create delete create patch delete create delete", verbs(t, log, namespace), "licence and mode gone")
}

func TestCopiesFollowTheToken(t *testing.T) {
	put(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "rotated"}, Data: map[string][]byte{
		gpu.LicenseTokenKey: []byte(token), "unrelated": []byte("stays at home"),
	}})
	class(t, "rotated-a", "rotated")
	class(t, "rotated-b", "rotated") // two classes share the Secret
	namespaces := []string{env.Namespace(t, entitled), env.Namespace(t, entitled)}
	for _, namespace := range namespaces {
		copied(t, namespace, "rotated-a", token)
		copied(t, namespace, "rotated-b", token)
	}
	log := audit(t)
	patchSecret(t, gpu.LicenseSecretNamespace, "rotated", `{"data":{"unrelated":null}}`)
	for _, namespace := range namespaces {
		assert.Empty(t, verbs(t, log, namespace), "a key that is not copied")
	}
	patchSecret(t, gpu.LicenseSecretNamespace, "rotated", `{"stringData":{"client_configuration_token.tok":"another-fake-token"}}`)
	for _, namespace := range namespaces {
		copied(t, namespace, "rotated-a", "another-fake-token")
		copied(t, namespace, "rotated-b", "another-fake-token")
		assert.Equal(t, "patch patch", verbs(t, log, namespace))
	}
	patchSecret(t, gpu.LicenseSecretNamespace, "rotated", `{"stringData":{"gridd.conf":"FeatureType=1"}}`)
	for _, namespace := range namespaces {
		assert.Equal(t, "patch patch patch patch", verbs(t, log, namespace))
		assert.Equal(t, "FeatureType=1", string(secret(t, namespace, "rotated-a").Data[gpu.LicenseGriddConfKey]))
		assert.Len(t, secret(t, namespace, "rotated-b").Data, 2)
	}
	patchSecret(t, gpu.LicenseSecretNamespace, "rotated", `{"data":{"gridd.conf":null}}`)
	copied(t, namespaces[0], "rotated-a", "another-fake-token")
}

func TestCopiesStayWhileTheSourceIsMissing(t *testing.T) {
	for name, tc := range map[string]struct {
		take, back func(t *testing.T)
		reason     string
	}{
		"deleted": {
			func(t *testing.T) { deleteSecret(t, gpu.LicenseSecretNamespace, "held") },
			func(t *testing.T) { source(t, "held", token) },
			"SecretNotFound",
		},
		"token-emptied": {
			func(t *testing.T) {
				patchSecret(t, gpu.LicenseSecretNamespace, "held", `{"stringData":{"client_configuration_token.tok":""}}`)
			},
			func(t *testing.T) {
				patchSecret(t, gpu.LicenseSecretNamespace, "held", `{"stringData":{"client_configuration_token.tok":"not-a-real-token"}}`)
			},
			"TokenMissing",
		},
		"key-removed": {
			func(t *testing.T) {
				patchSecret(t, gpu.LicenseSecretNamespace, "held", `{"data":{"client_configuration_token.tok":null}}`)
			},
			func(t *testing.T) {
				patchSecret(t, gpu.LicenseSecretNamespace, "held", `{"stringData":{"client_configuration_token.tok":"not-a-real-token"}}`)
			},
			"TokenMissing",
		},
	} {
		t.Run(name, func(t *testing.T) {
			source(t, "held", token)
			class(t, "held", "held")
			namespace := env.Namespace(t, entitled)
			before := copied(t, namespace, "held", token)
			reason(t, "held", "SecretFound")
			log := audit(t)

			tc.take(t)
			missing := reason(t, "held", tc.reason)
			assert.Equal(t, metav1.ConditionTrue, missing.Status)
			assert.Contains(t, missing.Message, "cozy-gpu-operator/held")
			// What is edited now stays edited: there is nothing to put it right from.
			edited := patchSecret(t, namespace, before.Name, `{"stringData":{"client_configuration_token.tok":"edited-fake-token"}}`)
			late := env.Namespace(t, entitled)
			assert.Empty(t, verbs(t, log, namespace))
			assert.Empty(t, verbs(t, log, late))
			assert.Equal(t, edited.ResourceVersion, secret(t, namespace, "held").ResourceVersion)

			tc.back(t)
			copied(t, namespace, "held", token)
			copied(t, late, "held", token)
			reason(t, "held", "SecretFound")
			assert.Equal(t, "patch", verbs(t, log, namespace))
			assert.Equal(t, "create", verbs(t, log, late))
		})
	}
}

func TestTheLicenceNamespaceCanBeEntitledItself(t *testing.T) {
	own := source(t, "gpu-license-own", token)
	// While a class names it, even one that bears a copy's label is the hoster's.
	class(t, "points-at-it", "gpu-license-marked")
	labelled := put(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu-license-marked", Labels: map[string]string{gpu.LabelGPUClass: "gone"}},
		Data:       map[string][]byte{gpu.LicenseTokenKey: []byte(token)},
	})
	class(t, "own", "gpu-license-own")
	class(t, "marked", "gpu-license-own") // its copy would be another's source
	namespace := env.Namespace(t, entitled)
	log := audit(t)
	label(t, gpu.LicenseSecretNamespace, `"true"`)
	t.Cleanup(func() {
		_, err := env.Kube.CoreV1().Namespaces().Patch(context.WithoutCancel(t.Context()), gpu.LicenseSecretNamespace, "application/merge-patch+json",
			[]byte(`{"metadata":{"labels":{"namespace.cozystack.io/vgpu":null}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	})
	copied(t, gpu.LicenseSecretNamespace, "points-at-it", token)
	blocked := reason(t, "marked", "CopiesBlocked")
	assert.Contains(t, blocked.Message, gpu.LicenseSecretNamespace)
	for _, class := range []string{"own", "points-at-it", "marked"} {
		copied(t, namespace, class, token)
	}
	assert.Equal(t, "create", verbs(t, log, gpu.LicenseSecretNamespace))
	assert.Equal(t, own.ResourceVersion, secret(t, gpu.LicenseSecretNamespace, "own").ResourceVersion)
	assert.Equal(t, labelled.ResourceVersion, secret(t, gpu.LicenseSecretNamespace, "marked").ResourceVersion)
	label(t, gpu.LicenseSecretNamespace, "null")
	gone(t, gpu.LicenseSecretNamespace, "points-at-it")
	assert.Equal(t, "create delete", verbs(t, log, gpu.LicenseSecretNamespace))
}

// A backup may bring the label along, and be restored before its classes.
func TestASourceWithTheLabelOutlivesItsClass(t *testing.T) {
	log := audit(t)
	restored := put(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu-license-restored", Labels: map[string]string{gpu.LabelGPUClass: "restored"}},
		Data:       map[string][]byte{gpu.LicenseTokenKey: []byte(token)},
	})
	assert.Empty(t, verbs(t, log, gpu.LicenseSecretNamespace), "before its class")
	namespace := env.Namespace(t, entitled)
	object := class(t, "restored", restored.Name)
	copied(t, namespace, "restored", token)
	env.Delete(t, suite.GPUClasses, object)
	gone(t, namespace, "restored")
	assert.Empty(t, verbs(t, log, gpu.LicenseSecretNamespace), "after its class")
	assert.Equal(t, restored.ResourceVersion, secret(t, gpu.LicenseSecretNamespace, "restored").ResourceVersion)
}

func TestClassNamesMayBeAsShortAndLongAsTheSchemaAllows(t *testing.T) {
	secret := source(t, strings.Repeat("s", 253), token).Name // longer than a label's value
	namespace := env.Namespace(t, entitled)
	for _, name := range []string{"a", strings.Repeat("x", 57)} {
		class(t, name, secret)
		copied(t, namespace, name, token)
	}
}

func TestAnImmutableSourceGivesOrdinaryCopies(t *testing.T) {
	immutable := true
	put(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "immutable"}, Immutable: &immutable,
		Data: map[string][]byte{gpu.LicenseTokenKey: []byte(token)},
	})
	class(t, "immutable", "immutable")
	namespace := env.Namespace(t, entitled)
	copied(t, namespace, "immutable", token)
	deleteSecret(t, gpu.LicenseSecretNamespace, "immutable")
	source(t, "immutable", "another-fake-token")
	copied(t, namespace, "immutable", "another-fake-token")
}
