// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cozystack.io/gpu/pkg/model/v1alpha1"
)

type fixedReader struct {
	classes []v1alpha1.GPUClass
	err     error
}

func (r fixedReader) Classes(context.Context) ([]v1alpha1.GPUClass, error) { return r.classes, r.err }

func class(name, resourceName string, tolerations ...v1alpha1.Toleration) v1alpha1.GPUClass {
	return v1alpha1.GPUClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.GPUClassSpec{Mode: v1alpha1.ModePassthrough, ResourceName: resourceName, Tolerations: tolerations},
	}
}

var (
	gpuTaint  = v1alpha1.Toleration{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
	h100Taint = v1alpha1.Toleration{Key: "gpu", Value: "h100"}
	classes   = []v1alpha1.GPUClass{class("h100", "nvidia.com/H100", gpuTaint, h100Taint), class("l4", "nvidia.com/L4", gpuTaint), class("bare", "nvidia.com/T4")}
)

const (
	gpuJSON  = `{"key":"nvidia.com/gpu","operator":"Exists","effect":"NoSchedule"}`
	h100JSON = `{"key":"gpu","value":"h100"}`
	h100     = `[{"className":"h100","count":1}]`

	requestsH100 = `"containers":[{"resources":{"requests":{"cpu":"1","nvidia.com/H100":"1"}}}]`
)

// launcher returns a launcher pod with the annotation and a spec.
func launcher(annotation, spec string) string {
	quoted, _ := json.Marshal(annotation)
	return fmt.Sprintf(`{"metadata":{"labels":{"kubevirt.io":"virt-launcher","cozystack.io/gpu-reference":"true"},"annotations":{"cozystack.io/gpus":%s}},"spec":{%s}}`, quoted, spec)
}

func admitPod(t *testing.T, raw string, reader Reader) *admissionv1.AdmissionResponse {
	t.Helper()
	request := &admissionv1.AdmissionRequest{Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, Operation: admissionv1.Create, Namespace: "tenant-a"}
	request.Object.Raw = []byte(raw)
	return Admitter{Reader: reader}.Admit(t.Context(), request)
}

func TestTolerationsAreAdded(t *testing.T) {
	for name, tc := range map[string]struct{ pod, want string }{
		"to a pod without any": {
			launcher(h100, requestsH100),
			`[{"op":"add","path":"/spec/tolerations","value":[` + gpuJSON + `,` + h100JSON + `]}]`,
		},
		"behind those it has": {
			launcher(h100, `"tolerations":[{"key":"other"}],`+requestsH100),
			`[{"op":"add","path":"/spec/tolerations/-","value":` + gpuJSON + `},{"op":"add","path":"/spec/tolerations/-","value":` + h100JSON + `}]`,
		},
		"only those it does not have, whatever way they are written": {
			launcher(h100, `"tolerations":[{"key":"gpu","operator":"Equal","value":"h100"}],`+requestsH100),
			`[{"op":"add","path":"/spec/tolerations/-","value":` + gpuJSON + `}]`,
		},
		"also one that the pod has for another time": {
			launcher(`[{"className":"l4","count":1}]`, `"tolerations":[{"key":"nvidia.com/gpu","operator":"Exists","effect":"NoSchedule","tolerationSeconds":5}],"containers":[{"resources":{"requests":{"nvidia.com/L4":"1"}}}]`),
			`[{"op":"add","path":"/spec/tolerations/-","value":` + gpuJSON + `}]`,
		},
		"each once for several classes, in the order of the entries": {
			launcher(`[{"className":"l4","count":1},{"className":"h100","count":1},{"className":"l4","count":1}]`,
				`"containers":[{"resources":{"requests":{"nvidia.com/H100":"1","nvidia.com/L4":"2"}}}]`),
			`[{"op":"add","path":"/spec/tolerations","value":[` + gpuJSON + `,` + h100JSON + `]}]`,
		},
		"only of the classes whose device it requests": {
			launcher(`[{"className":"l4","count":1},{"className":"h100","count":1}]`, `"containers":[{},{"resources":{"requests":{"nvidia.com/L4":"1","nvidia.com/H100":"0"}}}]`),
			`[{"op":"add","path":"/spec/tolerations","value":[` + gpuJSON + `]}]`,
		},
		"for a device of an init container": {
			launcher(`[{"className":"l4","count":1}]`, `"initContainers":[{"resources":{"requests":{"nvidia.com/L4":"1"}}}]`),
			`[{"op":"add","path":"/spec/tolerations","value":[` + gpuJSON + `]}]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			response := admitPod(t, tc.pod, fixedReader{classes: classes})
			require.True(t, response.Allowed, "%+v", response.Result)
			assert.JSONEq(t, tc.want, string(response.Patch))
			assert.Equal(t, admissionv1.PatchTypeJSONPatch, *response.PatchType)
		})
	}
}

func TestAdmittedWithoutAPatch(t *testing.T) {
	for name, pod := range map[string]string{
		"a device that no class named has": launcher(h100, `"containers":[{"resources":{"requests":{"nvidia.com/L4":"1"}}}]`),
		"no device at all":                 launcher(h100, `"containers":[{}]`),
		"all tolerations are there":        launcher(h100, `"tolerations":[`+h100JSON+`,`+gpuJSON+`],`+requestsH100),
		"a class without tolerations":      launcher(`[{"className":"bare","count":1}]`, `"containers":[{"resources":{"requests":{"nvidia.com/T4":"1"}}}]`),
		"an empty list of classes":         launcher(`[]`, requestsH100),
		"a labelled pod that runs no VM":   `{"metadata":{"labels":{"cozystack.io/gpu-reference":"true"}},"spec":{}}`,
		"a hotplug pod":                    `{"metadata":{"labels":{"kubevirt.io":"hotplug-disk","cozystack.io/gpu-reference":"true"}},"spec":{}}`,
		"a launcher pod without our label": `{"metadata":{"labels":{"kubevirt.io":"virt-launcher"}},"spec":{}}`,
	} {
		t.Run(name, func(t *testing.T) {
			response := admitPod(t, pod, fixedReader{classes: classes})
			require.True(t, response.Allowed, "%+v", response.Result)
			assert.Nil(t, response.Patch)
		})
	}
}

func TestClassBeingDeletedStillCounts(t *testing.T) {
	leaving := class("h100", "nvidia.com/H100", gpuTaint)
	leaving.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	response := admitPod(t, launcher(h100, requestsH100), fixedReader{classes: []v1alpha1.GPUClass{leaving}})
	require.True(t, response.Allowed)
	assert.JSONEq(t, `[{"op":"add","path":"/spec/tolerations","value":[`+gpuJSON+`]}]`, string(response.Patch))
}

func TestRefusals(t *testing.T) {
	missing := `{"metadata":{"labels":{"kubevirt.io":"virt-launcher","cozystack.io/gpu-reference":"true"}},"spec":{}}`
	for name, tc := range map[string]struct {
		pod    string
		reader fixedReader
		code   int32
		causes []metav1.CauseType
		want   string
	}{
		"no annotation":            {missing, fixedReader{}, 403, []metav1.CauseType{CauseAnnotationMissing}, "annotation cozystack.io/gpus does not name them"},
		"a malformed annotation":   {launcher(`[{"classname":"h100"}]`, ""), fixedReader{}, 400, []metav1.CauseType{CauseAnnotationMalformed}, `[0]: unknown field "classname"`},
		"every class that is gone": {launcher(`[{"className":"a","count":1},{"className":"h100","count":1},{"className":"b","count":1}]`, ""), fixedReader{classes: classes}, 403, []metav1.CauseType{CauseClassNotFound, CauseClassNotFound}, `GPU class "a": there is no GPUClass of this name; GPU class "b"`},
		"a failed read":            {launcher(h100, ""), fixedReader{err: errors.New("read gpuclasses: refused")}, 500, nil, "read gpuclasses: refused"},
		"no pod":                   {`[]`, fixedReader{}, 400, []metav1.CauseType{metav1.CauseTypeFieldValueInvalid}, "the pod cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			response := admitPod(t, tc.pod, tc.reader)
			require.False(t, response.Allowed)
			assert.Equal(t, tc.code, response.Result.Code)
			assert.Contains(t, response.Result.Message, tc.want)
			var causes []metav1.CauseType
			if response.Result.Details != nil {
				for _, cause := range response.Result.Details.Causes {
					causes = append(causes, cause.Type)
				}
			}
			assert.Equal(t, tc.causes, causes)
		})
	}
}

func TestOtherRequestsAreRefusedAsMisconfigured(t *testing.T) {
	for name, request := range map[string]*admissionv1.AdmissionRequest{
		"an update":        {Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, Operation: admissionv1.Update},
		"a subresource":    {Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, Operation: admissionv1.Create, SubResource: "binding"},
		"another resource": {Resource: metav1.GroupVersionResource{Group: "apps", Version: "v1", Resource: "pods"}, Operation: admissionv1.Create},
	} {
		t.Run(name, func(t *testing.T) {
			response := Admitter{Reader: fixedReader{}}.Admit(t.Context(), request)
			require.False(t, response.Allowed)
			assert.EqualValues(t, 400, response.Result.Code)
			assert.Contains(t, response.Result.Message, "correct the rules of the webhook configuration")
		})
	}
}
