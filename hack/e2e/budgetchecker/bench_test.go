// SPDX-License-Identifier: Apache-2.0

package budgetchecker

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"cozystack.io/gpu/hack/e2e/suite"
)

const (
	benchTenants = 500
	benchLimit   = 1_000_000
	// sequential writes give the latency, concurrent ones the throughput.
	sequentialWrites = 300
	concurrentWrites = 400
)

// way is what a VMInstance meets when it is created.
type way string

const (
	plain   way = "plain"   // no webhook: the object has no GPU entries
	noop    way = "noop"    // a webhook that does nothing, by the object's label
	checker way = "checker" // budget-checker
)

var ways = []way{plain, noop, checker}

// bench is one budget that many tenants share.
type bench struct {
	root    string
	tenants []string
	stored  int           // VMs in them
	called  *atomic.Int64 // reviews of the webhook that does nothing
	// medians are the latencies of the size before, ratio is that of budget-checker
	// to the webhook that does nothing.
	medians map[way]time.Duration
	ratio   float64
}

// BenchmarkWrite measures how long the creation of a VMInstance takes with so
// many stored, and what budget-checker adds. The ways take turns, so that what
// else the machine does hits all of them. It is run once.
func BenchmarkWrite(b *testing.B) {
	env.Create(b, suite.GPUClasses, suite.Object(b, "{apiVersion: cozystack.io/v1alpha1, kind: GPUClass, metadata: {name: a}, spec: {mode: Passthrough, resourceName: example.com/a}}"))
	root := namedTenant(b, "tenant-root", "bench", fmt.Sprintf("%s: %d", total, benchLimit))
	x := &bench{root: root, tenants: make([]string, benchTenants), called: serveNoop(b), medians: map[way]time.Duration{}}
	concurrently(clients, benchTenants, func(i int) {
		name := fmt.Sprintf("t%d", i)
		x.tenants[i] = root + "-" + name
		assert.NoError(b, declare(b, root, name, ""))
		assert.NoError(b, createNamespace(b.Context(), x.tenants[i]))
	})
	require.False(b, b.Failed())
	for _, count := range []int{100, 10_000} {
		b.Run(strconv.Itoa(count), func(b *testing.B) { x.measure(b, count) })
	}
}

func (x *bench) measure(b *testing.B, count int) {
	if b.N > 1 {
		b.Fatal("run it with -benchtime 1x")
	}
	b.ReportMetric(0, "ns/op")
	x.fill(b, count)
	x.settled(b)

	process := service.Replicas[0].Process
	require.NoError(b, env.Cluster.Restart(b.Context(), process))
	b.ReportMetric(suite.Memory(b, process.Pid(), "VmRSS"), "restarted-MiB")
	b.ReportMetric(suite.Memory(b, process.Pid(), "VmHWM"), "restarted-peak-MiB")
	x.latency(b)
	x.settled(b)
	x.throughput(b)
	x.settled(b)
	b.ReportMetric(suite.Memory(b, process.Pid(), "VmRSS"), "MiB")
	b.ReportMetric(suite.Memory(b, process.Pid(), "VmHWM"), "peak-MiB")
}

// fill creates VMs until there are so many, past the webhook: that is faster.
func (x *bench) fill(b *testing.B, count int) {
	configurations := env.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	configuration, err := configurations.Get(b.Context(), "budget-checker.gpu.cozystack.io", metav1.GetOptions{})
	require.NoError(b, err)
	require.NoError(b, configurations.Delete(b.Context(), configuration.Name, metav1.DeleteOptions{}))
	concurrently(clients, count-x.stored, func(i int) {
		assert.NoError(b, x.create(b, x.object(b, checker, "stored", x.stored+i)))
	})
	require.False(b, b.Failed())
	x.stored = count
	configuration.ResourceVersion = ""
	_, err = configurations.Create(b.Context(), configuration, metav1.CreateOptions{})
	require.NoError(b, err)
	require.Eventually(b, func() bool {
		return apierrors.IsForbidden(dryRun(b, x.root, "probe", benchLimit+1))
	}, timeout, interval)
}

// latency creates VMs one after the other, and deletes each at once.
func (x *bench) latency(b *testing.B) {
	called, took := x.called.Load(), map[way][]time.Duration{}
	for i := range sequentialWrites {
		for _, way := range ways {
			object := x.object(b, way, "sequential", i)
			start := time.Now()
			err := x.create(b, object)
			took[way] = append(took[way], time.Since(start))
			require.NoError(b, err)
			remove(b, vmInstances, object.GetNamespace(), object.GetName())
		}
	}
	require.EqualValues(b, sequentialWrites, x.called.Load()-called, "reviews of the webhook that does nothing")
	for _, way := range ways {
		slices.Sort(took[way])
		median := took[way][sequentialWrites/2]
		b.ReportMetric(milliseconds(median), string(way)+"-median-ms")
		b.ReportMetric(milliseconds(took[way][sequentialWrites*99/100]), string(way)+"-p99-ms")
		if before := x.medians[way]; before > 0 {
			b.ReportMetric(float64(median)/float64(before), string(way)+"-growth")
		}
		x.medians[way] = median
	}
	// What the rest of the machine does at that time is left out of these.
	ratio := float64(x.medians[checker]) / float64(x.medians[noop])
	b.ReportMetric(ratio, "checker/noop")
	if x.ratio > 0 {
		b.ReportMetric(ratio/x.ratio, "checker/noop-growth")
	}
	x.ratio = ratio
}

// throughput creates VMs by many clients at once, and deletes them afterwards.
func (x *bench) throughput(b *testing.B) {
	for _, way := range ways {
		objects := make([]*unstructured.Unstructured, concurrentWrites)
		for i := range objects {
			objects[i] = x.object(b, way, "concurrent", i)
		}
		before := readCounters(b)
		start := time.Now()
		concurrently(clients, len(objects), func(i int) { assert.NoError(b, x.create(b, objects[i])) })
		took := time.Since(start)
		require.False(b, b.Failed())
		b.ReportMetric(concurrentWrites/took.Seconds(), string(way)+"-writes/s")
		if way == checker {
			after := readCounters(b)
			for i := range after.admitted {
				require.Greater(b, after.admitted[i], before.admitted[i], "replica %d decided nothing", i)
			}
			b.ReportMetric((after.written-before.written)/concurrentWrites, "ledger-writes/write")
			b.ReportMetric((after.conflicts-before.conflicts)/concurrentWrites, "ledger-conflicts/write")
		}
		concurrently(clients, len(objects), func(i int) {
			assert.NoError(b, client(vmInstances, objects[i].GetNamespace()).Delete(b.Context(), objects[i].GetName(), metav1.DeleteOptions{}))
		})
		require.False(b, b.Failed())
	}
}

// settled waits until the budget shows the stored VMs and nothing else.
func (x *bench) settled(b *testing.B) {
	b.Helper()
	published(b, x.root, total, pool{limit: benchLimit, used: int64(x.stored), free: benchLimit - int64(x.stored)})
	require.False(b, b.Failed())
}

// object returns a VMInstance about as large as real ones are, of one unit.
func (x *bench) object(b *testing.B, way way, name string, i int) *unstructured.Unstructured {
	b.Helper()
	object := suite.Object(b, `
apiVersion: apps.cozystack.io/v1alpha1
kind: VMInstance
metadata: {name: %s-%s-%d, namespace: %s, labels: {way: %s}}
spec:
  runStrategy: Always
  instanceType: u1.xlarge
  instanceProfile: ubuntu
  disks: [{name: system}, {name: data}]
  cloudInit: %q
`, way, name, i, x.tenants[i%len(x.tenants)], way, "#cloud-config\n"+strings.Repeat("# as people write it\n", 50))
	if way == checker {
		gpus := []any{map[string]any{"className": "a", "count": int64(1)}}
		require.NoError(b, unstructured.SetNestedSlice(object.Object, gpus, "spec", "gpus"))
	}
	return object
}

func (x *bench) create(b *testing.B, object *unstructured.Unstructured) error {
	_, err := client(vmInstances, object.GetNamespace()).Create(b.Context(), object, metav1.CreateOptions{})
	return err
}

// serveNoop has a webhook in this process admit what is labelled for it, and
// returns the number of its reviews.
func serveNoop(b *testing.B) *atomic.Int64 {
	b.Helper()
	certs := filepath.Join(b.TempDir(), "noop")
	require.NoError(b, env.Cluster.IssueServingCert(certs))
	cert, err := tls.LoadX509KeyPair(filepath.Join(certs, "tls.crt"), filepath.Join(certs, "tls.key"))
	require.NoError(b, err)
	var called atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := admissionv1.AdmissionReview{}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		called.Add(1)
		review.Request, review.Response = nil, &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		_ = json.NewEncoder(w).Encode(review)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	server.StartTLS()
	b.Cleanup(server.Close)

	fail, none := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "noop.example.com"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "noop.example.com", AdmissionReviewVersions: []string{"v1"}, FailurePolicy: &fail, SideEffects: &none,
			ClientConfig:   admissionregistrationv1.WebhookClientConfig{URL: &server.URL, CABundle: env.Cluster.CABundle()},
			ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"way": string(noop)}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{vmInstances.Group}, APIVersions: []string{vmInstances.Version}, Resources: []string{vmInstances.Resource},
				},
			}},
		}},
	}
	configurations := env.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err = configurations.Create(b.Context(), configuration, metav1.CreateOptions{})
	require.NoError(b, err)
	probe := suite.Object(b, "{apiVersion: apps.cozystack.io/v1alpha1, kind: VMInstance, metadata: {name: probe, labels: {way: %s}}}", noop)
	require.Eventually(b, func() bool {
		_, err := client(vmInstances, "tenant-root").Create(b.Context(), probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && called.Load() > 0
	}, timeout, interval)
	return &called
}

// counters are what the replicas have counted: admitted reviews of each, and
// writes of GPUBudgets and their conflicts of all.
type counters struct {
	admitted           []float64
	written, conflicts float64
}

func readCounters(b *testing.B) counters {
	b.Helper()
	c := counters{admitted: metrics(b, `gpu_budget_checker_review_duration_seconds_count{outcome="admitted"}`)}
	for _, value := range metrics(b, `gpu_budget_checker_ledger_writes_total{result="success"}`) {
		c.written += value
	}
	for _, value := range metrics(b, `gpu_budget_checker_ledger_writes_total{result="conflict"}`) {
		c.conflicts += value
	}
	return c
}

// metrics returns the value of the line of /metrics of each replica, 0 if there
// is none.
func metrics(b *testing.B, name string) []float64 {
	b.Helper()
	values := make([]float64, len(service.Replicas))
	for i, replica := range service.Replicas {
		response, err := http.Get("http://" + replica.MetricsAddr + "/metrics")
		require.NoError(b, err)
		for scanner := bufio.NewScanner(response.Body); scanner.Scan(); {
			if value, found := strings.CutPrefix(scanner.Text(), name+" "); found {
				values[i], err = strconv.ParseFloat(value, 64)
				require.NoError(b, err)
			}
		}
		require.NoError(b, response.Body.Close())
	}
	return values
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }
