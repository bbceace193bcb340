// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	admissionv1 "k8s.io/api/admission/v1"
)

var (
	reviews = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "gpu",
		Subsystem: "budget_checker",
		Name:      "review_duration_seconds",
		Help:      "Time from an admission review to its answer, by outcome.",
		Buckets:   prometheus.ExponentialBuckets(0.001, 2, 14),
	}, []string{"outcome"})
	refusals = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "gpu",
		Subsystem: "budget_checker",
		Name:      "refusal_causes_total",
		Help:      "Causes of refused admission reviews, by type; one review can have several.",
	}, []string{"cause"})
	panics = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "gpu",
		Subsystem: "budget_checker",
		Name:      "panics_total",
		Help:      "Requests that ended in a panic and were answered with 500.",
	})
)

const (
	// maxReviewBytes is over twice the API server's own limit for a request
	// body (3 MiB), since a review may hold an object twice.
	maxReviewBytes = 7 << 20
	// maxInFlight bounds the reviews that are held in memory at once; further
	// ones wait. A decision may wait seconds for its budget, and must not keep
	// those of other budgets waiting: this is more than one API server has in
	// flight by default (--max-mutating-requests-inflight, 200).
	maxInFlight = 256
	// defaultTimeout stands in for the timeout that the API server announces.
	defaultTimeout = 10 * time.Second
	// answerMargin is kept off that timeout, so that a slow read still ends in
	// an answer that names it.
	answerMargin = 500 * time.Millisecond
)

// Admitter answers admission requests. The answer needs no UID.
type Admitter interface {
	Admit(ctx context.Context, request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse
}

// reviewer serves admission reviews over HTTP.
type reviewer struct {
	admitter Admitter
	log      *zap.Logger
	slots    chan struct{} // one taken for each review in flight
}

func newReviewer(admitter Admitter, log *zap.Logger) *reviewer {
	return &reviewer{admitter: admitter, log: log, slots: make(chan struct{}, maxInFlight)}
}

func (r *reviewer) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			panics.Inc()
			r.log.Error("panic while answering a review", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			http.Error(w, "internal error", http.StatusInternalServerError)
		}
	}()
	if request.Method != http.MethodPost {
		http.Error(w, "send an AdmissionReview with POST", http.StatusMethodNotAllowed)
		return
	}
	ctx, cancel := context.WithTimeout(request.Context(), timeout(request))
	defer cancel()
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		http.Error(w, "too many reviews at once", http.StatusServiceUnavailable)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, maxReviewBytes))
	if err != nil {
		code := http.StatusBadRequest
		if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
			code = http.StatusRequestEntityTooLarge
		}
		http.Error(w, fmt.Sprintf("read the review: %v", err), code)
		return
	}
	answer, err := r.answer(ctx, body)
	if err != nil {
		r.log.Warn("unreadable review", zap.Error(err))
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if _, err := w.Write(answer); err != nil {
		r.log.Warn("answer not delivered", zap.Error(err))
	}
}

// answer returns the encoded answer to an encoded review, and logs and counts
// the decision.
func (r *reviewer) answer(ctx context.Context, body []byte) ([]byte, error) {
	start := time.Now()
	review := admissionv1.AdmissionReview{}
	if err := json.Unmarshal(body, &review); err != nil {
		return nil, fmt.Errorf("decode the review: %w", err)
	}
	request := review.Request
	if review.APIVersion != admissionv1.SchemeGroupVersion.String() || review.Kind != "AdmissionReview" || request == nil {
		return nil, fmt.Errorf("expected an AdmissionReview of %s with a request, got kind %q of %q", admissionv1.SchemeGroupVersion, review.Kind, review.APIVersion)
	}
	response := r.admitter.Admit(ctx, request)
	response.UID = request.UID
	answer, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response})
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	r.record(request, response, time.Since(start))
	return answer, nil
}

func (r *reviewer) record(request *admissionv1.AdmissionRequest, response *admissionv1.AdmissionResponse, took time.Duration) {
	fields := []zap.Field{
		zap.String("uid", string(request.UID)),
		zap.String("namespace", request.Namespace),
		zap.String("name", objectName(request)),
		zap.Duration("duration", took),
	}
	reason := "Allowed"
	if !response.Allowed {
		reason = string(response.Result.Reason)
		if details := response.Result.Details; details != nil {
			causes := make([]string, len(details.Causes))
			for i, cause := range details.Causes {
				causes[i] = string(cause.Type)
				refusals.WithLabelValues(causes[i]).Inc()
			}
			reason = strings.Join(causes, ",")
		}
		fields = append(fields, zap.String("message", response.Result.Message))
	}
	outcome := outcome(response)
	reviews.WithLabelValues(outcome).Observe(took.Seconds())
	r.log.Info("review", append(fields, zap.String("outcome", outcome), zap.String("reason", reason))...)
}

// outcome sums an answer up for metrics and logs.
func outcome(response *admissionv1.AdmissionResponse) string {
	if response.Allowed {
		return "admitted"
	}
	switch code := response.Result.Code; {
	case code == http.StatusTooManyRequests:
		return "busy"
	case code == http.StatusServiceUnavailable:
		return "unavailable"
	case code >= http.StatusInternalServerError:
		return "failed"
	default:
		return "refused"
	}
}

// objectName returns the object's name, or the beginning of one that the API
// server has yet to generate, and a star.
func objectName(request *admissionv1.AdmissionRequest) string {
	if request.Name != "" {
		return request.Name
	}
	var object struct {
		Metadata struct {
			GenerateName string `json:"generateName"`
		} `json:"metadata"`
	}
	_ = json.Unmarshal(request.Object.Raw, &object) // an object that cannot be read has no name
	return object.Metadata.GenerateName + "*"
}

// timeout returns how long an answer may take, from the timeout that the API
// server announces in the request's query.
func timeout(request *http.Request) time.Duration {
	announced, err := time.ParseDuration(request.URL.Query().Get("timeout"))
	if err != nil || announced <= answerMargin {
		announced = defaultTimeout
	}
	return announced - answerMargin
}
