// SPDX-License-Identifier: Apache-2.0

package shipping

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"cozystack.io/gpu/hack/devcluster"
	"cozystack.io/gpu/hack/e2e/suite"
)

// With all services installed and none of them running, all goes on but what
// names GPU classes.
func TestAnOutageStopsOnlyWhatNamesGPUClasses(t *testing.T) {
	install(t, target("."))
	for _, tc := range []struct {
		resource         schema.GroupVersionResource
		manifest         string
		names, namesNone string // classes
	}{
		{suite.VMIs, vmi, labelled, plain},
		{pods, pod, labelled, plain},
		{vmInstances, vmInstance, "gpus: [{className: l40s, count: 1}]", "gpus: [], running: true"},
		{tenants, tenant, `resourceQuotas: {gpu.cozystack.io/total: "1"}`, `resourceQuotas: {cpu: "1"}`},
	} {
		_, err := tryCreate(t, tc.resource, suite.Object(t, tc.manifest, tc.names))
		assert.ErrorContains(t, err, "failed calling webhook", tc.resource.Resource)
		_, err = tryCreate(t, tc.resource, suite.Object(t, tc.manifest, tc.namesNone))
		assert.NoError(t, err, tc.resource.Resource)
	}
	for _, webhook := range []string{"vmi-webhook", "pod-webhook", "budget-checker"} {
		checkRejectionsAreCounted(t, webhook+".gpu.cozystack.io")
	}
	env.Create(t, suite.GPUClasses, class(t))
	ns := env.Namespace(t, map[string]string{"namespace.cozystack.io/vgpu": "true"})
	kubectl(t, "-n", ns, "create", "secret", "generic", "x", "--from-literal=client_configuration_token.tok=not-a-real-token")
	kubectl(t, "-n", ns, "create", "deployment", "x", "--image=example.com/x")
}

// Replicas end and start again, one after the other, while objects are created.
func TestARollingRestartFailsNoAdmission(t *testing.T) {
	env.Create(t, suite.GPUClasses, class(t))
	tooMany := suite.Object(t, vmInstance, "gpus: [{className: l40s, count: 2}]")
	tooMany.SetNamespace(tenantOfOneUnit(t))
	tests := map[string]struct {
		resource schema.GroupVersionResource
		object   *unstructured.Unstructured
		judged   func(answer *unstructured.Unstructured, err error) (bool, error)
	}{
		"vmi-webhook":    {suite.VMIs, suite.Object(t, vmi, labelled), has("spec", "domain", "devices", "gpus")},
		"pod-webhook":    {pods, suite.Object(t, pod, labelled), has("spec", "tolerations")},
		"budget-checker": {vmInstances, tooMany, isRefused},
	}
	for service, tc := range tests {
		t.Run(service, func(t *testing.T) {
			s, err := env.Cluster.InstallService(t.Context(), env.Root, service, devcluster.ServiceOptions{Replicas: 2})
			require.NoError(t, err)
			t.Cleanup(func() {
				require.NoError(t, s.Stop())
				kubectl(t, "delete", "-k", target(service), "--ignore-not-found")
			})
			attempt := func() (judged bool, err error) { return tc.judged(tryCreate(t, tc.resource, tc.object)) }
			require.Eventually(t, func() bool { judged, err := attempt(); return err == nil && judged }, timeout, interval)

			// Four at once and then four again: each connection that the API server
			// keeps is used all the time.
			var created atomic.Int64
			var creator sync.WaitGroup
			done := make(chan struct{})
			creator.Go(func() {
				for {
					select {
					case <-done:
						return
					case <-time.After(5 * time.Millisecond):
					}
					var four sync.WaitGroup
					for range 4 {
						four.Go(func() {
							judged, err := attempt()
							assert.NoError(t, err)
							assert.True(t, judged, "admitted without the webhook")
							created.Add(1)
						})
					}
					four.Wait()
				}
			})
			for range 2 {
				for _, replica := range s.Replicas {
					assert.NoError(t, env.Cluster.Restart(t.Context(), replica.Process))
					// Until the balancer has surely heard that it is back.
					before := created.Load()
					assert.Eventually(t, func() bool { return created.Load() >= before+20 }, timeout, interval, "creations go on")
				}
			}
			close(done)
			creator.Wait()
			t.Logf("%d creations during four restarts", created.Load())
		})
	}
}

// has returns whether an object that was created holds, in the list, what the
// webhook gives it.
func has(list ...string) func(*unstructured.Unstructured, error) (bool, error) {
	return func(created *unstructured.Unstructured, err error) (bool, error) {
		if err != nil {
			return false, err
		}
		items, _, err := unstructured.NestedSlice(created.Object, list...)
		for _, item := range items {
			if m := item.(map[string]any); m["deviceName"] == "nvidia.com/L40S" || m["key"] == "nvidia.com/gpu" {
				return true, err
			}
		}
		return false, err
	}
}

// isRefused returns whether the creation was refused because of the budget of
// tenantOfOneUnit.
func isRefused(_ *unstructured.Unstructured, err error) (bool, error) {
	if err != nil && strings.Contains(err.Error(), "but only 1 are free in the budget") {
		return true, nil
	}
	return false, err
}
