// SPDX-License-Identifier: Apache-2.0

package budgetchecker

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// slowWebhook has the API server ask, of each VMInstance in the namespace whose
// name begins with slow, a webhook that answers once release is closed, and
// refuses those whose name ends with refused.
func slowWebhook(t testing.TB, namespace string, release <-chan struct{}) {
	t.Helper()
	certs := t.TempDir()
	require.NoError(t, env.Cluster.IssueServingCert(certs))
	cert, err := tls.LoadX509KeyPair(filepath.Join(certs, "tls.crt"), filepath.Join(certs, "tls.key"))
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if json.NewDecoder(r.Body).Decode(&review) != nil || review.Request == nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		if strings.HasPrefix(review.Request.Name, "slow") {
			<-release
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: !strings.HasSuffix(review.Request.Name, "refused")}
		review.Request = nil
		_ = json.NewEncoder(w).Encode(review)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	server.StartTLS()
	t.Cleanup(server.Close)

	fail, none, seconds := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone, int32(30)
	configurations := env.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err = configurations.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "slow-" + namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:                    "slow.example.com",
			AdmissionReviewVersions: []string{"v1"},
			ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: &server.URL, CABundle: env.Cluster.CABundle()},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{"apps.cozystack.io"}, APIVersions: []string{"v1alpha1"}, Resources: []string{"vminstances"}},
			}},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": namespace}},
			FailurePolicy:     &fail, SideEffects: &none, TimeoutSeconds: &seconds,
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = configurations.Delete(context.WithoutCancel(t.Context()), "slow-"+namespace, metav1.DeleteOptions{})
	})
	require.Eventually(t, func() bool { // the API server asks it from now on
		return dryRun(t, namespace, "refused", 1) != nil
	}, timeout, interval)
}

// While another webhook thinks, what was admitted is held; if it refuses, that
// is let go, though nobody says so.
func TestSlowWebhook(t *testing.T) {
	t.Parallel()
	x := tenant(t, "tenant-root", total+": 2")
	release := make(chan struct{})
	slowWebhook(t, x, release)
	results := map[string]chan error{"slow-stored": make(chan error, 1), "slow-refused": make(chan error, 1)}
	for name, result := range results {
		go func() { result <- vm(t, x, name, 1) }()
	}
	published(t, x, total, pool{limit: 2, reserved: 2})
	refused(t, vm(t, x, "quick", 1), total)
	close(release)
	assert.NoError(t, <-results["slow-stored"])
	assert.Error(t, <-results["slow-refused"])
	published(t, x, total, pool{limit: 2, used: 1, reserved: 1})
	require.Eventually(t, func() bool { return vm(t, x, "quick", 1) == nil }, 2*time.Minute, time.Second)
	refused(t, vm(t, x, "more", 1), total)
}
