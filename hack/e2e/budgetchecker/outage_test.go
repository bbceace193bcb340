// SPDX-License-Identifier: Apache-2.0

package budgetchecker

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestGPUWritesFailClosedWhileAllReplicasAreDown(t *testing.T) {
	x := tenant(t, "tenant-root", total+": 3")
	require.NoError(t, vm(t, x, "kept", 1))
	require.NoError(t, vm(t, x, "deleted", 1))
	published(t, x, total, pool{limit: 3, used: 2, free: 1})
	for _, replica := range service.Replicas {
		require.NoError(t, replica.Kill())
	}
	unanswered := func(err error) { assert.True(t, apierrors.IsInternalError(err), "%v", err) }
	unanswered(vm(t, x, "new", 1))
	unanswered(patch(t, x, "kept", `{"metadata":{"labels":{"edited":"true"}}}`))
	unanswered(rebudget(t, "tenant-root", x, `{"`+total+`":100}`))
	unanswered(create(t, nodePools, x, "KubernetesNodes", "new", "{gpus: [{className: a, count: 1}]}"))
	require.NoError(t, create(t, vmInstances, x, "VMInstance", "plain", "{cpu: 2}"))
	_, err := client(vmInstances, x).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	remove(t, vmInstances, x, "deleted")

	for _, replica := range service.Replicas {
		require.NoError(t, replica.Start())
	}
	for _, replica := range service.Replicas {
		require.NoError(t, env.Cluster.WaitReady(t.Context(), replica.Process))
	}
	require.Eventually(t, func() bool { return vm(t, x, "two", 2) == nil }, timeout, interval, "what was deleted in the meantime is free")
	refused(t, vm(t, x, "more", 1), total)
}

// A replica that stands still sees late what the others admit, and answers late
// what it was asked.
func TestReplicaThatStoodStillDoesNotOverspend(t *testing.T) {
	x := tenant(t, "tenant-root", total+": 10")
	late := service.Replicas[0]
	gone := make(chan struct{})
	concurrently(clients, 100, func(i int) {
		if i == 5 {
			assert.NoError(t, syscall.Kill(late.Pid(), syscall.SIGSTOP))
			time.AfterFunc(5*time.Second, func() {
				defer close(gone)
				assert.NoError(t, syscall.Kill(late.Pid(), syscall.SIGCONT))
			})
		}
		// What the API server asked the stopped replica may time out.
		if err := vm(t, x, fmt.Sprintf("vm%d", i), 1); err != nil && !apierrors.IsInternalError(err) {
			assert.True(t, honest(err), "%v", err)
		}
	})
	<-gone
	stored := units(t, x)[total]
	assert.LessOrEqual(t, stored, int64(10))
	response := ask(t, late, createReview(x, "late", 10))
	assert.False(t, response.Allowed)
	require.Eventually(t, func() bool {
		for i := range 10 {
			_ = vm(t, x, fmt.Sprintf("again%d", i), 1)
		}
		stored := units(t, x)[total]
		assert.LessOrEqual(t, stored, int64(10))
		return stored == 10
	}, 2*time.Minute, time.Second)
}
