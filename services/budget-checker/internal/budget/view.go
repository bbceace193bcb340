// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"cozystack.io/gpu/pkg/model"
)

// Stored is what is known of a stored object.
type Stored struct {
	// Amounts are what it uses, or declares, by quota key.
	Amounts model.Amounts
	// Version is its resource version.
	Version string
	// Terminating objects count until they are gone, whatever they give back
	// in the meantime, but show no write.
	Terminating bool
}

// View is what this replica has seen of the objects that are counted. Its
// methods may be called at any time; a decision holds it still.
type View struct {
	now     func() time.Time
	changes chan struct{} // has one element after a change

	mu      sync.RWMutex
	tree    *model.Tree
	objects map[Key]Stored
	seen    map[Resource]*progress
}

// progress is how far a resource has been followed.
type progress struct {
	// listed is set once all objects that are stored have been seen.
	listed bool
	// version is the last one that is reflected; changed is that of the last
	// change in it. Two replicas agree on the latter, while the former moves
	// on by itself.
	version, changed uint64
	// transitions are the latest changes of amounts, oldest first.
	transitions []transition
}

// transitionLifetime is how long an event can show a write. Ledgers are brought
// up to date within seconds; what is left after that time might be taken for
// another write, since the one that it shows may have been given up.
const transitionLifetime = 30 * time.Second

// transition is an event that shows a write: the object came to have the
// amounts, which it had not before. Any other event shows none, since it
// may have been a write of something else, such as a status.
type transition struct {
	key     Key
	amounts model.Amounts
	version uint64
	at      time.Time
}

// NewView returns the view of a replica that has seen nothing.
func NewView(now func() time.Time) *View {
	v := &View{
		now: now, changes: make(chan struct{}, 1),
		tree: model.NewTree(), objects: map[Key]Stored{}, seen: map[Resource]*progress{},
	}
	for _, resource := range []Resource{VMInstances, KubernetesNodes, Tenants} {
		v.seen[resource] = &progress{}
	}
	return v
}

// Set records an object that was created or changed.
func (v *View) Set(key Key, object Stored) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.set(key, object)
	p, version := v.seen[key.Resource], parseVersion(object.Version)
	p.version, p.changed = max(p.version, version), max(p.changed, version)
	v.signal()
}

// Remove records that an object is gone, by an event of that version.
func (v *View) Remove(key Key, version string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.remove(key)
	p := v.seen[key.Resource]
	p.version, p.changed = max(p.version, parseVersion(version)), max(p.changed, parseVersion(version))
	v.signal()
}

// Replace records all objects of the resource as they were at that version.
// The first list shows no writes: whatever is in it may be old.
func (v *View) Replace(resource Resource, objects map[Key]Stored, version string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p := v.seen[resource]
	for key := range v.objects {
		if _, kept := objects[key]; key.Resource == resource && !kept {
			v.remove(key)
		}
	}
	keys := slices.Collect(maps.Keys(objects))
	slices.SortFunc(keys, func(a, b Key) int { // transitions are in the order of their versions
		return cmp.Compare(parseVersion(objects[a].Version), parseVersion(objects[b].Version))
	})
	for _, key := range keys {
		v.set(key, objects[key])
		p.changed = max(p.changed, parseVersion(objects[key].Version))
	}
	p.listed = true
	p.version = max(p.version, parseVersion(version), p.changed)
	v.signal()
}

// Progress records that all changes up to the version have been seen.
func (v *View) Progress(resource Resource, version string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p := v.seen[resource]
	if parsed := parseVersion(version); parsed > p.version {
		p.version = parsed
		v.signal()
	}
}

// Ready reports whether all resources have been listed.
func (v *View) Ready() bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, p := range v.seen {
		if !p.listed {
			return false
		}
	}
	return true
}

// Wait returns true once all resources have been listed, or false if ctx ends
// before.
func (v *View) Wait(ctx context.Context) bool {
	return wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) {
		return v.Ready(), nil
	}) == nil
}

func (v *View) set(key Key, object Stored) {
	before := v.objects[key].Amounts
	if object.Terminating {
		// Its writes are not decided, so they hold nothing: one that gave units
		// back may yet be followed by one that was sent before.
		object.Amounts = larger(before, object.Amounts)
	}
	v.objects[key] = object
	v.count(key, before, object.Amounts)
	p := v.seen[key.Resource]
	if p.listed && !object.Terminating && !maps.Equal(before, object.Amounts) {
		old := 0
		for old < len(p.transitions) && v.now().Sub(p.transitions[old].at) > transitionLifetime {
			old++
		}
		p.transitions = append(p.transitions[old:], transition{key, object.Amounts, parseVersion(object.Version), v.now()})
	}
}

// larger returns the larger of the amounts of each key.
func larger(a, b model.Amounts) model.Amounts {
	most := maps.Clone(b)
	for quotaKey, amount := range a {
		if most == nil {
			most = model.Amounts{}
		}
		if now, ok := most[quotaKey]; !ok || amount > now {
			most[quotaKey] = amount
		}
	}
	return most
}

func (v *View) remove(key Key) {
	v.count(key, v.objects[key].Amounts, nil)
	delete(v.objects, key)
}

func (v *View) count(key Key, before, after model.Amounts) {
	if key.Resource != Tenants {
		v.tree.Use(key.Namespace, before, after)
	} else if namespace, ok := model.TenantNamespace(key.Namespace, key.Name); ok {
		v.tree.Declare(namespace, after)
	}
}

// since returns the transitions of the resource after the version.
func (v *View) since(resource Resource, version uint64) []transition {
	list, now := v.seen[resource].transitions, v.now()
	first := len(list)
	for first > 0 && list[first-1].version > version && now.Sub(list[first-1].at) <= transitionLifetime {
		first--
	}
	return list[first:]
}

func (v *View) signal() {
	select {
	case v.changes <- struct{}{}:
	default:
	}
}

// parseVersion returns a resource version as the number it is; what is none
// counts as older than all. Versions of one resource can be compared:
// https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
func parseVersion(version string) uint64 {
	parsed, _ := strconv.ParseUint(version, 10, 64)
	return parsed
}
