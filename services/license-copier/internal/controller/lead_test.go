// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// leases is an API server with one lease, which may stop to answer.
type leases struct {
	coordinationclient.LeaseInterface
	mu      sync.Mutex
	lease   *coordinationv1.Lease
	renewed time.Time
	silent  bool
}

func (l *leases) Leases(string) coordinationclient.LeaseInterface { return l }

func (l *leases) answer(ctx context.Context) error {
	l.mu.Lock()
	silent := l.silent
	l.mu.Unlock()
	if silent {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (l *leases) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	if err := l.answer(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lease == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, name)
	}
	return l.lease.DeepCopy(), nil
}

func (l *leases) Create(ctx context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return l.Update(ctx, lease, metav1.UpdateOptions{})
}

func (l *leases) Update(ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if err := l.answer(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease, l.renewed = lease.DeepCopy(), time.Now()
	return lease, nil
}

func (l *leases) holder() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lease == nil || l.lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.lease.Spec.HolderIdentity
}

func (l *leases) sinceRenewed(at time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return at.Sub(l.renewed)
}

func (l *leases) silence() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = true
}

func TestWorkEndsBeforeAnotherMayLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		time.AfterFunc(time.Minute, l.silence)
		var ended time.Time
		err := Lead(t.Context(), l, "a", "lease", zap.NewNop(), func(ctx context.Context) error {
			<-ctx.Done()
			ended = time.Now()
			return nil
		})
		require.EqualError(t, err, "lost the leader election's lease")
		synctest.Wait()
		assert.Less(t, l.sinceRenewed(ended), leaseDuration)
	})
}

func TestTheLeaseIsHeldUntilWorkHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, stop)
		err := Lead(ctx, l, "a", "lease", zap.NewNop(), func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(2 * leaseDuration) // a write that has begun
			assert.NotEmpty(t, l.holder())
			assert.Less(t, l.sinceRenewed(time.Now()), renewDeadline)
			return nil
		})
		require.NoError(t, err)
		assert.Empty(t, l.holder())
	})
}

func TestAStandbyEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader, seconds := "another", int32(3600)
		now := metav1.NowMicro()
		l := &leases{lease: &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &leader, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now,
		}}}
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, stop)
		start := time.Now()
		err := Lead(ctx, l, "a", "lease", zap.NewNop(), func(context.Context) error {
			assert.Fail(t, "it leads")
			return nil
		})
		require.NoError(t, err)
		assert.Equal(t, time.Minute, time.Since(start))
		assert.Equal(t, leader, l.holder())
	})
}
