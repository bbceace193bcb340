// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// Ledgers is where ledgers are kept. Errors are the API server's.
type Ledgers interface {
	// Ensure returns the namespace's ledger, which it makes if need be. One that
	// takes the place of a lost one has a barrier. The error is NotFound if the
	// namespace does not exist, or is being deleted and has none any more.
	Ensure(ctx context.Context, namespace string) (*v1alpha1.GPUBudget, error)
	// Get returns the namespace's ledger as it is now.
	Get(ctx context.Context, namespace string) (*v1alpha1.GPUBudget, error)
	// Update writes the status of a ledger. The error is Conflict if the ledger
	// is no longer of the resource version that it carries.
	Update(ctx context.Context, budget *v1alpha1.GPUBudget) (*v1alpha1.GPUBudget, error)
}

const (
	// refreshInterval is about how often the ledgers are brought up to date with
	// what was seen, with no write that asks for it.
	refreshInterval = time.Second
	// callTimeout bounds the calls of one round or refresh. All that waits has
	// been given up by then.
	callTimeout = 10 * time.Second
	// retryInterval is the pause after a failure that is no conflict.
	retryInterval = 100 * time.Millisecond
)

// Book decides writes and enters them in the ledgers. All writes that wait while
// a ledger is being written are decided together and cost one write of it.
type Book struct {
	view    *View
	ledgers Ledgers
	log     *zap.Logger
	now     func() time.Time
	newUID  func() types.UID
	wake    chan struct{} // has one element when there is something to do

	mu    sync.Mutex // guards what follows
	queue []*request
	shelf shelf
}

// request is a write that waits for its decision.
type request struct {
	Write
	ctx    context.Context
	answer chan Decision // takes one
	// entered are the ledgers that hold the write from an earlier try, absent
	// the namespaces that were found not to exist.
	entered, absent map[string]bool
	// withdrawn is set once it has been given up and what was entered is being
	// taken back.
	withdrawn bool
}

// NewBook returns a book for the view.
func NewBook(view *View, ledgers Ledgers, log *zap.Logger) *Book {
	return &Book{
		view: view, ledgers: ledgers, log: log, now: time.Now,
		newUID: uuid.NewUUID,
		wake:   make(chan struct{}, 1),
		shelf:  shelf{},
	}
}

// Decide answers the write. It is refused if it could not be judged and entered
// before ctx ended.
func (b *Book) Decide(ctx context.Context, w Write) Decision {
	r := &request{Write: w, ctx: ctx, answer: make(chan Decision, 1), entered: map[string]bool{}, absent: map[string]bool{}}
	b.mu.Lock()
	b.queue = append(b.queue, r)
	b.mu.Unlock()
	b.rouse()
	select {
	case decision := <-r.answer:
		return decision
	case <-ctx.Done():
		b.rouse() // to take back what has been entered
		// Without RetryAfter: the client has waited long enough.
		return Decision{Verdict: Unavailable, Message: "the GPU budgets could not be read and written in time"}
	}
}

func (b *Book) rouse() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Put takes in a ledger that was read. Older states of it are ignored.
func (b *Book) Put(budget *v1alpha1.GPUBudget) {
	b.mu.Lock()
	b.shelf.put(budget, b.now())
	b.mu.Unlock()
	b.rouse()
}

// Remove takes out a ledger that is gone.
func (b *Book) Remove(budget *v1alpha1.GPUBudget) {
	b.mu.Lock()
	if known := b.shelf[budget.Namespace]; known != nil && known.budget.UID == budget.UID {
		delete(b.shelf, budget.Namespace)
	}
	b.mu.Unlock()
}

// Retain takes out all ledgers but those, by UID.
func (b *Book) Retain(kept map[types.UID]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for namespace, known := range b.shelf {
		if !kept[known.budget.UID] {
			delete(b.shelf, namespace)
		}
	}
}

// Has reports whether the namespace's ledger is known.
func (b *Book) Has(namespace string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.shelf[namespace] != nil
}

// knows reports whether the ledger is the one that is known, in whatever state.
func (b *Book) knows(budget *v1alpha1.GPUBudget) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.shelf[budget.Namespace]
	return known != nil && known.budget.UID == budget.UID
}

func (b *Book) forget(namespace string) {
	b.mu.Lock()
	delete(b.shelf, namespace)
	b.mu.Unlock()
}

// Run decides writes until ctx ends. The view must have been filled.
func (b *Book) Run(ctx context.Context) {
	refresh := time.NewTimer(0)
	defer refresh.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-refresh.C:
			b.refresh(ctx)
			// Replicas take turns, so that one of them does it for all.
			refresh.Reset(refreshInterval/2 + rand.N(refreshInterval))
		case <-b.wake:
		case <-b.view.changes:
		}
		for again := true; again && ctx.Err() == nil; {
			var failed bool
			again, failed = b.round(ctx)
			if failed {
				time.Sleep(retryInterval)
			}
		}
	}
}

// round decides all writes that wait, once. It reports whether some of them
// should be tried again at once, and whether anything but a conflict failed.
func (b *Book) round(ctx context.Context) (again, failed bool) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	t := b.judge(b.take())
	t.run(ctx)
	var waiting []*request
	for _, c := range t.cases {
		r := c.request
		switch {
		case r.ctx.Err() != nil:
			// One try to take it back must do: what is left expires.
			if len(r.entered) > 0 && !r.withdrawn {
				r.withdrawn = true
				waiting, again = append(waiting, r), true
			}
		case c.err == nil && t.settled(c):
			r.answer <- c.decision
		case isFinal(c.err):
			r.answer <- Decision{Verdict: Unavailable, Message: c.err.Error(), RetryAfter: time.Second}
		default:
			waiting = append(waiting, r)
			again = again || c.err != errStale
		}
	}
	b.mu.Lock()
	b.queue = append(waiting, b.queue...)
	b.mu.Unlock()
	return again, t.failed
}

func isFinal(err error) bool {
	_, noNamespace := errors.AsType[errNoNamespace](err)
	return noNamespace
}

func (b *Book) take() []*request {
	b.mu.Lock()
	defer b.mu.Unlock()
	requests := b.queue
	b.queue = nil
	return requests
}
