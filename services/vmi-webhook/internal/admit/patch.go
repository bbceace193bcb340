// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"cozystack.io/gpu/pkg/gpu"
)

// operation is a JSON patch operation (RFC 6902). Only add is needed.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func add(path string, value any) operation {
	return operation{Op: "add", Path: path, Value: value}
}

// patch returns the operations that put the GPU entries and the licence on the
// VMI, none for what it already carries. No operation touches what is there:
// lists are appended to, or created where they are absent or null.
func patch(v *vmi, gpus []device, l *license) []operation {
	const (
		spec    = "/spec"
		domain  = spec + "/domain"
		devices = domain + "/devices"
	)
	var ops []operation
	if have := v.devices(); len(gpus) > 0 && len(have.GPUs.items) == 0 {
		ops = append(ops, add(devices+"/gpus", gpus))
	}
	if l != nil && !v.hasVolume(gpu.LicenseVolumeName) {
		ops = append(ops, appendTo(spec+"/volumes", v.volumes(), l.volume))
	}
	if l != nil && !v.hasDisk(gpu.LicenseVolumeName) {
		ops = append(ops, appendTo(devices+"/disks", v.devices().Disks.items, l.disk))
	}
	if len(ops) == 0 {
		return nil
	}
	// An operation needs its target's parent.
	empty := struct{}{}
	var parents []operation
	switch {
	case v.Spec == nil:
		parents = []operation{add(spec, empty), add(domain, empty), add(devices, empty)}
	case v.Spec.Domain == nil:
		parents = []operation{add(domain, empty), add(devices, empty)}
	case v.Spec.Domain.Devices == nil:
		parents = []operation{add(devices, empty)}
	}
	return append(parents, ops...)
}

// appendTo adds the item behind the items, or as the only one of a new list.
func appendTo[T any](path string, items []T, item T) operation {
	if len(items) == 0 {
		return add(path, []T{item})
	}
	return add(path+"/-", item)
}
