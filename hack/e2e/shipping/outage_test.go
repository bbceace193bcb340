// SPDX-License-Identifier: Apache-2.0

package shipping

import (
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

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

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
	env.Create(t, suite.GPUClasses, class(t))
	ns := env.Namespace(t, map[string]string{"namespace.cozystack.io/vgpu": "true"})
	kubectl(t, "-n", ns, "create", "secret", "generic", "x", "--from-literal=client_configuration_token.tok=not-a-real-token")
	kubectl(t, "-n", ns, "create", "deployment", "x", "--image=example.com/x")
}

// Replicas end and start again, one after the other, while objects are created.
func TestARollingRestartFailsNoAdmission(t *testing.T) {
	env.Create(t, suite.GPUClasses, class(t))
	tests := map[string]struct {
		resource schema.GroupVersionResource
		manifest string
		written  []string // what the webhook gives the object
	}{
		"vmi-webhook": {suite.VMIs, vmi, []string{"spec", "domain", "devices", "gpus"}},
		"pod-webhook": {pods, pod, []string{"spec", "tolerations"}},
	}
	for service, tc := range tests {
		t.Run(service, func(t *testing.T) {
			s, err := env.Cluster.InstallService(t.Context(), env.Root, service, devcluster.ServiceOptions{Replicas: 2})
			require.NoError(t, err)
			t.Cleanup(func() {
				require.NoError(t, s.Stop())
				kubectl(t, "delete", "-k", target(service), "--ignore-not-found")
			})
			wanted := suite.Object(t, tc.manifest, labelled)
			attempt := func() (untouched bool, err error) {
				object, err := tryCreate(t, tc.resource, wanted)
				if err != nil {
					return false, err
				}
				list, _, err := unstructured.NestedSlice(object.Object, tc.written...)
				for _, item := range list {
					if m := item.(map[string]any); m["deviceName"] == "nvidia.com/L40S" || m["key"] == "nvidia.com/gpu" {
						return false, err
					}
				}
				return true, err
			}
			require.Eventually(t, func() bool { untouched, err := attempt(); return err == nil && !untouched }, timeout, interval)

			var creators sync.WaitGroup
			var created atomic.Int64
			done := make(chan struct{})
			for range 4 {
				creators.Go(func() {
					for {
						select {
						case <-done:
							return
						case <-time.After(5 * time.Millisecond):
						}
						untouched, err := attempt()
						if !assert.NoError(t, err) || !assert.False(t, untouched, "admitted without the webhook") {
							return
						}
						created.Add(1)
					}
				})
			}
			for range 2 {
				for _, replica := range s.Replicas {
					before := created.Load()
					assert.NoError(t, env.Cluster.Restart(t.Context(), replica.Process))
					assert.Eventually(t, func() bool { return created.Load() >= before+20 }, timeout, interval, "creations go on")
				}
			}
			close(done)
			creators.Wait()
			t.Logf("%d creations during four restarts", created.Load())
		})
	}
}
