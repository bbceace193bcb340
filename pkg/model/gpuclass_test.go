// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	virtv1 "kubevirt.io/api/core/v1"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model/v1alpha1"
)

func class(name, resource string, created time.Time) v1alpha1.GPUClass {
	return v1alpha1.GPUClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(created)},
		Spec:       v1alpha1.GPUClassSpec{Mode: v1alpha1.ModeVGPU, ResourceName: resource},
	}
}

func TestEffectiveMaxCount(t *testing.T) {
	four := int32(4)
	for name, tc := range map[string]struct {
		mode v1alpha1.Mode
		max  *int32
		want int64
	}{
		"one vGPU without a limit":        {v1alpha1.ModeVGPU, nil, 1},
		"sixteen devices without a limit": {v1alpha1.ModePassthrough, nil, 16},
		"the class's limit for vGPU":      {v1alpha1.ModeVGPU, &four, 4},
		"the class's limit for devices":   {v1alpha1.ModePassthrough, &four, 4},
	} {
		t.Run(name, func(t *testing.T) {
			c := class("a", "x/a", time.Time{})
			c.Spec.Mode, c.Spec.MaxCount = tc.mode, tc.max
			assert.Equal(t, tc.want, EffectiveMaxCount(&c))
		})
	}
}

func TestEntitledOnlyByTheExactValue(t *testing.T) {
	assert.True(t, Entitled(map[string]string{gpu.LabelNamespaceVGPU: "true"}))
	for _, value := range []string{"", "false", "True", "1"} {
		assert.False(t, Entitled(map[string]string{gpu.LabelNamespaceVGPU: value}), value)
	}
	assert.False(t, Entitled(nil))
}

func TestPermittedResourceNames(t *testing.T) {
	names, restricted := PermittedResourceNames(nil)
	assert.False(t, restricted, "no table restricts nothing")
	assert.Empty(t, names)

	names, restricted = PermittedResourceNames(&virtv1.PermittedHostDevices{})
	assert.True(t, restricted, "an empty table permits nothing")
	assert.Empty(t, names)

	names, restricted = PermittedResourceNames(&virtv1.PermittedHostDevices{
		PciHostDevices:  []virtv1.PciHostDevice{{ResourceName: "x/pci"}},
		MediatedDevices: []virtv1.MediatedHostDevice{{ResourceName: "x/mdev"}},
		USB:             []virtv1.USBHostDevice{{ResourceName: "x/usb"}},
	})
	assert.True(t, restricted)
	assert.Equal(t, sets.New("x/pci", "x/mdev", "x/usb"), names)
}

func TestConflictsGoToEveryClassButTheOldest(t *testing.T) {
	old := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	deleting := class("gone-soon", "x/a", old)
	deleting.DeletionTimestamp = &metav1.Time{Time: old.Add(time.Hour)}
	for name, tc := range map[string]struct {
		classes []v1alpha1.GPUClass
		want    map[string]string
	}{
		"none at all":             {nil, map[string]string{}},
		"different resources":     {[]v1alpha1.GPUClass{class("a", "x/a", old), class("b", "x/b", old)}, map[string]string{}},
		"resources of other case": {[]v1alpha1.GPUClass{class("a", "x/a", old), class("b", "x/A", old)}, map[string]string{}},
		"the younger, though its name is first": {
			[]v1alpha1.GPUClass{class("a", "x/a", old.Add(time.Second)), class("b", "x/a", old)},
			map[string]string{"a": "b"},
		},
		"by name when they are of one age": {
			[]v1alpha1.GPUClass{class("b", "x/a", old), class("a", "x/a", old)},
			map[string]string{"b": "a"},
		},
		"the oldest of three holds it": {
			[]v1alpha1.GPUClass{class("c", "x/a", old), class("b", "x/a", old.Add(1*time.Second)), class("a", "x/a", old.Add(2*time.Second))},
			map[string]string{"a": "c", "b": "c"},
		},
		"a class being deleted still holds it": {
			[]v1alpha1.GPUClass{deleting, class("a", "x/a", old.Add(time.Second))},
			map[string]string{"a": "gone-soon"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, Conflicts(tc.classes))
		})
	}
}

// Exactly one class of each resource name has no conflict, it is the oldest,
// and the order in which classes are listed decides nothing.
func TestConflictsLeaveOneHolderPerResourceName(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		classes := make([]v1alpha1.GPUClass, rng.IntN(12))
		for i := range classes {
			classes[i] = class("c"+strconv.Itoa(i), "x/"+strconv.Itoa(rng.IntN(4)), time.Unix(rng.Int64N(3), 0))
		}
		conflicts := Conflicts(classes)
		holders := map[string]v1alpha1.GPUClass{}
		for _, c := range classes {
			if _, conflicting := conflicts[c.Name]; !conflicting {
				assert.NotContains(t, holders, c.Spec.ResourceName)
				holders[c.Spec.ResourceName] = c
			}
		}
		for _, c := range classes {
			holder := holders[c.Spec.ResourceName]
			assert.False(t, c.CreationTimestamp.Time.Before(holder.CreationTimestamp.Time), "%s is older than holder %s", c.Name, holder.Name)
			if c.Name != holder.Name {
				assert.Equal(t, holder.Name, conflicts[c.Name])
			}
		}
		rng.Shuffle(len(classes), func(i, j int) { classes[i], classes[j] = classes[j], classes[i] })
		assert.Equal(t, conflicts, Conflicts(classes))
	}
}
