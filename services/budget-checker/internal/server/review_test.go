// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type admitFunc func(context.Context, *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse

func (f admitFunc) Admit(ctx context.Context, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	return f(ctx, r)
}

func allow(context.Context, *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Allowed: true}
}

func post(t *testing.T, r *reviewer, target, body string) *httptest.ResponseRecorder {
	t.Helper()
	recorder := httptest.NewRecorder()
	r.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader(body)))
	return recorder
}

const reviewBody = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1","namespace":"tenant-a","name":"vm-1","operation":"CREATE"}}`

func TestAnswerCarriesTheRequestsUID(t *testing.T) {
	recorder := post(t, newReviewer(admitFunc(allow), zap.NewNop()), Path, reviewBody)
	require.Equal(t, http.StatusOK, recorder.Code)
	review := admissionv1.AdmissionReview{}
	require.NoError(t, json.Unmarshal(recorder.Body.Bytes(), &review))
	assert.Equal(t, "admission.k8s.io/v1", review.APIVersion)
	assert.Equal(t, "AdmissionReview", review.Kind)
	assert.EqualValues(t, "u-1", review.Response.UID)
	assert.True(t, review.Response.Allowed)
}

func TestUnreadableRequestsAreBadRequests(t *testing.T) {
	r := newReviewer(admitFunc(allow), zap.NewNop())
	for name, body := range map[string]string{
		"no JSON":         `nonsense`,
		"no request":      `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`,
		"another version": strings.Replace(reviewBody, "k8s.io/v1", "k8s.io/v1beta1", 1),
		"another kind":    strings.Replace(reviewBody, "AdmissionReview", "Pod", 1),
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, http.StatusBadRequest, post(t, r, Path, body).Code)
		})
	}
	recorder := httptest.NewRecorder()
	r.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, Path, nil))
	assert.Equal(t, http.StatusMethodNotAllowed, recorder.Code)
}

func TestBodyIsLimited(t *testing.T) {
	r := newReviewer(admitFunc(allow), zap.NewNop())
	recorder := post(t, r, Path, reviewBody+strings.Repeat(" ", maxReviewBytes))
	assert.Equal(t, http.StatusRequestEntityTooLarge, recorder.Code)
}

func TestPanicIsAnsweredAndCounted(t *testing.T) {
	before := testutil.ToFloat64(panics)
	r := newReviewer(admitFunc(func(context.Context, *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		panic("broken")
	}), zap.NewNop())
	assert.Equal(t, http.StatusInternalServerError, post(t, r, Path, reviewBody).Code)
	assert.Equal(t, before+1, testutil.ToFloat64(panics))
}

func TestDeadlineLiesBeforeTheAnnouncedTimeout(t *testing.T) {
	for query, want := range map[string]time.Duration{
		"?timeout=5s": 4500 * time.Millisecond,
		"":            9500 * time.Millisecond,
		"?timeout=x":  9500 * time.Millisecond,
		"?timeout=0s": 9500 * time.Millisecond,
	} {
		var left time.Duration
		r := newReviewer(admitFunc(func(ctx context.Context, request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			deadline, ok := ctx.Deadline()
			require.True(t, ok)
			left = time.Until(deadline)
			return allow(ctx, request)
		}), zap.NewNop())
		post(t, r, Path+query, reviewBody)
		assert.LessOrEqual(t, left, want, query)
		assert.Greater(t, left, want-2*time.Second, query)
	}
}

func TestEachDecisionIsLoggedOnceWithItsReason(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	before := testutil.ToFloat64(refusals.WithLabelValues("OverBudget"))
	r := newReviewer(admitFunc(func(context.Context, *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{
			Code: 403, Message: "nothing left", Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "OverBudget"}}},
		}}
	}), zap.New(core))
	post(t, r, Path, reviewBody)
	require.Equal(t, 1, logs.Len())
	fields := logs.All()[0].ContextMap()
	assert.Contains(t, fields, "duration")
	delete(fields, "duration")
	assert.Equal(t, map[string]any{
		"uid": "u-1", "namespace": "tenant-a", "name": "vm-1", "outcome": "refused", "reason": "OverBudget", "message": "nothing left",
	}, fields)
	assert.Equal(t, before+1, testutil.ToFloat64(refusals.WithLabelValues("OverBudget")))
}

func TestOutcomesTellARefusalFromAnAnswerThatMayChangeByItself(t *testing.T) {
	for code, want := range map[int32]string{
		http.StatusForbidden:           "refused",
		http.StatusUnprocessableEntity: "refused",
		http.StatusTooManyRequests:     "busy",
		http.StatusServiceUnavailable:  "unavailable",
		http.StatusInternalServerError: "failed",
		http.StatusGatewayTimeout:      "failed",
	} {
		assert.Equal(t, want, outcome(&admissionv1.AdmissionResponse{Result: &metav1.Status{Code: code}}), code)
	}
	assert.Equal(t, "admitted", outcome(&admissionv1.AdmissionResponse{Allowed: true}))
}

func TestObjectsThatAreYetToBeNamedAreLoggedByTheirPrefix(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	r := newReviewer(admitFunc(allow), zap.New(core))
	post(t, r, Path, strings.Replace(reviewBody, `"name":"vm-1"`, `"object":{"metadata":{"generateName":"vm-"}}`, 1))
	require.Equal(t, 1, logs.Len())
	assert.Equal(t, "vm-*", logs.All()[0].ContextMap()["name"])
}

func TestReviewsBeyondTheBoundWaitForTheirTurn(t *testing.T) {
	r := newReviewer(admitFunc(allow), zap.NewNop())
	for range maxInFlight {
		r.slots <- struct{}{}
	}
	assert.Equal(t, http.StatusServiceUnavailable, post(t, r, Path+"?timeout=600ms", reviewBody).Code)
	time.AfterFunc(50*time.Millisecond, func() { <-r.slots })
	assert.Equal(t, http.StatusOK, post(t, r, Path, reviewBody).Code)
}
