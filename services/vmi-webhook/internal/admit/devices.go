// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/pkg/model/v1alpha1"
)

// expand returns the GPU entries that the class entries stand for, in their
// order. The counts must have been found within bounds.
func expand(entries []model.Entry, classes map[string]*v1alpha1.GPUClass) []device {
	var gpus []device
	for _, entry := range entries {
		for range entry.Count {
			gpus = append(gpus, device{
				Name:       gpu.VMIGPUNamePrefix + strconv.Itoa(len(gpus)),
				DeviceName: classes[entry.ClassName].Spec.ResourceName,
			})
		}
	}
	return gpus
}

// expansionOf reports whether gpus are the entries that expand would return.
// It looks at no more units than there are gpus, whatever the counts.
func expansionOf(gpus []device, entries []model.Entry, classes map[string]*v1alpha1.GPUClass) bool {
	next := 0
	for _, entry := range entries {
		class, ok := classes[entry.ClassName]
		if !ok || int64(entry.Count) > int64(len(gpus)-next) {
			return false
		}
		for range entry.Count {
			if gpus[next] != (device{Name: gpu.VMIGPUNamePrefix + strconv.Itoa(next), DeviceName: class.Spec.ResourceName}) {
				return false
			}
			next++
		}
	}
	return next == len(gpus)
}

// license is a class's licence as a VMI carries it.
type license struct {
	volume volume
	disk   disk
}

// licenseFor returns the licence that the entries' vGPU class brings, or nil.
//
// The disk is one that every guest reads without drivers of its own: a CD-ROM,
// on the bus that its architecture has. It has no boot order, and as the last
// disk it moves no other's device name. KubeVirt has already set its defaults,
// so those of a CD-ROM are written here.
func licenseFor(entries []model.Entry, classes map[string]*v1alpha1.GPUClass, architecture string) *license {
	for _, entry := range entries {
		class, ok := classes[entry.ClassName]
		if !ok || class.Spec.Mode != v1alpha1.ModeVGPU || class.Spec.License == nil {
			continue
		}
		bus := "scsi"
		if architecture == "" || architecture == "amd64" {
			bus = "sata"
		}
		return &license{
			volume: volume{Name: gpu.LicenseVolumeName, Secret: &secretVolume{
				SecretName:  gpu.LicenseSecretName(class.Name),
				VolumeLabel: gpu.LicenseVolumeLabel,
			}},
			disk: disk{Name: gpu.LicenseVolumeName, CDROM: &cdrom{Bus: bus, ReadOnly: true, Tray: "closed"}},
		}
	}
	return nil
}

// isVolume reports whether a VMI's volume is the licence's. One that is optional is
// not: its VM would start without the licence.
func (l *license) isVolume(v volume) bool {
	have, want := v.Secret, l.volume.Secret
	return v.Name == l.volume.Name && have != nil && have.SecretName == want.SecretName && have.VolumeLabel == want.VolumeLabel &&
		(have.Optional == nil || !*have.Optional)
}

// isDisk reports whether a VMI's disk is the licence's. One that the VM would
// boot from is not.
func (l *license) isDisk(d disk) bool {
	return d.Name == l.disk.Name && d.CDROM != nil && d.CDROM.Bus == l.disk.CDROM.Bus && d.BootOrder == nil
}

// ownDevices returns a fault for GPU entries that do not stem from the class
// entries, and for each other way in which a VMI can ask for a class's device.
// Entries that are just what would be written come from a restored VMI and are
// no fault.
func ownDevices(v *vmi, entries []model.Entry, classes map[string]*v1alpha1.GPUClass) []metav1.StatusCause {
	resources := sets.New[string]()
	for _, class := range classes {
		resources.Insert(class.Spec.ResourceName)
	}
	var faults []metav1.StatusCause
	if gpus := v.devices().GPUs.items; len(gpus) > 0 && !expansionOf(gpus, entries, classes) {
		names := make([]string, len(gpus))
		for i, g := range gpus {
			names[i] = fmt.Sprintf("%s (%s)", g.Name, g.DeviceName)
		}
		faults = append(faults, metav1.StatusCause{
			Type:  CauseOwnDevices,
			Field: pathGPUs,
			Message: fmt.Sprintf("%s holds entries other than those of the named GPU classes: %s; remove them, also from the instancetype, or name no class",
				pathGPUs, enumerate(names)),
		})
	}
	fault := func(field, resourceName string) {
		faults = append(faults, metav1.StatusCause{
			Type:    CauseOwnDevices,
			Field:   field,
			Message: fmt.Sprintf("%s names %s, the device of a GPU class; remove it and name the class instead", field, resourceName),
		})
	}
	for i, d := range v.devices().HostDevices.items {
		if resources.Has(d.DeviceName) {
			fault(fmt.Sprintf("%s[%d]", pathHostDevices, i), d.DeviceName)
		}
	}
	// KubeVirt hands whatever a VMI's resources name on to its pod.
	for _, name := range sets.List(resources) {
		for _, field := range []string{"limits", "requests"} {
			if _, found := v.resources(field)[name]; found {
				fault(fmt.Sprintf("%s.%s[%s]", pathResources, field, name), name)
			}
		}
	}
	return faults
}

// enumerate joins the first names, and counts the rest.
func enumerate(names []string) string {
	const shown = 8
	text := strings.Join(names[:min(len(names), shown)], ", ")
	if more := len(names) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// reservedNames returns a fault for each volume and disk that has the
// licence's name and is not the licence.
func reservedNames(v *vmi, l *license) []metav1.StatusCause {
	var faults []metav1.StatusCause
	fault := func(list string, i int) {
		field := fmt.Sprintf("%s[%d]", list, i)
		faults = append(faults, metav1.StatusCause{
			Type:    CauseNameReserved,
			Field:   field,
			Message: fmt.Sprintf("%s has the name %s, which is kept for the licence of the VMI's vGPU class; rename it", field, gpu.LicenseVolumeName),
		})
	}
	for i, volume := range v.volumes() {
		if volume.Name == gpu.LicenseVolumeName && (l == nil || !l.isVolume(volume)) {
			fault(pathVolumes, i)
		}
	}
	for i, disk := range v.devices().Disks.items {
		if disk.Name == gpu.LicenseVolumeName && (l == nil || !l.isDisk(disk)) {
			fault(pathDisks, i)
		}
	}
	return faults
}

func (v *vmi) hasVolume(name string) bool {
	return slices.ContainsFunc(v.volumes(), func(v volume) bool { return v.Name == name })
}

func (v *vmi) hasDisk(name string) bool {
	return slices.ContainsFunc(v.devices().Disks.items, func(d disk) bool { return d.Name == name })
}
