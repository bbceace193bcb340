// SPDX-License-Identifier: Apache-2.0

package licensecopier

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/pkg/gpu"
)

// foreignDeadline is how soon a copy must follow once nothing is in its way.
const foreignDeadline = 20 * time.Second

func TestASecretInTheWayIsReportedAndFollowedByTheCopy(t *testing.T) {
	source(t, "foreign", token)
	first, second := env.Namespace(t, entitled), env.Namespace(t, entitled)
	var versions []string
	for _, namespace := range []string{first, second} {
		foreign := put(t, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: gpu.LicenseSecretName("foreign")},
			StringData: map[string]string{"mine": "a tenant's own"},
		})
		versions = append(versions, foreign.ResourceVersion)
	}
	log := audit(t)
	class(t, "foreign", "foreign")
	require.Eventually(t, func() bool {
		message := condition(t, "foreign", gpu.ConditionLicenseSecretMissing).Message
		return contains(message, first) && contains(message, second)
	}, pollTimeout, pollInterval, "both namespaces are named")
	assert.Equal(t, metav1.ConditionFalse, reason(t, "foreign", "CopiesBlocked").Status)
	event(t, "foreign", "CopiesBlocked")
	require.Eventually(t, func() bool {
		blocked, _ := scrape(t, `gpu_license_copier_copies_blocked{class="foreign"}`)
		return blocked == 2
	}, pollTimeout, pollInterval)
	assert.Positive(t, metric(t, "gpu_license_copier_oldest_unmet_copy_age_seconds"))

	// Over a probe and more: no write is tried.
	during := env.NewAudit(t, account) // of its own: a check may still run when Never returns
	assert.Never(t, func() bool { return verbs(t, during, first) != "" }, 13*time.Second, time.Second)
	for i, namespace := range []string{first, second} {
		assert.Equal(t, versions[i], secret(t, namespace, "foreign").ResourceVersion)
	}

	deleteSecret(t, first, gpu.LicenseSecretName("foreign"))
	freed := time.Now()
	copied(t, first, "foreign", token)
	assert.Less(t, time.Since(freed), foreignDeadline)
	assert.Equal(t, "create", verbs(t, log, first), "one write, and none tried before")
	assert.NotContains(t, condition(t, "foreign", gpu.ConditionLicenseSecretMissing).Message, first)

	// A tenant may hand the name over as well, by the label.
	patchSecret(t, second, gpu.LicenseSecretName("foreign"), `{"metadata":{"labels":{"cozystack.io/gpu-class":"foreign"}}}`)
	copied(t, second, "foreign", token)
	assert.Equal(t, "patch", verbs(t, log, second))
	reason(t, "foreign", "SecretFound")
	assert.Zero(t, metric(t, `gpu_license_copier_copies_blocked{class="foreign"}`))
}

func TestACopyThatIsTamperedWithIsPutRight(t *testing.T) {
	for name, tc := range map[string]struct {
		tamper func(t *testing.T, namespace, name string)
		writes string
	}{
		"edited": {func(t *testing.T, namespace, name string) {
			patchSecret(t, namespace, name, `{"stringData":{"client_configuration_token.tok":"edited-fake-token"}}`)
		}, "patch"},
		"key added": {func(t *testing.T, namespace, name string) {
			patchSecret(t, namespace, name, `{"stringData":{"more":"x"}}`)
		}, "patch"},
		"token removed": {func(t *testing.T, namespace, name string) {
			patchSecret(t, namespace, name, `{"data":null}`)
		}, "patch"},
		"label value changed": {func(t *testing.T, namespace, name string) {
			patchSecret(t, namespace, name, `{"metadata":{"labels":{"cozystack.io/gpu-class":"no-such-class"}}}`)
		}, "patch"},
		"deleted": {func(t *testing.T, namespace, name string) { deleteSecret(t, namespace, name) }, "create"},
		"made immutable": {func(t *testing.T, namespace, name string) {
			patchSecret(t, namespace, name, `{"immutable":true}`)
		}, "delete create"},
		"replaced by another type": {func(t *testing.T, namespace, name string) {
			// Deleted under the label and created with it, between two events
			// that cannot be told apart from one: the service is stopped.
			process := service.Replicas[0].Process
			require.NoError(t, process.Stop(time.Minute))
			deleteSecret(t, namespace, name)
			put(t, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{gpu.LabelGPUClass: "tampered"}},
				Type:       "example.com/other",
				Data:       map[string][]byte{gpu.LicenseTokenKey: []byte(token)},
			})
			require.NoError(t, env.Cluster.Restart(context.WithoutCancel(t.Context()), process))
		}, "delete create"},
	} {
		t.Run(name, func(t *testing.T) {
			source(t, "tampered", token)
			class(t, "tampered", "tampered")
			namespace := env.Namespace(t, entitled)
			copied(t, namespace, "tampered", token)
			log := audit(t)
			tc.tamper(t, namespace, gpu.LicenseSecretName("tampered"))
			require.Eventually(t, func() bool { return verbs(t, log, namespace) == tc.writes }, pollTimeout, pollInterval, tc.writes)
			copied(t, namespace, "tampered", token)
		})
	}
}

func TestTheEndOfACopyThatAFinalizerHoldsIsAwaited(t *testing.T) {
	source(t, "finalized", token)
	class(t, "finalized", "finalized")
	namespace := env.Namespace(t, entitled)
	name := copied(t, namespace, "finalized", token).Name
	log := audit(t)
	patchSecret(t, namespace, name, `{"immutable":true,"metadata":{"finalizers":["example.com/keep"]}}`)
	require.Eventually(t, func() bool { return verbs(t, log, namespace) == "delete" }, pollTimeout, pollInterval)
	assert.Equal(t, "delete", verbs(t, log, namespace), "its name is not free")
	patchSecret(t, namespace, name, `{"metadata":{"finalizers":null}}`)
	copied(t, namespace, "finalized", token)
	assert.Equal(t, "delete create", verbs(t, log, namespace))
}

func TestOthersLabelsAndAnnotationsOnACopyStay(t *testing.T) {
	source(t, "decorated", token)
	class(t, "decorated", "decorated")
	namespace := env.Namespace(t, entitled)
	before := copied(t, namespace, "decorated", token)
	log := audit(t)
	patchSecret(t, namespace, before.Name, `{"metadata":{"labels":{"example.com/a":"b"},"annotations":{"example.com/c":"d"}}}`)
	assert.Empty(t, verbs(t, log, namespace))
	patchSecret(t, gpu.LicenseSecretNamespace, "decorated", `{"stringData":{"client_configuration_token.tok":"another-fake-token"}}`)
	after := copied(t, namespace, "decorated", "another-fake-token")
	assert.Equal(t, "b", after.Labels["example.com/a"])
	assert.Equal(t, "d", after.Annotations["example.com/c"])
}

func TestACopyWhoseLabelIsRemovedIsForeignFromThenOn(t *testing.T) {
	source(t, "unlabelled", token)
	object := class(t, "unlabelled", "unlabelled")
	namespace := env.Namespace(t, entitled)
	name := copied(t, namespace, "unlabelled", token).Name
	reason(t, "unlabelled", "SecretFound")
	log := audit(t)
	taken := patchSecret(t, namespace, name, `{"metadata":{"labels":{"cozystack.io/gpu-class":null}}}`)
	assert.Contains(t, reason(t, "unlabelled", "CopiesBlocked").Message, namespace)
	event(t, "unlabelled", "CopiesBlocked")
	patchSecret(t, gpu.LicenseSecretNamespace, "unlabelled", `{"stringData":{"client_configuration_token.tok":"another-fake-token"}}`)
	assert.Empty(t, verbs(t, log, namespace))
	require.NoError(t, env.Dynamic.Resource(gpuclasses).Delete(t.Context(), object.GetName(), metav1.DeleteOptions{}))
	label(t, namespace, `"false"`)
	assert.Empty(t, verbs(t, log, namespace))
	assert.Equal(t, taken.ResourceVersion, secret(t, namespace, "unlabelled").ResourceVersion)
}

func TestALabelledSecretOfAnotherNameIsNoneOfOurs(t *testing.T) {
	namespace := env.Namespace(t, entitled)
	log := audit(t)
	mine := put(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "mine", Labels: map[string]string{gpu.LabelGPUClass: "no-such-class"},
	}})
	stale := put(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "gpu-license-stale", Labels: map[string]string{gpu.LabelGPUClass: "no-such-class"},
	}})
	gone(t, namespace, "stale")
	assert.Equal(t, "delete", verbs(t, log, namespace), "a stale copy goes")
	_, err := env.Kube.CoreV1().Secrets(namespace).Get(t.Context(), mine.Name, metav1.GetOptions{})
	assert.NoError(t, err)
	assert.NotEqual(t, mine.UID, stale.UID)
}

func TestATerminatingNamespaceIsLeftAlone(t *testing.T) {
	source(t, "terminating", token)
	class(t, "terminating", "terminating")
	namespace := env.Namespace(t, entitled)
	// A finalizer keeps the namespace from going while the copy is gone.
	keeper := put(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "keeper", Finalizers: []string{"example.com/keep"}}})
	t.Cleanup(func() {
		_, err := env.Kube.CoreV1().Secrets(namespace).Patch(context.WithoutCancel(t.Context()), keeper.Name, types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	})
	copied(t, namespace, "terminating", token)
	log := audit(t)
	require.NoError(t, env.Kube.CoreV1().Namespaces().Delete(t.Context(), namespace, metav1.DeleteOptions{}))
	gone(t, namespace, "terminating")
	patchSecret(t, gpu.LicenseSecretNamespace, "terminating", `{"stringData":{"client_configuration_token.tok":"another-fake-token"}}`)
	for _, write := range log.Settled(t) {
		assert.NotEqual(t, namespace, write.Namespace, "%+v", write)
	}
	assert.NotContains(t, condition(t, "terminating", gpu.ConditionLicenseSecretMissing).Message, namespace)
}
