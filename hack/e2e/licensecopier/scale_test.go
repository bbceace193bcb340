// SPDX-License-Identifier: Apache-2.0

package licensecopier

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"cozystack.io/gpu/hack/e2e/suite"
	"cozystack.io/gpu/pkg/gpu"
)

const (
	scaleClasses  = 3
	scaleWorkers  = 8 // the service's default
	unrelatedSize = 100 << 10
	tokenSize     = 3 << 10 // about what a real one has
)

// parallel calls do for each number below n, scaleWorkers at once.
func parallel(t testing.TB, n int, do func(i int) error) time.Duration {
	t.Helper()
	start := time.Now()
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, scaleWorkers)
	for range scaleWorkers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := do(i); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	require.NoError(t, <-errs)
	return time.Since(start)
}

// BenchmarkFanOut measures how copies come to be, change and are found again
// in b's number of namespaces. It is run once for each size.
func BenchmarkFanOut(b *testing.B) {
	for _, count := range []int{200, 2000} {
		b.Run(strconv.Itoa(count), func(b *testing.B) { fanOut(b, count) })
	}
}

func fanOut(b *testing.B, count int) {
	if b.N > 1 {
		b.Fatal("run it with -benchtime 1x")
	}
	ctx := context.WithoutCancel(b.Context())
	process := service.Replicas[0].Process
	namespaces := make([]string, count)
	labels := map[string]string{gpu.LabelNamespaceVGPU: gpu.LabelValueTrue}
	core := env.Kube.CoreV1()
	parallel(b, count, func(i int) error {
		namespaces[i] = fmt.Sprintf("scale-%d-%d", count, i)
		_, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaces[i], Labels: labels}}, metav1.CreateOptions{})
		return err
	})
	noise := bytes.Repeat([]byte("x"), unrelatedSize)
	parallel(b, count, func(i int) error {
		_, err := core.Secrets(namespaces[i]).Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "unrelated"}, Data: map[string][]byte{"noise": noise},
		}, metav1.CreateOptions{})
		return err
	})
	licence := strings.Repeat("not-a-real-token", tokenSize/16)
	copies := count * scaleClasses

	names := make([]string, scaleClasses)
	for i := range names {
		names[i] = fmt.Sprintf("scale-%d", i)
		source(b, names[i], licence)
	}

	// The bare loop makes the same copies by the same account, while the
	// service does not run.
	require.NoError(b, process.Stop(time.Minute))
	kubeconfig, err := env.Cluster.KubeconfigFor(ctx, accountNamespace, accountName)
	require.NoError(b, err)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(b, err)
	config.QPS, config.ContentType = -1, "application/vnd.kubernetes.protobuf"
	bareClient, err := kubernetes.NewForConfig(config)
	require.NoError(b, err)
	bare := parallel(b, copies, func(i int) error {
		class := names[i%scaleClasses]
		_, err := bareClient.CoreV1().Secrets(namespaces[i/scaleClasses]).Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: gpu.LicenseSecretName(class), Labels: map[string]string{gpu.LabelGPUClass: class}},
			Data:       map[string][]byte{gpu.LicenseTokenKey: []byte(licence)},
		}, metav1.CreateOptions{})
		return err
	})
	parallel(b, copies, func(i int) error {
		return bareClient.CoreV1().Secrets(namespaces[i/scaleClasses]).Delete(ctx, gpu.LicenseSecretName(names[i%scaleClasses]), metav1.DeleteOptions{})
	})
	require.NoError(b, process.Start())
	require.NoError(b, env.Cluster.WaitReady(ctx, process))

	log := audit(b)
	wait := func(verb string, n int) {
		b.Helper()
		require.Eventually(b, func() bool { return len(secretWrites(b, log, verb)) >= n }, 10*time.Minute, 100*time.Millisecond, "%s", verb)
	}
	start := time.Now()
	for _, name := range names {
		class(b, name, name)
	}
	wait("create", copies)
	took := time.Since(start)
	log.Settled(b)
	require.Equal(b, copies, len(secretWrites(b, log, "")), "every copy is written once")
	b.ReportMetric(bare.Seconds(), "bare-s")
	b.ReportMetric(took.Seconds(), "fan-out-s")
	b.ReportMetric(took.Seconds()/bare.Seconds(), "fan-out/bare")
	b.ReportMetric(float64(len(secretWrites(b, log, ""))), "writes")
	b.ReportMetric(suite.Memory(b, process.Pid(), "VmRSS"), "MiB")
	b.ReportMetric(suite.Memory(b, process.Pid(), "VmHWM"), "peak-MiB")

	log = audit(b)
	require.NoError(b, process.Stop(time.Minute))
	start = time.Now()
	require.NoError(b, process.Start())
	require.Eventually(b, func() bool {
		total := 0.0
		for _, name := range names {
			value, found := scrape(b, fmt.Sprintf("gpu_license_copier_copies_present{class=%q}", name))
			if found {
				total += value
			}
		}
		return int(total) == copies
	}, 5*time.Minute, 20*time.Millisecond)
	b.ReportMetric(time.Since(start).Seconds(), "restart-s")
	require.Empty(b, log.Settled(b), "a restart writes nothing")
	b.ReportMetric(suite.Memory(b, process.Pid(), "VmRSS"), "restarted-MiB")
	b.ReportMetric(suite.Memory(b, process.Pid(), "VmHWM"), "restarted-peak-MiB")

	log = audit(b)
	start = time.Now()
	_, err = core.Secrets(gpu.LicenseSecretNamespace).Patch(ctx, names[0], "application/merge-patch+json",
		[]byte(`{"stringData":{"client_configuration_token.tok":"another-fake-token"}}`), metav1.PatchOptions{})
	require.NoError(b, err)
	wait("patch", count)
	b.ReportMetric(time.Since(start).Seconds(), "rotation-s")
	log.Settled(b)
	require.Equal(b, count, len(secretWrites(b, log, "")), "every copy of the one class is written once")
	b.ReportMetric(0, "ns/op")

	for _, name := range names {
		env.Delete(b, suite.GPUClasses, suite.Object(b, "{apiVersion: cozystack.io/v1alpha1, kind: GPUClass, metadata: {name: %s}}", name))
	}
	wait("delete", copies)
	parallel(b, count, func(i int) error { // the next size starts anew
		return core.Namespaces().Delete(ctx, namespaces[i], metav1.DeleteOptions{})
	})
}

// secretWrites returns the writes to Secrets with that verb, or any.
func secretWrites(t testing.TB, log *suite.Audit, verb string) []suite.Write {
	t.Helper()
	var writes []suite.Write
	for _, write := range log.Writes(t) {
		if write.Resource == "secrets" && (verb == "" || write.Verb == verb) {
			require.Less(t, write.Code, 300, "%+v", write)
			writes = append(writes, write)
		}
	}
	return writes
}
