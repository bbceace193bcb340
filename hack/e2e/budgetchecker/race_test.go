// SPDX-License-Identifier: Apache-2.0

package budgetchecker

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cozystack.io/gpu/hack/e2e/suite"
)

const (
	clients = 20
	creates = 300
)

func dryRun(t testing.TB, namespace, name string, units int) error {
	t.Helper()
	object := suite.Object(t, "{apiVersion: apps.cozystack.io/v1alpha1, kind: VMInstance, metadata: {name: %s, namespace: %s}, spec: {gpus: [{className: a, count: %d}]}}", name, namespace, units)
	_, err := client(vmInstances, namespace).Create(t.Context(), object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// honest reports whether an error is a refusal that a client can make sense of.
func honest(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err)
}

func TestConcurrentCreatesFillABudgetExactly(t *testing.T) {
	x := tenant(t, "tenant-root", total+": 10")
	var admitted atomic.Int64
	concurrently(clients, creates, func(i int) {
		if err := vm(t, x, fmt.Sprintf("vm%d", i), 1); err == nil {
			admitted.Add(1)
		} else {
			assert.True(t, honest(err), "%v", err)
		}
	})
	assert.EqualValues(t, 10, admitted.Load())
	assert.EqualValues(t, 10, units(t, x)[total])
	published(t, x, total, pool{limit: 10, used: 10})
}

// Creates, updates and deletes of two classes, in parents and children with
// budgets of their own, while a replica is killed and started again.
func TestMixedWritesNeverOverspend(t *testing.T) {
	x := tenant(t, "tenant-root", total+": 20, "+classA+": 12")
	y := tenant(t, x, total+": 6")
	z := tenant(t, x, classB+": 4")
	all := []string{x, y, z}
	stop := make(chan struct{})
	watched := make(chan struct{})
	go func() { // no moment shows more than there is
		defer close(watched)
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				check(t, x, y, z)
			}
		}
	}()
	concurrently(clients, creates, func(i int) {
		switch i {
		case creates / 3:
			assert.NoError(t, service.Replicas[2].Kill())
		case creates * 2 / 3:
			assert.NoError(t, service.Replicas[2].Start())
		}
		namespace := all[rand.IntN(len(all))]
		name := fmt.Sprintf("vm%d", rand.IntN(12))
		class := []string{"a", "b"}[rand.IntN(2)]
		var err error
		switch rand.IntN(4) {
		case 0, 1:
			err = vmOf(t, namespace, name, class, 1+rand.IntN(3))
		case 2:
			err = patch(t, namespace, name, fmt.Sprintf(`{"spec":{"gpus":[{"className":%q,"count":%d}]}}`, class, 1+rand.IntN(4)))
		default:
			err = client(vmInstances, namespace).Delete(t.Context(), name, metav1.DeleteOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) && !apierrors.IsInternalError(err) {
			assert.True(t, honest(err), "%v", err)
		}
	})
	close(stop)
	<-watched
	check(t, x, y, z)
	require.NoError(t, env.Cluster.WaitReady(t.Context(), service.Replicas[2].Process))
}

func check(t testing.TB, x, y, z string) {
	t.Helper()
	// Lists are not of one moment, so that only what is in one namespace, or
	// cannot have moved, is summed.
	assert.LessOrEqual(t, units(t, y)[total], int64(6))
	assert.LessOrEqual(t, units(t, z)[classB], int64(4))
	sums := units(t, x)
	assert.LessOrEqual(t, sums[total], int64(14))
	assert.LessOrEqual(t, sums[classA], int64(12))
	assert.LessOrEqual(t, sums[classB], int64(16))
}

// A tenant becomes a root while VMs are created in it.
func TestTenantBecomesARootUnderLoad(t *testing.T) {
	x := tenant(t, "tenant-root", total+": 12")
	y := tenant(t, x, "")
	var rooted atomic.Bool
	var after atomic.Int64
	concurrently(clients, 100, func(i int) {
		if i == 30 {
			if assert.NoError(t, rebudget(t, x, y, `{"`+total+`":3}`)) {
				before := units(t, y)[total]
				rooted.Store(true)
				after.Store(before)
			}
		}
		known := rooted.Load()
		if err := vm(t, y, fmt.Sprintf("vm%d", i), 1); err == nil {
			assert.False(t, known && after.Load() >= 3, "admitted beyond the new budget")
		} else {
			assert.True(t, honest(err), "%v", err)
		}
	})
	assert.LessOrEqual(t, units(t, x, y)[total], int64(12))
}

func TestLedgerDeletedByHandIsRebuiltWithoutOverspending(t *testing.T) {
	t.Parallel()
	x := tenant(t, "tenant-root", total+": 3")
	require.NoError(t, vm(t, x, "two", 2))
	require.NoError(t, client(gpuBudgets, x).Delete(t.Context(), "gpu", metav1.DeleteOptions{}))
	status := suite.Status(t, vm(t, x, "early", 1))
	assert.EqualValues(t, http.StatusServiceUnavailable, status.Code, "writes in flight may have been lost")
	assert.Contains(t, status.Message, "nothing is raised until")
	published(t, x, total, pool{limit: 3, used: 2, free: 1})
	require.NoError(t, patch(t, x, "two", `{"spec":{"gpus":[{"className":"a","count":1}]}}`), "what raises nothing passes")
	require.Eventually(t, func() bool { return vm(t, x, "late", 1) == nil }, 2*time.Minute, time.Second)
	refused(t, vm(t, x, "more", 2), total)
}
