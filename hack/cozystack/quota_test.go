// SPDX-License-Identifier: Apache-2.0

package cozystack

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"cozystack.io/gpu/pkg/gpu"
)

func TestQuotasWithoutBudgetsRenderAsBefore(t *testing.T) {
	for _, values := range []string{
		"{}", "resourceQuotas: null", "resourceQuotas: {}", "resourceQuotas: {cpu: null}",
		`resourceQuotas: {cpu: 10, memory: 64Gi, services.loadbalancers: "1", nvidia.com/gpu: 2, gpu.cozystack.io: 3, pods: 10000000}`,
	} {
		assert.Equal(t, render(t, Plain(t, "quota"), Values(t, values)), render(t, Wired(t, "quota"), Values(t, values)), values)
	}
}

func TestBudgetsStayOutOfTheQuota(t *testing.T) {
	budgets := map[string]any{gpu.QuotaKeyTotal: 8, gpu.QuotaKeyPrefix + "class.h100": "2", gpu.QuotaKeyPrefix + "mistyped": 1}
	with := func(others map[string]any) map[string]any {
		quotas := map[string]any{}
		maps.Copy(quotas, budgets)
		maps.Copy(quotas, others)
		return map[string]any{"resourceQuotas": quotas}
	}
	others := map[string]any{"cpu": 10, "memory": "64Gi"}
	values := with(others)
	want := render(t, Plain(t, "quota"), map[string]any{"resourceQuotas": others})
	assert.Equal(t, want, render(t, Wired(t, "quota"), values))
	assert.Equal(t, with(others), values, "other templates see the budgets still")

	// With budgets alone there is nothing to limit: no quota, and no limits
	// that would come with one.
	assert.Empty(t, strings.TrimSpace(render(t, Wired(t, "quota"), with(nil))))
}
