// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// cluster holds Secrets as far as the plan knows them. A foreign one has no
// LabelGPUClass and so is not among the copies.
type cluster struct {
	copies  map[Key]*Copy
	foreign sets.Set[Key]
	writes  int
}

// apply performs the steps as the API server does, and fails on a write that
// must not be tried.
func (c *cluster) apply(t *testing.T, steps []Step, protected sets.Set[Key]) {
	for _, step := range steps {
		switch step.Verb {
		case Create, Update, Delete:
			require.False(t, protected.Has(step.Key), "%s of the source %s", step.Verb, step.Key)
			require.False(t, c.foreign.Has(step.Key), "%s of the foreign %s", step.Verb, step.Key)
			c.writes++
		}
		switch step.Verb {
		case Create:
			require.NotContains(t, c.copies, step.Key)
			c.copies[step.Key] = copyOf(step.Namespace, step.Class, step.Source)
		case Update:
			require.Same(t, c.copies[step.Key], step.Have)
			require.False(t, step.Have.Immutable)
			require.Equal(t, corev1.SecretTypeOpaque, step.Have.Type)
			c.copies[step.Key] = copyOf(step.Namespace, step.Class, step.Source)
		case Delete:
			require.Same(t, c.copies[step.Key], step.Have)
			delete(c.copies, step.Key)
		}
	}
}

func (c *cluster) list() []*Copy {
	var list []*Copy
	for _, copied := range c.copies {
		list = append(list, copied)
	}
	return list
}

// TestApplyingTheDiffYieldsWhatIsDesired starts from random clusters and
// classes, and checks that two rounds (an immutable copy takes both) lead to
// what is desired, that a third writes nothing, and that no Secret without the
// label and no source is touched.
func TestApplyingTheDiffYieldsWhatIsDesired(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		some := func(n int) bool { return r.IntN(n) == 0 }
		secrets := []string{"token", "gpu-license-a", "gpu-license-c"}
		var hosters []*Source
		for _, name := range secrets {
			if !some(4) {
				hosters = append(hosters, source(name, []string{"", "x", "y"}[r.IntN(3)]))
			}
		}
		all := sources(hosters...)
		var classes []*v1alpha1.GPUClass
		for _, name := range []string{"a", "b", "c"} {
			if some(4) {
				continue
			}
			c := class(name, append(secrets, "")[r.IntN(4)])
			if some(5) {
				c.Spec.Mode = v1alpha1.ModePassthrough
			}
			classes = append(classes, c)
		}
		var namespaces []Namespace
		c := &cluster{copies: map[Key]*Copy{}, foreign: sets.New[Key]()}
		for _, name := range []string{"x", "y", hoster} {
			if !some(4) {
				namespaces = append(namespaces, Namespace{Name: name})
			}
			for _, class := range []string{"a", "b", "c", "gone"} {
				key := Key{Namespace: name, Name: gpu.LicenseSecretName(class)}
				switch r.IntN(4) {
				case 0:
					c.foreign.Insert(key)
				case 1:
					c.copies[key] = with(copyOf(name, class, source("", []string{"x", "z"}[r.IntN(2)])), func(c *Copy) {
						c.Immutable, c.Ours = some(4), !some(4)
						if some(4) {
							c.Type = corev1.SecretTypeTLS
						}
						if some(4) {
							c.Labels[gpu.LabelGPUClass] = "b"
						}
					})
				}
			}
		}

		wanted, protected := Desired(classes, namespaces, all), Protected(classes, c.list(), all)
		before := map[Key]Copy{}
		for key, copied := range c.copies {
			before[key] = *copied
		}
		for round := range 3 {
			steps := Diff(wanted, c.list(), protected)
			Block(steps, c.foreign.Has)
			c.writes = 0
			c.apply(t, steps, protected)
			require.False(t, round == 2 && c.writes > 0, "seed %d: the third round still writes", seed)
		}

		expected := sets.New[Key]()
		for _, w := range wanted {
			copied := c.copies[w.Key]
			old, had := before[w.Key]
			switch {
			case protected.Has(w.Key) || c.foreign.Has(w.Key):
			case w.Source == nil:
				require.Equal(t, had, copied != nil, "seed %d: %s is held", seed, w.Key)
				if had {
					require.Equal(t, old, *copied, "seed %d", seed)
				}
			default:
				require.NotNil(t, copied, "seed %d: %s", seed, w.Key)
				asWanted := with(copyOf(w.Namespace, w.Class, w.Source), func(c *Copy) { c.Ours = copied.Ours })
				require.Equal(t, asWanted, copied, "seed %d: %s", seed, w.Key)
			}
			expected.Insert(w.Key)
		}
		for key := range c.copies {
			require.True(t, expected.Has(key) || protected.Has(key), "seed %d: %s stayed", seed, key)
		}
	}
}
