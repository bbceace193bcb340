// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// world is a cluster in which all that takes time is done by hand: replicas see
// events late, writes land late or never, clocks are apart.
type world struct {
	t *testing.T
	// mu guards what a replica reads and writes of ledgers many at once.
	mu         sync.Mutex
	version    uint64
	clock      time.Time
	objects    map[Key]Stored
	events     []event
	ledgers    map[string]*v1alpha1.GPUBudget
	marks      map[string]types.UID
	namespaces map[string]bool
	// before is called before a ledger is written, by the replica.
	before   func(*replica)
	replicas []*replica
	flights  []*flight
	uids     int
}

type event struct {
	key     Key
	stored  Stored
	deleted bool
}

type replica struct {
	*Book
	world *world
	skew  time.Duration
	seen  int // of the world's events
	busy  bool
}

// flight is an admitted write on its way to the store.
type flight struct {
	Write
	admitted time.Time
}

func newWorld(t *testing.T, replicas int, namespaces ...string) *world {
	w := &world{
		t: t, clock: time.Unix(1e9, 0), objects: map[Key]Stored{}, ledgers: map[string]*v1alpha1.GPUBudget{},
		marks: map[string]types.UID{}, namespaces: map[string]bool{}, before: func(*replica) {},
	}
	for _, namespace := range namespaces {
		w.namespaces[namespace] = true
	}
	for i := range replicas {
		w.replicas = append(w.replicas, w.start(time.Duration(i)*17*time.Minute))
	}
	return w
}

// start returns a replica that has listed all there is.
func (w *world) start(skew time.Duration) *replica {
	r := &replica{world: w, skew: skew}
	now := func() time.Time { return w.clock.Add(r.skew) }
	r.Book = NewBook(NewView(now), r, zap.NewNop())
	r.now = now
	r.newUID = w.uid
	for _, resource := range []Resource{VMInstances, KubernetesNodes, Tenants} {
		listed := maps.Clone(w.objects)
		maps.DeleteFunc(listed, func(key Key, _ Stored) bool { return key.Resource != resource })
		r.view.Replace(resource, listed, strconv.FormatUint(w.version, 10))
	}
	r.seen = len(w.events)
	for _, ledger := range w.ledgers {
		r.Put(ledger.DeepCopy())
	}
	return r
}

func (w *world) uid() types.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nextUID()
}

func (w *world) nextUID() types.UID {
	w.uids++
	return types.UID(fmt.Sprintf("uid-%d", w.uids))
}

func (w *world) next() string {
	w.version++
	return strconv.FormatUint(w.version, 10)
}

// store writes an object, and remove deletes one, as the API server does.
func (w *world) store(key Key, amounts model.Amounts) {
	stored := Stored{Amounts: amounts, Version: w.next()}
	w.objects[key] = stored
	w.events = append(w.events, event{key: key, stored: stored})
}

func (w *world) remove(key Key) {
	if stored, ok := w.objects[key]; ok {
		delete(w.objects, key)
		stored.Version = w.next()
		w.events = append(w.events, event{key, stored, true})
	}
}

// see lets the replica see that many events more.
func (r *replica) see(events int) {
	for ; events > 0 && r.seen < len(r.world.events); events-- {
		e := r.world.events[r.seen]
		r.seen++
		if e.deleted {
			r.view.Remove(e.key, e.stored.Version)
		} else {
			r.view.Set(e.key, e.stored)
		}
	}
}

func (r *replica) seeAll() { r.see(len(r.world.events)) }

// ask has the replica decide a write, in as many rounds as it may take. What is
// admitted flies.
func (r *replica) ask(key Key, amounts model.Amounts) Decision {
	return r.send(r.world.write(key, amounts))
}

// write returns a write of the object, as the API server would review it.
func (w *world) write(key Key, amounts model.Amounts) Write {
	write := Write{UID: w.uid(), Key: key, New: amounts}
	if stored, ok := w.objects[key]; ok {
		write.Old, write.OldVersion = stored.Amounts, stored.Version
		if write.Old == nil {
			write.Old = model.Amounts{}
		}
	}
	return write
}

func (r *replica) send(write Write) Decision {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	q := &request{Write: write, ctx: ctx, answer: make(chan Decision, 1), entered: map[string]bool{}, absent: map[string]bool{}}
	r.mu.Lock()
	r.queue = append(r.queue, q)
	r.mu.Unlock()
	r.busy = true
	defer func() { r.busy = false }()
	for range 50 {
		again, _ := r.round(context.Background())
		select {
		case decision := <-q.answer:
			if decision.Verdict == Admitted && !write.DryRun {
				r.world.flights = append(r.world.flights, &flight{write, r.world.clock})
			}
			return decision
		default:
		}
		if !again {
			break
		}
	}
	cancel()
	for again := true; again; {
		again, _ = r.round(context.Background())
	}
	return Decision{Verdict: Unavailable}
}

// land stores a write in flight, if the object is still one to create or to
// update, as an API server does that does not ask again.
func (w *world) land(f *flight) {
	w.flights = slices.DeleteFunc(w.flights, func(other *flight) bool { return other == f })
	_, exists := w.objects[f.Key]
	if exists == (f.Old != nil) && w.clock.Sub(f.admitted) <= time.Minute {
		w.store(f.Key, f.New)
	}
}

// landAll stores all writes in flight and lets all replicas see it.
func (w *world) landAll() {
	for len(w.flights) > 0 {
		w.land(w.flights[0])
	}
	for _, r := range w.replicas {
		r.seeAll()
		r.readAll()
	}
}

func (r *replica) readAll() {
	for namespace, ledger := range r.world.ledgers {
		if r.world.marks[namespace] == ledger.UID {
			r.Put(ledger.DeepCopy())
		}
	}
}

// Ensure, Get and Update are the API server's part of the ledgers.
func (r *replica) Ensure(_ context.Context, namespace string) (*v1alpha1.GPUBudget, error) {
	w := r.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.namespaces[namespace] {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, namespace)
	}
	if w.ledgers[namespace] == nil {
		w.ledgers[namespace] = &v1alpha1.GPUBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, UID: w.nextUID(), ResourceVersion: w.next()}}
	}
	ledger := w.ledgers[namespace]
	if mark, ok := w.marks[namespace]; ok && mark != ledger.UID && ledger.Status.Barrier == "" {
		ledger.Status.Barrier = w.nextUID()
	}
	w.marks[namespace] = ledger.UID
	return ledger.DeepCopy(), nil
}

func (r *replica) Get(_ context.Context, namespace string) (*v1alpha1.GPUBudget, error) {
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	if ledger := r.world.ledgers[namespace]; ledger != nil {
		return ledger.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "gpubudgets"}, namespace)
}

func (r *replica) Update(_ context.Context, ledger *v1alpha1.GPUBudget) (*v1alpha1.GPUBudget, error) {
	w := r.world
	w.before(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	resource := schema.GroupResource{Resource: "gpubudgets"}
	stored := w.ledgers[ledger.Namespace]
	switch {
	case stored == nil:
		return nil, apierrors.NewNotFound(resource, ledger.Namespace)
	case stored.UID != ledger.UID || stored.ResourceVersion != ledger.ResourceVersion:
		return nil, apierrors.NewConflict(resource, ledger.Namespace, nil)
	}
	ledger = ledger.DeepCopy()
	ledger.ResourceVersion = w.next()
	w.ledgers[ledger.Namespace] = ledger
	return ledger.DeepCopy(), nil
}

// truth returns what is stored and which of the writes are in flight, for an
// oracle.
func (w *world) truth(flights []*flight) (*model.Tree, *model.Pending) {
	tree, pending := model.NewTree(), model.NewPending()
	counted := map[Key]model.Amounts{}
	for key, stored := range w.objects {
		if key.Resource == Tenants {
			namespace, _ := model.TenantNamespace(key.Namespace, key.Name)
			tree.Declare(namespace, stored.Amounts)
			continue
		}
		tree.Use(key.Namespace, nil, stored.Amounts)
		counted[key] = maps.Clone(stored.Amounts)
	}
	for _, f := range flights {
		if f.Key.Resource == Tenants {
			namespace, _ := model.TenantNamespace(f.Key.Namespace, f.Key.Name)
			pending.Declare(namespace, f.New)
			continue
		}
		if counted[f.Key] == nil {
			counted[f.Key] = model.Amounts{}
		}
		for quotaKey, amount := range f.New {
			if more := amount - counted[f.Key][quotaKey]; more > 0 {
				pending.Reserve(f.Key.Namespace, quotaKey, more)
				counted[f.Key][quotaKey] = amount
			}
		}
	}
	return tree, pending
}

// check fails if any pool may hold more than its limit.
func (w *world) check(message string) {
	w.t.Helper()
	tree, pending := w.truth(w.flights)
	for _, namespace := range tree.Declaring() {
		for quotaKey := range tree.Declared(namespace) {
			pool := tree.Pool(namespace, quotaKey, pending)
			require.GreaterOrEqual(w.t, pool.Left(), int64(0), "%s: %s of %s: %+v", message, quotaKey, namespace, pool)
		}
	}
}

func vm(namespace, name string) Key { return Key{VMInstances, namespace, name} }

func tenant(namespace, name string) Key { return Key{Tenants, namespace, name} }

// units are units of class a, which count in the total too.
func units(n int64) model.Amounts {
	return model.Amounts{model.ClassQuotaKey("a"): n, gpu.QuotaKeyTotal: n}
}

func total(n int64) model.Amounts { return model.Amounts{gpu.QuotaKeyTotal: n} }

func chance(random *rand.Rand, percent int) bool { return random.IntN(100) < percent }
