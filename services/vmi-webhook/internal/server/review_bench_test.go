// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	virtv1 "kubevirt.io/api/core/v1"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model/v1alpha1"
	"cozystack.io/gpu/services/vmi-webhook/internal/admit"
)

type fixedState admit.State

func (s fixedState) Read(context.Context, string) (admit.State, error) { return admit.State(s), nil }

// benchReview returns a review of a VMI as a KubeVirt cluster sends it.
func benchReview(b *testing.B, annotation string, disks int) []byte {
	b.Helper()
	vmi := &virtv1.VirtualMachineInstance{
		TypeMeta: metav1.TypeMeta{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "vm-1", Namespace: "tenant-a", UID: "0d8e4c4e-5f0a-4c4e-9d0a-0d8e4c4e5f0a",
			Labels:          map[string]string{gpu.LabelGPUReference: "true", "kubevirt.io/domain": "vm-1", "app.kubernetes.io/name": "vm-instance"},
			Annotations:     map[string]string{gpu.AnnotationGPUs: annotation, "kubevirt.io/latest-observed-api-version": "v1"},
			Finalizers:      []string{"foregroundDeleteVirtualMachine"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "vm-1", UID: "1"}},
		},
		Spec: virtv1.VirtualMachineInstanceSpec{
			Architecture: "amd64",
			Domain: virtv1.DomainSpec{
				CPU:     &virtv1.CPU{Cores: 4, Sockets: 1, Threads: 1, MaxSockets: 4, Model: "host-model"},
				Machine: &virtv1.Machine{Type: "q35"},
				Devices: virtv1.Devices{Interfaces: []virtv1.Interface{{Name: "default", InterfaceBindingMethod: virtv1.InterfaceBindingMethod{Bridge: &virtv1.InterfaceBridge{}}}}},
			},
			Networks: []virtv1.Network{{Name: "default", NetworkSource: virtv1.NetworkSource{Pod: &virtv1.PodNetwork{}}}},
		},
	}
	for i := range disks {
		name := fmt.Sprintf("disk-%d", i)
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, virtv1.Disk{
			Name: name, DiskDevice: virtv1.DiskDevice{Disk: &virtv1.DiskTarget{Bus: virtv1.DiskBusVirtio}},
		})
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, virtv1.Volume{
			Name: name, VolumeSource: virtv1.VolumeSource{DataVolume: &virtv1.DataVolumeSource{Name: "vm-disk-" + name}},
		})
	}
	object, err := json.Marshal(vmi)
	require.NoError(b, err)
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID:       "b2b6ce5e-6a1f-4c6f-9a0b-1f2d3c4b5a69",
			Kind:      metav1.GroupVersionKind{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachineInstance"},
			Resource:  metav1.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"},
			Operation: admissionv1.Create, Namespace: "tenant-a", Name: "vm-1",
			Object: runtime.RawExtension{Raw: object},
		},
	})
	require.NoError(b, err)
	return body
}

// BenchmarkReview measures a decision from the bytes of an AdmissionReview to
// the bytes of its answer, without the reads from the API server.
func BenchmarkReview(b *testing.B) {
	state := fixedState{
		Classes: []v1alpha1.GPUClass{
			{ObjectMeta: metav1.ObjectMeta{Name: "l40s-24c"}, Spec: v1alpha1.GPUClassSpec{Mode: v1alpha1.ModeVGPU, ResourceName: "nvidia.com/L40S-24C", License: &v1alpha1.License{SecretName: "token"}}},
			{ObjectMeta: metav1.ObjectMeta{Name: "h100"}, Spec: v1alpha1.GPUClassSpec{Mode: v1alpha1.ModePassthrough, ResourceName: "nvidia.com/H100"}},
		},
		PermittedHostDevices: []*virtv1.PermittedHostDevices{{
			PciHostDevices:  []virtv1.PciHostDevice{{ResourceName: "nvidia.com/H100"}},
			MediatedDevices: []virtv1.MediatedHostDevice{{ResourceName: "nvidia.com/L40S-24C"}},
		}},
		NamespaceLabels: map[string]string{gpu.LabelNamespaceVGPU: "true"},
	}
	for _, bc := range []struct {
		name, annotation string
		disks            int
	}{
		{"typical", `[{"className":"l40s-24c","count":1}]`, 2},
		{"16units-40disks", `[{"className":"h100","count":15},{"className":"l40s-24c","count":1}]`, 40},
	} {
		b.Run(bc.name, func(b *testing.B) {
			r := newReviewer(admit.Admitter{Reader: state}, zap.NewNop())
			body := benchReview(b, bc.annotation, bc.disks)
			answer, err := r.answer(b.Context(), body)
			require.NoError(b, err)
			require.Contains(b, string(answer), `"allowed":true,"patch"`)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.answer(b.Context(), body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
