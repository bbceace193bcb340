// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"encoding/json"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
)

// vmi is the part of a VirtualMachineInstance that the decision reads. The
// object is never written back from it: fields that this build does not know
// would be lost. Mutating admission runs before the schema, so any part may be
// absent, null or of another type.
type vmi struct {
	Metadata struct {
		Annotations map[string]string `json:"annotations"`
		Labels      map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec *struct {
		Architecture string       `json:"architecture"`
		Volumes      list[volume] `json:"volumes"`
		Domain       *struct {
			Devices   *devices `json:"devices"`
			Resources struct {
				Limits   map[string]json.RawMessage `json:"limits"`
				Requests map[string]json.RawMessage `json:"requests"`
			} `json:"resources"`
		} `json:"domain"`
	} `json:"spec"`
}

type devices struct {
	GPUs        list[device] `json:"gpus"`
	HostDevices list[device] `json:"hostDevices"`
	Disks       list[disk]   `json:"disks"`
}

// device is an entry of gpus or hostDevices.
type device struct {
	Name       string `json:"name"`
	DeviceName string `json:"deviceName"`
}

type volume struct {
	Name   string        `json:"name"`
	Secret *secretVolume `json:"secret,omitempty"`
}

type secretVolume struct {
	SecretName  string `json:"secretName"`
	VolumeLabel string `json:"volumeLabel"`
	Optional    *bool  `json:"optional,omitempty"`
}

type disk struct {
	Name      string          `json:"name"`
	CDROM     *cdrom          `json:"cdrom,omitempty"`
	BootOrder json.RawMessage `json:"bootOrder,omitempty"`
}

type cdrom struct {
	Bus      string `json:"bus"`
	ReadOnly bool   `json:"readonly"`
	Tray     string `json:"tray"`
}

// list is a JSON list whose absence, null and wrong type are kept apart.
type list[T any] struct {
	items []T // nil if absent or null
	fault error
	at    string // path of the fault within the list
}

// UnmarshalJSON never fails, so that one wrong list hides no fault of another.
func (l *list[T]) UnmarshalJSON(raw []byte) error {
	l.fault = kjson.UnmarshalCaseSensitivePreserveInts(raw, &l.items)
	if l.fault == nil {
		return nil
	}
	var items []json.RawMessage
	if kjson.UnmarshalCaseSensitivePreserveInts(raw, &items) != nil {
		return nil // no list at all
	}
	for i, item := range items {
		var decoded T
		err := kjson.UnmarshalCaseSensitivePreserveInts(item, &decoded)
		if err == nil {
			continue
		}
		l.fault, l.at = err, fmt.Sprintf("[%d]", i)
		if mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && mismatch.Field != "" {
			l.at += "." + mismatch.Field
		}
		break
	}
	return nil
}

// decode reads the object. Its faults are types that no patch can deal with.
func decode(raw []byte) (*vmi, []metav1.StatusCause) {
	v := &vmi{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, v); err != nil {
		field := ""
		if mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			field = mismatch.Field
		}
		return nil, []metav1.StatusCause{wrongType(field, err)}
	}
	var faults []metav1.StatusCause
	check := func(field string, err error) {
		if err != nil {
			faults = append(faults, wrongType(field, err))
		}
	}
	if v.Spec != nil {
		check(pathVolumes+v.Spec.Volumes.at, v.Spec.Volumes.fault)
	}
	d := v.devices()
	check(pathGPUs+d.GPUs.at, d.GPUs.fault)
	check(pathHostDevices+d.HostDevices.at, d.HostDevices.fault)
	check(pathDisks+d.Disks.at, d.Disks.fault)
	return v, faults
}

func wrongType(field string, err error) metav1.StatusCause {
	if field == "" {
		field = "the object"
	}
	got := "something else"
	if mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		got = mismatch.Value
	}
	return metav1.StatusCause{
		Type:    CauseWrongType,
		Field:   field,
		Message: fmt.Sprintf("%s is no value that a VirtualMachineInstance can have there: found %s", field, got),
	}
}

// devices returns the VMI's devices, or none.
func (v *vmi) devices() devices {
	if v.Spec == nil || v.Spec.Domain == nil || v.Spec.Domain.Devices == nil {
		return devices{}
	}
	return *v.Spec.Domain.Devices
}

// resources returns the VMI's resource limits or requests.
func (v *vmi) resources(field string) map[string]json.RawMessage {
	switch {
	case v.Spec == nil || v.Spec.Domain == nil:
		return nil
	case field == "limits":
		return v.Spec.Domain.Resources.Limits
	default:
		return v.Spec.Domain.Resources.Requests
	}
}

func (v *vmi) volumes() []volume {
	if v.Spec == nil {
		return nil
	}
	return v.Spec.Volumes.items
}

func (v *vmi) architecture() string {
	if v.Spec == nil {
		return ""
	}
	return v.Spec.Architecture
}
