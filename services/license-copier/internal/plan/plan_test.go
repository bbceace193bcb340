// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model/v1alpha1"
)

const hoster = "hoster"

func class(name, secret string) *v1alpha1.GPUClass {
	c := &v1alpha1.GPUClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 3},
		Spec:       v1alpha1.GPUClassSpec{Mode: v1alpha1.ModeVGPU, ResourceName: "nvidia.com/" + name},
	}
	if secret != "" {
		c.Spec.License = &v1alpha1.License{SecretName: secret}
	}
	return c
}

func source(name, token string) *Source {
	data := map[string][]byte{gpu.LicenseTokenKey: []byte(token)}
	return &Source{ObjectMeta: metav1.ObjectMeta{Namespace: hoster, Name: name}, Data: data, Digest: NewDigest(data)}
}

func sources(all ...*Source) Sources {
	return Sources{Namespace: hoster, Secret: func(name string) *Source {
		for _, s := range all {
			if s.Name == name {
				return s
			}
		}
		return nil
	}}
}

// copyOf is a copy as this service writes it.
func copyOf(namespace, class string, source *Source) *Copy {
	return &Copy{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: gpu.LicenseSecretName(class), UID: "1", ResourceVersion: "1",
			Labels: map[string]string{gpu.LabelGPUClass: class},
		},
		Type:   corev1.SecretTypeOpaque,
		Digest: source.Digest,
		Ours:   true,
	}
}

func with(c *Copy, change func(*Copy)) *Copy {
	change(c)
	return c
}

func TestDigestTellsEveryDifference(t *testing.T) {
	seen := map[Digest]int{}
	for i, data := range []map[string][]byte{
		nil,
		{gpu.LicenseTokenKey: nil},
		{gpu.LicenseTokenKey: []byte("a")},
		{gpu.LicenseGriddConfKey: []byte("a")},
		{gpu.LicenseTokenKey: []byte("a"), gpu.LicenseGriddConfKey: nil},
		{gpu.LicenseTokenKey: []byte("a"), gpu.LicenseGriddConfKey: []byte("b")},
		{gpu.LicenseTokenKey: []byte("ab"), gpu.LicenseGriddConfKey: nil},
		{gpu.LicenseTokenKey: []byte("a"), "other": nil},
	} {
		before, found := seen[NewDigest(data)]
		assert.False(t, found, "cases %d and %d have one digest", before, i)
		seen[NewDigest(data)] = i
	}
	assert.Equal(t, NewDigest(nil), NewDigest(map[string][]byte{}))
}

func TestDesired(t *testing.T) {
	token := source("token", "not-a-real-token")
	passthrough := class("h100", "token")
	passthrough.Spec.Mode = v1alpha1.ModePassthrough
	two := []Namespace{{Name: "a"}, {Name: "b"}}
	want := func(namespace, class string, s *Source) Wanted {
		return Wanted{Key: Key{Namespace: namespace, Name: gpu.LicenseSecretName(class)}, Class: class, Source: s}
	}
	for name, tc := range map[string]struct {
		classes    []*v1alpha1.GPUClass
		namespaces []Namespace
		sources    Sources
		want       []Wanted
	}{
		"a licensed class has a copy in every namespace": {
			[]*v1alpha1.GPUClass{class("l40s", "token")}, two, sources(token),
			[]Wanted{want("a", "l40s", token), want("b", "l40s", token)},
		},
		"two classes can share a Secret": {
			[]*v1alpha1.GPUClass{class("x", "token"), class("y", "token")}, two[:1], sources(token),
			[]Wanted{want("a", "x", token), want("a", "y", token)},
		},
		"a class without a licence has none":           {[]*v1alpha1.GPUClass{class("l40s", "")}, two, sources(token), nil},
		"a passthrough class has none":                 {[]*v1alpha1.GPUClass{passthrough}, two, sources(token), nil},
		"a terminating namespace has none":             {[]*v1alpha1.GPUClass{class("l40s", "token")}, []Namespace{{Name: "a", Terminating: true}}, sources(token), nil},
		"no namespace, no copy":                        {[]*v1alpha1.GPUClass{class("l40s", "token")}, nil, sources(token), nil},
		"without the Secret a copy is held":            {[]*v1alpha1.GPUClass{class("l40s", "token")}, two[:1], sources(), []Wanted{want("a", "l40s", nil)}},
		"with an empty token a copy is held":           {[]*v1alpha1.GPUClass{class("l40s", "token")}, two[:1], sources(source("token", "")), []Wanted{want("a", "l40s", nil)}},
		"a Secret named like its copy serves as one":   {[]*v1alpha1.GPUClass{class("l40s", "gpu-license-l40s")}, []Namespace{{Name: hoster}}, sources(source("gpu-license-l40s", "x")), nil},
		"the licence namespace can have copies, too":   {[]*v1alpha1.GPUClass{class("l40s", "token")}, []Namespace{{Name: hoster}}, sources(token), []Wanted{want(hoster, "l40s", token)}},
		"elsewhere a Secret named like that is copied": {[]*v1alpha1.GPUClass{class("token", "gpu-license-token")}, two[:1], sources(source("gpu-license-token", "")), []Wanted{want("a", "token", nil)}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, Desired(tc.classes, tc.namespaces, tc.sources))
		})
	}
}

func TestDiff(t *testing.T) {
	token, other := source("token", "not-a-real-token"), source("token", "another-fake-token")
	l40s := []*v1alpha1.GPUClass{class("l40s", "token")}
	now := metav1.NewTime(time.Unix(0, 0))
	for name, tc := range map[string]struct {
		classes []*v1alpha1.GPUClass
		sources Sources
		have    *Copy // in namespace a, which is entitled
		want    []Verb
	}{
		"what is missing is created":                        {l40s, sources(token), nil, []Verb{Create}},
		"what is as wanted is kept":                         {l40s, sources(token), copyOf("a", "l40s", token), []Verb{Keep}},
		"another token is an update":                        {l40s, sources(token), copyOf("a", "l40s", other), []Verb{Update}},
		"another label value is an update":                  {l40s, sources(token), with(copyOf("a", "l40s", token), func(c *Copy) { c.Labels[gpu.LabelGPUClass] = "x" }), []Verb{Update}},
		"an immutable copy is deleted first":                {l40s, sources(token), with(copyOf("a", "l40s", token), func(c *Copy) { c.Immutable = true }), []Verb{Delete}},
		"a copy of another type is deleted first":           {l40s, sources(token), with(copyOf("a", "l40s", token), func(c *Copy) { c.Type = "x/y" }), []Verb{Delete}},
		"the end of a copy being deleted is awaited":        {l40s, sources(token), with(copyOf("a", "l40s", token), func(c *Copy) { c.DeletionTimestamp = &now }), []Verb{Wait}},
		"without a source nothing is created":               {l40s, sources(), nil, []Verb{Hold}},
		"without a source nothing is updated or deleted":    {l40s, sources(), with(copyOf("a", "l40s", other), func(c *Copy) { c.Immutable = true }), []Verb{Hold}},
		"a class that went takes its copy along":            {nil, sources(token), copyOf("a", "l40s", token), []Verb{Delete}},
		"a licence that went takes its copy along":          {[]*v1alpha1.GPUClass{class("l40s", "")}, sources(token), copyOf("a", "l40s", token), []Verb{Delete}},
		"a stale copy being deleted is left alone":          {nil, sources(token), with(copyOf("a", "l40s", token), func(c *Copy) { c.DeletionTimestamp = &now }), []Verb{}},
		"a stale copy is found whatever class it names":     {nil, sources(token), with(copyOf("a", "l40s", token), func(c *Copy) { c.Labels[gpu.LabelGPUClass] = "x" }), []Verb{Delete}},
		"a labelled Secret of another name is none of ours": {nil, sources(token), with(copyOf("a", "l40s", token), func(c *Copy) { c.Name = "mine" }), []Verb{}},
	} {
		t.Run(name, func(t *testing.T) {
			var actual []*Copy
			if tc.have != nil {
				actual = append(actual, tc.have)
			}
			steps := Diff(Desired(tc.classes, []Namespace{{Name: "a"}}, tc.sources), actual, Protected(tc.classes, actual, tc.sources))
			verbs := make([]Verb, len(steps))
			for i, step := range steps {
				verbs[i] = step.Verb
				if step.Verb == Update || step.Verb == Delete {
					assert.Same(t, tc.have, step.Have, "what the write was decided on")
				}
			}
			assert.Equal(t, tc.want, verbs)
		})
	}
}

func TestASourceIsNeverWritten(t *testing.T) {
	// Class a's copy in the licence namespace would be class b's source.
	classes := []*v1alpha1.GPUClass{class("a", "token"), class("b", "gpu-license-a")}
	all := sources(source("token", "x"), source("gpu-license-a", "y"))
	labelled := copyOf(hoster, "a", source("", "y"))
	for _, actual := range [][]*Copy{nil, {labelled}} {
		steps := Diff(Desired(classes, []Namespace{{Name: hoster}}, all), actual, Protected(classes, actual, all))
		require.Len(t, steps, 2)
		assert.Equal(t, Blocked, steps[0].Verb)
		assert.Equal(t, "gpu-license-b", steps[1].Name)
		assert.Equal(t, Create, steps[1].Verb)
	}
	// Nor is one deleted where no copy is wanted.
	assert.Empty(t, Diff(nil, []*Copy{labelled}, Protected(classes, []*Copy{labelled}, all)))
}

func TestALabelledSecretBesideTheSourcesThatWeDidNotWriteIsTheHosters(t *testing.T) {
	all := sources(source("token", "x"))
	classes := []*v1alpha1.GPUClass{class("a", "token")} // none names the labelled Secret
	theirs := func(namespace string) *Copy {
		return with(copyOf(namespace, "a", source("", "y")), func(c *Copy) { c.Ours = false })
	}
	for name, tc := range map[string]struct {
		have   *Copy
		wanted []Namespace
		want   []Step
	}{
		"it does not go":                       {theirs(hoster), nil, []Step{}},
		"it is not written":                    {theirs(hoster), []Namespace{{Name: hoster}}, []Step{{Verb: Blocked}}},
		"a copy of ours goes":                  {copyOf(hoster, "a", source("", "y")), nil, []Step{{Verb: Delete}}},
		"a copy of ours is written":            {copyOf(hoster, "a", source("", "y")), []Namespace{{Name: hoster}}, []Step{{Verb: Update}}},
		"in other namespaces the label is all": {theirs("x"), nil, []Step{{Verb: Delete}}},
	} {
		t.Run(name, func(t *testing.T) {
			actual := []*Copy{tc.have}
			steps := Diff(Desired(classes, tc.wanted, all), actual, Protected(classes, actual, all))
			require.Len(t, steps, len(tc.want))
			for i, step := range steps {
				assert.Equal(t, tc.want[i].Verb, step.Verb)
			}
		})
	}
}

func TestBlockStopsCreatesOnly(t *testing.T) {
	steps := []Step{{Verb: Create}, {Verb: Update}, {Verb: Delete}, {Verb: Keep}}
	Block(steps, func(Key) bool { return true })
	assert.Equal(t, []Step{{Verb: Blocked}, {Verb: Update}, {Verb: Delete}, {Verb: Keep}}, steps)
}
