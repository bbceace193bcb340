// SPDX-License-Identifier: Apache-2.0

// Package plan decides which copies of licence Secrets there must be, what has
// to be written for it, and what a class's status says. It has no client and
// no clock, and logs nothing.
package plan

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model"
)

// Digest stands for a Secret's data: what is the same has the same digest.
type Digest [sha256.Size]byte

// NewDigest returns the digest of the keys and values.
func NewDigest(data map[string][]byte) Digest {
	hash := sha256.New()
	add := func(b []byte) {
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		hash.Write(b)
	}
	// All keys but the two are as good as each other: any makes a difference,
	// and their order must not.
	for _, key := range []string{gpu.LicenseTokenKey, gpu.LicenseGriddConfKey} {
		if value, found := data[key]; found {
			add([]byte(key))
			add(value)
		}
	}
	for key := range data {
		if key != gpu.LicenseTokenKey && key != gpu.LicenseGriddConfKey {
			add([]byte("other keys"))
			break
		}
	}
	return Digest(hash.Sum(nil))
}

// Copy is a Secret with LabelGPUClass as it is in the cluster. Of its data only
// the digest is kept: thousands of copies need little memory, and no licence
// lies around in it.
type Copy struct {
	metav1.ObjectMeta
	Type      corev1.SecretType
	Immutable bool
	Digest    Digest
	// Ours tells that this service wrote it.
	Ours bool
}

// Class returns the class that the copy's label names.
func (c *Copy) Class() string { return c.Labels[gpu.LabelGPUClass] }

// Source is a hoster's Secret, reduced to the keys that copies hold.
type Source struct {
	metav1.ObjectMeta
	Data   map[string][]byte
	Digest Digest
}

// HasToken reports whether the Secret holds a token; without one it is no
// licence.
func (s *Source) HasToken() bool { return len(s.Data[gpu.LicenseTokenKey]) > 0 }

// Sources are the hoster's Secrets.
type Sources struct {
	Namespace string
	// Secret returns the Secret of that name in Namespace, or nil.
	Secret func(name string) *Source
}

// Namespace is an entitled namespace.
type Namespace struct {
	Name string
	// Terminating namespaces take no new objects; what they hold goes anyway.
	Terminating bool
}

// Counted is a node or a pod, reduced to what capacity is counted from.
type Counted[T model.Node | model.Pod] struct {
	metav1.ObjectMeta
	Of T
}

// Key names a Secret.
type Key = types.NamespacedName

// isCopyName reports whether this service writes Secrets of that name. A
// Secret that bears LabelGPUClass under another name is none of ours.
func isCopyName(name string) bool {
	return strings.HasPrefix(name, gpu.LicenseSecretName(""))
}
