// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	// releaseTimeout bounds the release: a lease that is not released expires.
	releaseTimeout = 5 * time.Second
)

// Lead runs work while this process holds the lease, and returns when work
// does or ctx ends. The lease is released only after work has returned, so
// that no two leaders write. Losing the lease is an error: the process must
// end, since work may not have noticed yet.
func Lead(ctx context.Context, leases coordinationv1.LeasesGetter, namespace, name string, log *zap.Logger, work func(context.Context) error) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("choose a name for the leader election: %w", err)
	}
	identity := host + "_" + string(uuid.NewUUID())
	election, endElection := context.WithCancel(context.WithoutCancel(ctx))
	defer endElection()

	started, finished := make(chan struct{}), make(chan error, 1)
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name},
		Client:     leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name:          name,
		Lock:          lock,
		LeaseDuration: leaseDuration,
		RenewDeadline: renewDeadline,
		RetryPeriod:   retryPeriod,
		// The elector would try to release a lost lease, too, and tell work to
		// end only afterwards: too late, if the API server does not answer.
		ReleaseOnCancel: false,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				close(started)
				log.Info("leading", zap.String("identity", identity))
				working, stop := context.WithCancel(leading)
				defer stop()
				defer context.AfterFunc(ctx, stop)()
				finished <- work(working)
				endElection()
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(leader string) {
				if leader != identity {
					log.Info("standing by", zap.String("leader", leader))
				}
			},
		},
	})
	if err != nil {
		return fmt.Errorf("set up the leader election: %w", err)
	}
	// Told to end while standing by, nothing is to be waited for.
	defer context.AfterFunc(ctx, func() {
		select {
		case <-started:
		default:
			endElection()
		}
	})()
	elector.Run(election)

	select {
	case <-started:
	default:
		return nil
	}
	select {
	case err := <-finished:
		if err == nil && ctx.Err() == nil {
			break // work was quick to end once the lease was lost
		}
		if err := release(context.WithoutCancel(ctx), lock); err != nil {
			log.Warn("the lease will expire instead", zap.Error(err))
		}
		return err
	default:
	}
	return errors.New("lost the leader election's lease")
}

// release lets another lead at once.
func release(ctx context.Context, lock *resourcelock.LeaseLock) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	record, _, err := lock.Get(ctx)
	if err == nil && record.HolderIdentity == lock.Identity() {
		now := metav1.Now()
		err = lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now,
		})
	}
	if err != nil {
		return fmt.Errorf("release the leader election's lease: %w", err)
	}
	return nil
}
