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
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model/v1alpha1"
	"cozystack.io/gpu/services/pod-webhook/internal/admit"
)

type fixedClasses []v1alpha1.GPUClass

func (c fixedClasses) Classes(context.Context) ([]v1alpha1.GPUClass, error) { return c, nil }

// BenchmarkReview measures a decision from the bytes of an AdmissionReview to
// the bytes of its answer, without the read from the API server.
func BenchmarkReview(b *testing.B) {
	classes := fixedClasses{{
		ObjectMeta: metav1.ObjectMeta{Name: "l40s-24c"},
		Spec: v1alpha1.GPUClassSpec{
			Mode: v1alpha1.ModeVGPU, ResourceName: "nvidia.com/L40S-24C",
			Tolerations: []v1alpha1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}},
		},
	}}
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "virt-launcher-vm-1-", Namespace: "tenant-a",
			Labels:      map[string]string{gpu.LabelGPUReference: "true", "kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "1"},
			Annotations: map[string]string{gpu.AnnotationGPUs: `[{"className":"l40s-24c","count":1}]`, "kubevirt.io/domain": "vm-1"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "compute",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				"cpu": resource.MustParse("400m"), "memory": resource.MustParse("8Gi"), "devices.kubevirt.io/kvm": resource.MustParse("1"), "nvidia.com/L40S-24C": resource.MustParse("1"),
			}},
		}}},
	}
	for i := range 20 {
		name := fmt.Sprintf("volume-%d", i)
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/var/run/" + name})
	}
	object, err := json.Marshal(pod)
	require.NoError(b, err)
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID:       "b2b6ce5e-6a1f-4c6f-9a0b-1f2d3c4b5a69",
			Resource:  metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			Operation: admissionv1.Create, Namespace: "tenant-a",
			Object: runtime.RawExtension{Raw: object},
		},
	})
	require.NoError(b, err)
	r := newReviewer(admit.Admitter{Reader: classes}, zap.NewNop())
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
}
