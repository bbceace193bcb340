// SPDX-License-Identifier: Apache-2.0

package review

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/pkg/model/v1alpha1"
	"cozystack.io/gpu/services/budget-checker/internal/budget"
)

const (
	vm     = "VMInstance"
	pool   = "KubernetesNodes"
	tenant = "Tenant"
	uid    = types.UID("11111111-2222-3333-4444-555555555555")
)

// checker notes the writes that it is asked about and gives one decision.
type checker struct {
	decision budget.Decision
	writes   []budget.Write
}

func (c *checker) Decide(_ context.Context, w budget.Write) budget.Decision {
	c.writes = append(c.writes, w)
	return c.decision
}

// cloudClasses are a class of each mode, in namespaces of which one is entitled.
type cloudClasses struct{}

func (cloudClasses) Known() bool { return true }

func (cloudClasses) Class(name string) (*v1alpha1.GPUClass, bool) {
	class := &v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.GPUClassSpec{Mode: v1alpha1.ModePassthrough}}
	if strings.HasPrefix(name, "l40s") {
		class.Spec.Mode = v1alpha1.ModeVGPU
	}
	return class, name != "nonesuch"
}

func (cloudClasses) Entitled(namespace string) bool { return namespace == "tenant-entitled" }

var resourceOf = map[string]string{vm: "vminstances", pool: "kubernetesnodeses", tenant: "tenants"}

// create returns a request to create an object of the kind with the spec.
func create(kind, spec string) *admissionv1.AdmissionRequest {
	request := &admissionv1.AdmissionRequest{
		UID:       uid,
		Kind:      metav1.GroupVersionKind{Group: "apps.cozystack.io", Version: "v1alpha1", Kind: kind},
		Resource:  metav1.GroupVersionResource{Group: "apps.cozystack.io", Version: "v1alpha1", Resource: resourceOf[kind]},
		Operation: admissionv1.Create,
		Namespace: "tenant-a",
		Name:      "x",
	}
	request.Object.Raw = []byte(`{"metadata":{"name":"x"},"spec":` + spec + `}`)
	return request
}

// update returns a request to replace an object of version 7.
func update(kind, old, spec string) *admissionv1.AdmissionRequest {
	request := create(kind, spec)
	request.Operation = admissionv1.Update
	request.OldObject.Raw = []byte(`{"metadata":{"name":"x","resourceVersion":"7"},"spec":` + old + `}`)
	return request
}

// judge returns the answer of a checker that admits everything, and the write
// that it was asked about, if it was.
func judge(t *testing.T, request *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, *budget.Write) {
	t.Helper()
	c := &checker{decision: budget.Decision{Verdict: budget.Admitted}}
	response := Admitter{Checker: c, Classes: cloudClasses{}}.Admit(t.Context(), request)
	require.NotNil(t, response)
	if len(c.writes) == 0 {
		return response, nil
	}
	require.Len(t, c.writes, 1)
	return response, &c.writes[0]
}

func use(total int64, class string) model.Amounts {
	return model.Amounts{gpu.QuotaKeyTotal: total, model.ClassQuotaKey(class): total}
}

const (
	twoH100    = `{"gpus":[{"className":"h100","count":2}]}`
	quotaTotal = "gpu.cozystack.io/total"
	quotaH100  = "gpu.cozystack.io/class.h100"
)

func quotas(quotas string) string { return `{"resourceQuotas":{` + quotas + `}}` }

func TestWriteHoldsWhatTheObjectUses(t *testing.T) {
	for name, tc := range map[string]struct {
		request *admissionv1.AdmissionRequest
		want    model.Amounts
	}{
		"a VM":                              {create(vm, twoH100), use(2, "h100")},
		"a VM with other fields":            {create(vm, `{"gpus":[{"className":"h100","count":2}],"maxReplicas":"x","instanceType":{"a":1},"instanceType":2}`), use(2, "h100")},
		"a pool of the default size":        {create(pool, twoH100), use(20, "h100")},
		"a pool of null sizes":              {create(pool, `{"gpus":[{"className":"h100","count":2}],"minReplicas":null,"maxReplicas":null}`), use(20, "h100")},
		"a pool with a maximum":             {create(pool, `{"gpus":[{"className":"h100","count":2}],"minReplicas":1,"maxReplicas":3}`), use(6, "h100")},
		"a pool whose minimum is larger":    {create(pool, `{"gpus":[{"className":"h100","count":2}],"minReplicas":12}`), use(24, "h100")},
		"a tenant":                          {create(tenant, quotas(`"cpu":"4","gpu.cozystack.io/total":"1k","gpu.cozystack.io/class.h100":3`)), model.Amounts{quotaTotal: 1000, quotaH100: 3}},
		"a tenant to whom all is forbidden": {create(tenant, quotas(`"gpu.cozystack.io/total":0`)), model.Amounts{quotaTotal: 0}},
	} {
		t.Run(name, func(t *testing.T) {
			response, write := judge(t, tc.request)
			require.True(t, response.Allowed, "%+v", response.Result)
			assert.Empty(t, response.Warnings)
			require.NotNil(t, write)
			kind := tc.request.Kind.Kind
			assert.Equal(t, budget.Write{UID: uid, Key: budget.Key{Resource: budget.Resource(resourceOf[kind]), Namespace: "tenant-a", Name: "x"}, New: tc.want}, *write)
		})
	}
}

func TestWriteHoldsWhatIsStored(t *testing.T) {
	request := update(vm, twoH100, `{"gpus":[{"className":"h100","count":1}]}`)
	dryRun := true
	request.DryRun = &dryRun
	_, write := judge(t, request)
	assert.Equal(t, &budget.Write{
		UID: uid, Key: budget.Key{Resource: budget.VMInstances, Namespace: "tenant-a", Name: "x"},
		New: use(1, "h100"), Old: use(2, "h100"), OldVersion: "7", DryRun: true,
	}, write)

	for name, old := range map[string]string{"nothing": `{}`, "devices": `{"gpus":[{"name":"x"}]}`, "what cannot be read": `{"gpus":[{}]}`, "no spec": `7`} {
		t.Run(name, func(t *testing.T) {
			_, write := judge(t, update(vm, old, twoH100))
			require.NotNil(t, write)
			assert.Equal(t, model.Amounts{}, write.Old)
			assert.NotNil(t, write.Old)
		})
	}
}

func TestNameOfAnObjectThatHasNoneYet(t *testing.T) {
	for want, metadata := range map[string]string{
		"x":                                 `{"name":"x","generateName":"y"}`,
		"y11111111222233334444555555555555": `{"generateName":"y"}`,
		"11111111222233334444555555555555":  `{}`,
	} {
		request := create(tenant, quotas(`"gpu.cozystack.io/total":1`))
		request.Name = ""
		request.Object.Raw = []byte(strings.Replace(string(request.Object.Raw), `{"name":"x"}`, metadata, 1))
		response, write := judge(t, request)
		require.True(t, response.Allowed)
		require.NotNil(t, write, "a Tenant of a generated name must not pass unseen")
		assert.Equal(t, want, write.Key.Name)
		assert.Empty(t, response.Warnings)
	}
}

func TestWritesThatNeedNoDecision(t *testing.T) {
	terminating := func(request *admissionv1.AdmissionRequest) *admissionv1.AdmissionRequest {
		request.OldObject.Raw = []byte(strings.Replace(string(request.OldObject.Raw), `"name":"x"`, `"name":"x","deletionTimestamp":"2026-01-01T00:00:00Z"`, 1))
		return request
	}
	pretending := func(request *admissionv1.AdmissionRequest) *admissionv1.AdmissionRequest {
		request.Object.Raw = []byte(strings.Replace(string(request.Object.Raw), `"name":"x"`, `"name":"x","deletionTimestamp":"2026-01-01T00:00:00Z"`, 1))
		return request
	}
	elsewhere := func(request *admissionv1.AdmissionRequest) *admissionv1.AdmissionRequest {
		request.Namespace = "default"
		return request
	}
	total := func(amount int) string { return quotas(fmt.Sprintf(`"gpu.cozystack.io/total":%d`, amount)) }
	for name, tc := range map[string]struct {
		request *admissionv1.AdmissionRequest
		asked   bool
		warning string
	}{
		"a VM without devices":                       {create(vm, `{}`), false, ""},
		"a VM without a spec":                        {create(vm, `null`), false, ""},
		"a VM with a null list":                      {create(vm, `{"gpus":null}`), false, ""},
		"a VM with an empty list":                    {create(vm, `{"gpus":[]}`), false, ""},
		"a VM with devices of its own":               {create(vm, `{"gpus":[{"name":"nvidia.com/H100"}]}`), false, ""},
		"a VM that gives all back":                   {update(vm, twoH100, `{"gpus":[]}`), false, ""},
		"a VM that moves to a class":                 {update(vm, `{"gpus":[{"name":"x"}]}`, twoH100), true, ""},
		"a pool without VMs":                         {create(pool, `{"gpus":[{"className":"h100","count":2}],"maxReplicas":0}`), false, ""},
		"a pool without classes, whatever its size":  {create(pool, `{"gpus":[],"maxReplicas":"many","MinReplicas":-1}`), false, ""},
		"a tenant without GPU quotas":                {create(tenant, quotas(`"cpu":"-4","cpu":4`)), false, ""},
		"a tenant with null quotas":                  {create(tenant, `{"resourceQuotas":null}`), false, ""},
		"a tenant whose last GPU quota goes":         {update(tenant, total(3), quotas(``)), true, ""},
		"a tenant with a dash":                       {func() *admissionv1.AdmissionRequest { r := create(tenant, total(3)); r.Name = "a-b"; return r }(), false, `no namespace belongs to a Tenant "a-b" in namespace tenant-a, so its GPU quotas have no effect`},
		"a tenant outside of all tenants":            {elsewhere(create(tenant, total(3))), false, "have no effect"},
		"the same without quotas":                    {elsewhere(create(tenant, `{}`)), false, ""},
		"an unchanged VM that is going":              {terminating(update(vm, twoH100, twoH100)), false, ""},
		"a VM that lowers while going":               {terminating(update(vm, `{"gpus":[{"className":"h100","count":3}]}`, twoH100)), false, ""},
		"an unchanged VM that pretends to be going":  {pretending(update(vm, twoH100, twoH100)), true, ""},
		"a VM that raises while going":               {terminating(update(vm, `{"gpus":[{"className":"h100","count":1}]}`, twoH100)), true, ""},
		"a VM that changes its class while going":    {terminating(update(vm, `{"gpus":[{"className":"b","count":2}]}`, twoH100)), true, ""},
		"an unchanged tenant that is going":          {terminating(update(tenant, total(3), total(3))), false, ""},
		"a tenant that drops its budget while going": {terminating(update(tenant, total(3), quotas(``))), true, ""},
		"an unchanged VM":                            {update(vm, twoH100, twoH100), true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			response, write := judge(t, tc.request)
			require.True(t, response.Allowed, "%+v", response.Result)
			assert.Equal(t, tc.asked, write != nil)
			if tc.warning == "" {
				assert.Empty(t, response.Warnings)
				return
			}
			require.Len(t, response.Warnings, 1)
			assert.Contains(t, response.Warnings[0], tc.warning)
		})
	}
}

func TestDecisionsBecomeAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		request  *admissionv1.AdmissionRequest
		decision budget.Decision
		code     int32
		reason   metav1.StatusReason
		causes   []metav1.StatusCause
		seconds  int32
	}{
		"a VM beyond two budgets": {
			create(vm, twoH100),
			budget.Decision{Verdict: budget.Exceeded, Faults: []budget.Fault{{QuotaKey: quotaH100, Message: "no h100"}, {QuotaKey: quotaTotal, Message: "nothing"}}},
			403, metav1.StatusReasonForbidden,
			[]metav1.StatusCause{{Type: "BudgetExceeded", Field: "spec.gpus", Message: "no h100"}, {Type: "BudgetExceeded", Field: "spec.gpus", Message: "nothing"}}, 0,
		},
		"a tenant beyond the budget above": {
			create(tenant, quotas(`"gpu.cozystack.io/total":3`)),
			budget.Decision{Verdict: budget.Exceeded, Faults: []budget.Fault{{QuotaKey: quotaTotal, Message: "nothing"}}},
			403, metav1.StatusReasonForbidden,
			[]metav1.StatusCause{{Type: "BudgetExceeded", Field: "spec.resourceQuotas[gpu.cozystack.io/total]", Message: "nothing"}}, 0,
		},
		"too many writes": {
			create(vm, twoH100), budget.Decision{Verdict: budget.Busy, Message: "too many", RetryAfter: 1200 * time.Millisecond},
			429, metav1.StatusReasonTooManyRequests, []metav1.StatusCause{{Type: "TooManyWrites", Message: "too many; try again in 2 s"}}, 2,
		},
		"an unknown state": {
			create(vm, twoH100), budget.Decision{Verdict: budget.Unavailable, Message: "cannot know"},
			503, metav1.StatusReasonServiceUnavailable, []metav1.StatusCause{{Type: "Unavailable", Message: "cannot know"}}, 0,
		},
		"no decision at all": {
			create(vm, twoH100), budget.Decision{},
			500, metav1.StatusReasonInternalError, []metav1.StatusCause{{Type: metav1.CauseTypeInternal, Message: `the GPU budgets gave no decision ("")`}}, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			response := Admitter{Checker: &checker{decision: tc.decision}}.Admit(t.Context(), tc.request)
			require.False(t, response.Allowed)
			assert.Equal(t, tc.code, response.Result.Code)
			assert.Equal(t, tc.reason, response.Result.Reason)
			assert.Equal(t, metav1.StatusFailure, response.Result.Status)
			assert.Equal(t, tc.causes, response.Result.Details.Causes)
			assert.Equal(t, tc.seconds, response.Result.Details.RetryAfterSeconds)
			assert.Equal(t, "apps.cozystack.io", response.Result.Details.Group)
			for _, cause := range tc.causes {
				assert.Contains(t, response.Result.Message, cause.Message)
			}
		})
	}
}

func TestOtherRequestsAreRefusedAsMisconfigured(t *testing.T) {
	for name, change := range map[string]func(*admissionv1.AdmissionRequest){
		"a deletion":    func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Delete },
		"a subresource": func(r *admissionv1.AdmissionRequest) { r.SubResource = "status" },
		"another kind":  func(r *admissionv1.AdmissionRequest) { r.Kind.Kind = "VMDisk" },
		"another group": func(r *admissionv1.AdmissionRequest) { r.Kind.Group = "cozystack.io" },
	} {
		t.Run(name, func(t *testing.T) {
			request := create(vm, `{}`)
			change(request)
			response, write := judge(t, request)
			assert.Nil(t, write)
			require.False(t, response.Allowed)
			assert.EqualValues(t, 400, response.Result.Code)
			assert.Contains(t, response.Result.Message, "CREATE and UPDATE of KubernetesNodes, Tenant, VMInstance of apps.cozystack.io: correct the rules of the webhook configuration")
		})
	}
}

func TestWarningsSayWhatHappensAtStart(t *testing.T) {
	entries := func(classes ...string) string {
		for i, class := range classes {
			classes[i] = `{"className":"` + class + `","count":1}`
		}
		return `{"gpus":[` + strings.Join(classes, ",") + `]}`
	}
	for name, tc := range map[string]struct {
		request *admissionv1.AdmissionRequest
		want    []string
	}{
		"an unknown class":              {create(vm, entries("nonesuch")), []string{`spec.gpus: there is no GPUClass "nonesuch", so the VM will be refused when it starts`}},
		"a vGPU class":                  {create(vm, entries("l40s-24c")), []string{`namespace tenant-a lacks label namespace.cozystack.io/vgpu=true for vGPU class "l40s-24c"`}},
		"too large a count":             {create(vm, `{"gpus":[{"className":"h100","count":17}]}`), []string{`17 units of class "h100" are asked for, but one VM may take at most 16`}},
		"too large a count in parts":    {create(vm, `{"gpus":[{"className":"h100","count":9},{"className":"h100","count":9}]}`), []string{"18 units"}},
		"a large pool of small VMs":     {create(pool, `{"gpus":[{"className":"h100","count":16}],"maxReplicas":100}`), nil},
		"a pool without VMs":            {create(pool, `{"gpus":[{"className":"nonesuch","count":1}],"maxReplicas":0}`), []string{"there is no GPUClass"}},
		"several vGPU classes":          {create(vm, entries("l40s-24c", "l40s-48c", "h100")), []string{"l40s-24c", "l40s-48c", "a VM takes one vGPU class, but 2 are named (l40s-24c and l40s-48c)"}},
		"a class of a longest name":     {create(vm, entries("l40s"+strings.Repeat("x", 53))), []string{"so the VM will be refused when it starts"}},
		"more than can be told":         {create(vm, entries("l40s-1", "l40s-2", "l40s-3", "l40s-4", "l40s-5", "l40s-6", "l40s-7", "l40s-8")), []string{"l40s-1", "", "", "", "", "", "", "and 2 warnings more"}},
		"a budget of classes not there": {create(tenant, quotas(`"gpu.cozystack.io/class.nonesuch":1`)), nil},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(name, "longest") {
				tc.request.Namespace = "tenant-" + strings.Repeat("y", 56)
			}
			response, _ := judge(t, tc.request)
			require.True(t, response.Allowed, "%+v", response.Result)
			require.Len(t, response.Warnings, len(tc.want), "%q", response.Warnings)
			for i, want := range tc.want {
				assert.Contains(t, response.Warnings[i], want)
				assert.LessOrEqual(t, len(response.Warnings[i]), 256)
			}
		})
	}
	entitled := create(vm, entries("l40s-24c"))
	entitled.Namespace = "tenant-entitled"
	response, _ := judge(t, entitled)
	assert.Empty(t, response.Warnings)

	c := &checker{decision: budget.Decision{Verdict: budget.Admitted, Warnings: []string{"lowered"}}}
	response = Admitter{Checker: c}.Admit(t.Context(), create(vm, entries("nonesuch")))
	assert.Equal(t, []string{"lowered"}, response.Warnings, "without classes nothing is said about them")
}
