// SPDX-License-Identifier: Apache-2.0

package review

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/services/budget-checker/internal/budget"
)

// faulty are specs that are refused, each with its causes and with what it
// counts for where it is stored already.
var faulty = map[string]struct {
	kind, spec string
	causes     []metav1.StatusCause // Message holds a part of the message
	stored     model.Amounts
}{
	"a case variant": {vm, `{"Gpus":[{"className":"h100","count":2}]}`,
		[]metav1.StatusCause{{Type: CauseFieldCase, Field: "spec.Gpus", Message: "spec.Gpus is no field; write spec.gpus"}}, nil},
	"a case variant beside the field": {vm, `{"gpus":[{"className":"h100","count":1}],"GPUS":[]}`,
		[]metav1.StatusCause{{Type: CauseFieldCase, Field: "spec.GPUS", Message: "write spec.gpus"}}, use(1, "h100")},
	"a variant of a letter": {vm, `{"gpu\u017f":[]}`,
		[]metav1.StatusCause{{Type: CauseFieldCase, Field: "spec.gpuſ", Message: "write spec.gpus"}}, nil},
	"a duplicate list": {vm, `{"gpus":[],"gpus":[{"className":"h100","count":2}]}`,
		[]metav1.StatusCause{{Type: CauseDuplicateField, Field: "spec.gpus", Message: "spec.gpus stands there 2 times; write it once"}}, nil},
	"a duplicate count": {vm, `{"gpus":[{"className":"h100","count":1,"count":2}]}`,
		[]metav1.StatusCause{{Type: CauseEntriesMalformed, Field: "spec.gpus", Message: `spec.gpus cannot be read: [0]: duplicate field "count"`}}, nil},
	"a count as string": {vm, `{"gpus":[{"className":"h100","count":"2"}]}`,
		[]metav1.StatusCause{{Type: CauseEntriesMalformed, Field: "spec.gpus", Message: `[0].count: must be a whole number of at least 1, got "2"`}}, nil},
	"a list that is none": {vm, `{"gpus":{"className":"h100","count":2}}`,
		[]metav1.StatusCause{{Type: CauseEntriesMalformed, Field: "spec.gpus", Message: "must be a list"}}, nil},
	"a null entry": {vm, `{"gpus":[null]}`,
		[]metav1.StatusCause{{Type: CauseEntriesMalformed, Field: "spec.gpus", Message: "[0]: must be an object"}}, nil},
	"both kinds of entries": {vm, `{"gpus":[{"className":"h100","count":2},{"name":"x"}]}`,
		[]metav1.StatusCause{{Type: CauseEntriesMalformed, Field: "spec.gpus", Message: "but not both"}}, nil},
	"a spec that is a list": {vm, `[{"gpus":[]}]`,
		[]metav1.StatusCause{{Type: CauseWrongType, Field: "spec", Message: "spec must be an object, got [{"}}, nil},
	"a negative size": {pool, `{"gpus":[{"className":"h100","count":2}],"minReplicas":-1,"maxReplicas":3}`,
		[]metav1.StatusCause{{Type: CauseReplicasInvalid, Field: "spec.minReplicas", Message: "spec.minReplicas must be a whole number of at least 0, got -1"}}, use(6, "h100")},
	"sizes of wrong types": {pool, `{"gpus":[{"className":"h100","count":2}],"minReplicas":"1","maxReplicas":1.5}`,
		[]metav1.StatusCause{{Type: CauseReplicasInvalid, Field: "spec.minReplicas", Message: `got "1"`}, {Type: CauseReplicasInvalid, Field: "spec.maxReplicas", Message: "got 1.5"}}, nil},
	"a size beyond 64 bits": {pool, `{"gpus":[{"className":"h100","count":2}],"maxReplicas":10000000000000000000}`,
		[]metav1.StatusCause{{Type: CauseReplicasInvalid, Field: "spec.maxReplicas", Message: "got 10000000000000000000"}}, nil},
	"sizes in the wrong case": {pool, `{"gpus":[{"className":"h100","count":2}],"maxreplicas":1,"MinReplicas":1}`,
		[]metav1.StatusCause{{Type: CauseFieldCase, Field: "spec.MinReplicas", Message: "write spec.minReplicas"}, {Type: CauseFieldCase, Field: "spec.maxreplicas", Message: "write spec.maxReplicas"}}, use(20, "h100")},
	"a duplicate size": {pool, `{"gpus":[{"className":"h100","count":2}],"minReplicas":1,"maxReplicas":1,"maxReplicas":9}`,
		[]metav1.StatusCause{{Type: CauseDuplicateField, Field: "spec.maxReplicas", Message: "stands there 2 times"}}, use(2, "h100")},
	"more units than can be": {pool, `{"gpus":[{"className":"h100","count":2}],"maxReplicas":1099511627776}`,
		[]metav1.StatusCause{{Type: CauseEntriesMalformed, Field: "spec.gpus", Message: "asks for more than 1099511627776 units"}}, nil},
	"quotas in the wrong case": {tenant, `{"ResourceQuotas":{"gpu.cozystack.io/total":1}}`,
		[]metav1.StatusCause{{Type: CauseFieldCase, Field: "spec.ResourceQuotas", Message: "write spec.resourceQuotas"}}, nil},
	"quotas twice": {tenant, `{"resourceQuotas":{"gpu.cozystack.io/total":1},"resourceQuotas":{}}`,
		[]metav1.StatusCause{{Type: CauseDuplicateField, Field: "spec.resourceQuotas", Message: "2 times"}}, nil},
	"quotas that are a list": {tenant, `{"resourceQuotas":["gpu.cozystack.io/total"]}`,
		[]metav1.StatusCause{{Type: CauseWrongType, Field: "spec.resourceQuotas", Message: "spec.resourceQuotas must be an object"}}, nil},
	"a quota twice": {tenant, quotas(`"gpu.cozystack.io/total":1,"gpu.cozystack.io/class.h100":2,"gpu.cozystack.io/total":9`),
		[]metav1.StatusCause{{Type: CauseDuplicateField, Field: "spec.resourceQuotas[gpu.cozystack.io/total]", Message: "2 times"}}, model.Amounts{quotaTotal: 0, quotaH100: 2}},
	"an unknown quota": {tenant, quotas(`"gpu.cozystack.io/h100":1`),
		[]metav1.StatusCause{{Type: CauseQuotaInvalid, Field: "spec.resourceQuotas[gpu.cozystack.io/h100]", Message: "is no GPU quota; the keys are gpu.cozystack.io/total and"}}, nil},
	"two faulty quotas": {tenant, quotas(`"gpu.cozystack.io/total":"","gpu.cozystack.io/class.h100":null`),
		[]metav1.StatusCause{{Type: CauseQuotaInvalid, Field: "spec.resourceQuotas[gpu.cozystack.io/class.h100]", Message: "got null"}, {Type: CauseQuotaInvalid, Field: "spec.resourceQuotas[gpu.cozystack.io/total]", Message: `got ""`}},
		model.Amounts{quotaTotal: 0, quotaH100: 0}},
}

func TestFaultsAreRefused(t *testing.T) {
	for name, tc := range faulty {
		t.Run(name, func(t *testing.T) {
			for _, request := range []*admissionv1.AdmissionRequest{create(tc.kind, tc.spec), update(tc.kind, `{}`, tc.spec), update(tc.kind, `{"gpus":[{}],"resourceQuotas":7}`, tc.spec)} {
				response, write := judge(t, request)
				assert.Nil(t, write)
				require.False(t, response.Allowed)
				assert.EqualValues(t, 400, response.Result.Code)
				assert.Equal(t, metav1.StatusReasonBadRequest, response.Result.Reason)
				causes := response.Result.Details.Causes
				require.Len(t, causes, len(tc.causes), "%+v", causes)
				for i, want := range tc.causes {
					assert.Equal(t, want.Type, causes[i].Type)
					assert.Equal(t, want.Field, causes[i].Field)
					assert.Contains(t, causes[i].Message, want.Message)
					assert.Contains(t, response.Result.Message, causes[i].Message)
				}
			}
			assert.Equal(t, tc.stored, Amounts(budget.Resource(resourceOf[tc.kind]), json.RawMessage(tc.spec)))
		})
	}
}

func TestFaultsThatAreStoredAlreadyAreLetPass(t *testing.T) {
	for name, tc := range faulty {
		t.Run(name, func(t *testing.T) {
			spec := tc.spec
			if spec[0] == '{' {
				spec = "{\n\"instanceType\":\"other\"," + spec[1:]
			}
			response, write := judge(t, update(tc.kind, tc.spec, spec))
			require.True(t, response.Allowed, "%+v", response.Result)
			require.Len(t, response.Warnings, len(tc.causes))
			for _, warning := range response.Warnings {
				assert.Contains(t, warning, "; it is as it was, so it is let pass, but counts as 0")
				assert.LessOrEqual(t, len(warning), 256)
			}
			if write == nil {
				assert.Empty(t, tc.stored)
				return
			}
			assert.Equal(t, tc.stored, write.New)
			assert.Equal(t, tc.stored, write.Old)
		})
	}
}

func TestWarningsFitInAHeader(t *testing.T) {
	spec := "{\"gpus\":{\n\t\"x\":\"\u007f\"}}"
	response, _ := judge(t, update(vm, spec, spec))
	require.True(t, response.Allowed, "%+v", response.Result)
	require.Len(t, response.Warnings, 1)
	assert.Contains(t, response.Warnings[0], `got {  "x":" "}; it is as it was`)
}

func TestFaultsAreComparedByMeaning(t *testing.T) {
	const doubled = `{"gpus":[{"className":"h100","count":9,"count":1}]}`
	for name, tc := range map[string]struct {
		request *admissionv1.AdmissionRequest
		allowed bool
	}{
		"the order of fields":                {update(vm, `{"gpus":[{"className":"h100","count":0}]}`, `{"gpus":[ {"count":0, "className":"h\u0031\u00300"} ]}`), true},
		"another fault in the same place":    {update(vm, `{"gpus":[{"className":"h100","count":0}]}`, `{"gpus":[{"className":"h100","count":-1}]}`), false},
		"duplicates that one reader drops":   {update(vm, `{"gpus":[{"className":"h100","count":1,"count":1}]}`, doubled), false},
		"the same duplicates":                {update(vm, doubled, doubled), true},
		"another quota gets faulty":          {update(tenant, quotas(`"gpu.cozystack.io/total":-1`), quotas(`"gpu.cozystack.io/total":-1,"gpu.cozystack.io/class.h100":-1`)), false},
		"another quota is written right":     {update(tenant, quotas(`"gpu.cozystack.io/total":-1`), quotas(`"gpu.cozystack.io/total":-1,"gpu.cozystack.io/class.h100":1`)), true},
		"a key that becomes faulty":          {update(tenant, quotas(`"gpu.cozystack.io/total":1`), quotas(`"gpu.cozystack.io/total":-1`)), false},
		"units are added under a bad size":   {update(pool, `{"gpus":[{"className":"h100","count":1}],"maxReplicas":-1}`, `{"gpus":[{"className":"h100","count":2}],"maxReplicas":-1}`), false},
		"units are taken off under one":      {update(pool, `{"gpus":[{"className":"h100","count":1}],"maxReplicas":-1}`, `{"gpus":[],"maxReplicas":-1}`), true},
		"a size is mended while another not": {update(pool, `{"gpus":[{"className":"h100","count":1}],"minReplicas":-1,"maxReplicas":-1}`, `{"gpus":[{"className":"h100","count":1}],"minReplicas":-1,"maxReplicas":1}`), true},
		"a fault that the old object lacks":  {update(vm, twoH100, `{"gpus":[{"className":"h100","count":0}]}`), false},
		"an old object that cannot be read": {func() *admissionv1.AdmissionRequest {
			r := update(vm, `{}`, `{"gpus":7}`)
			r.OldObject.Raw = nil
			return r
		}(), false},
	} {
		t.Run(name, func(t *testing.T) {
			response, _ := judge(t, tc.request)
			assert.Equal(t, tc.allowed, response.Allowed, "%+v", response.Result)
		})
	}
}

func TestQuotaValues(t *testing.T) {
	for raw, want := range map[string]int64{
		`-1`: -1, `"-1"`: -1, `1.5`: -1, `"1.5"`: -1, `""`: -1, `null`: -1, `"null"`: -1, `[]`: -1, `10000000000000000000`: -1, `"10000000000000000000"`: -1, `1e999999999`: -1,
		`"1k"`: 1000, `0`: 0, `"0"`: 0, `3`: 3, `3.0`: 3, `"3"`: 3,
	} {
		t.Run(raw, func(t *testing.T) {
			for _, key := range []string{quotaTotal, quotaH100} {
				response, write := judge(t, create(tenant, quotas(fmt.Sprintf(`"cpu":"1.5",%q:%s`, key, raw))))
				if want < 0 {
					require.False(t, response.Allowed)
					assert.Equal(t, "spec.resourceQuotas["+key+"]", response.Result.Details.Causes[0].Field)
					continue
				}
				require.True(t, response.Allowed, "%+v", response.Result)
				assert.Equal(t, model.Amounts{key: want}, write.New)
			}
		})
	}
}

func TestTenantDeclaresABoundedNumberOfQuotas(t *testing.T) {
	declare := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(`"gpu.cozystack.io/class.c%d":1`, i))
		}
		return quotas(strings.Join(list, ","))
	}
	response, _ := judge(t, create(tenant, declare(64)))
	assert.True(t, response.Allowed)
	response, _ = judge(t, create(tenant, declare(65)))
	require.False(t, response.Allowed)
	assert.Contains(t, response.Result.Message, "spec.resourceQuotas declares 65 GPU quotas; at most 64 can be declared")
}

func TestRefusalStaysShortWhateverIsRefused(t *testing.T) {
	var list []string
	for i := range 1000 {
		list = append(list, fmt.Sprintf(`"gpu.cozystack.io/%d%s":%q`, i, strings.Repeat("é", 5000), strings.Repeat("9", 5000)))
	}
	response, _ := judge(t, create(tenant, quotas(strings.Join(list, ","))))
	require.False(t, response.Allowed)
	assert.Len(t, response.Result.Details.Causes, shownFaults)
	assert.Contains(t, response.Result.Message, "; and 968 faults more")
	raw, err := json.Marshal(response)
	require.NoError(t, err)
	assert.Less(t, len(raw), 64<<10)
	assert.True(t, json.Valid(raw))
}

// The spec is whatever a tenant sent: none may bring the service down, and what
// an admitted write holds is what it will count for once it is stored, or the
// ledger would wait for it in vain.
func FuzzAdmit(f *testing.F) {
	kinds := []string{vm, pool, tenant}
	for _, tc := range faulty {
		for i, kind := range kinds {
			if kind == tc.kind {
				f.Add(i, tc.spec, `{}`)
				f.Add(i, tc.spec, tc.spec)
			}
		}
	}
	f.Add(0, twoH100, `{"gpus":[{"name":"x"}]}`)
	f.Add(1, `{"gpus":[{"className":"h100","count":2}],"maxReplicas":3}`, `null`)
	f.Add(2, quotas(`"gpu.cozystack.io/total":"1k"`), quotas(``))
	f.Fuzz(func(t *testing.T, kind int, spec, old string) {
		if kind < 0 || kind >= len(kinds) {
			return
		}
		response, write := judge(t, update(kinds[kind], old, spec))
		if !response.Allowed {
			assert.Nil(t, write)
			assert.EqualValues(t, 400, response.Result.Code)
			assert.NotEmpty(t, response.Result.Message)
			return
		}
		assert.LessOrEqual(t, len(response.Warnings), 8)
		if write == nil || !json.Valid([]byte(spec)) {
			return
		}
		resource := budget.Resource(resourceOf[kinds[kind]])
		assert.Equal(t, Amounts(resource, json.RawMessage(spec)), write.New)
		assert.NotNil(t, write.Old)
		var sum int64
		for key, amount := range write.New {
			assert.GreaterOrEqual(t, amount, int64(0))
			assert.LessOrEqual(t, amount, int64(model.MaxAmount))
			if key != gpu.QuotaKeyTotal {
				sum += amount
			}
		}
		if resource != budget.Tenants {
			assert.Equal(t, sum, write.New[gpu.QuotaKeyTotal])
		}
		if len(response.Warnings) == 0 {
			created, _ := judge(t, create(kinds[kind], spec))
			assert.True(t, created.Allowed, "nothing was said of a fault: %+v", created.Result)
		}
	})
}
