// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"cozystack.io/gpu/pkg/gpu"
)

func TestParseBudgetReadsWholeAmounts(t *testing.T) {
	for raw, want := range map[string]int64{
		`0`: 0, `3`: 3, `3.0`: 3, `3e0`: 3, `1.5e1`: 15, `-0`: 0, `9007199254740992`: MaxAmount,
		`"0"`: 0, `"3"`: 3, `"3.0"`: 3, `"1k"`: 1000, `"0.5k"`: 500, `"1Ki"`: 1024, `"1e3"`: 1000, `"3000m"`: 3,
		`"9007199254740992"`: MaxAmount, `"9007199254740992000m"`: MaxAmount, `"\u0033"`: 3, `"+3"`: 3, `"0e99"`: 0,
	} {
		t.Run(raw, func(t *testing.T) {
			budget, faults := ParseBudget(map[string]json.RawMessage{gpu.QuotaKeyTotal: json.RawMessage(raw)})
			require.Empty(t, faults)
			assert.Equal(t, Amounts{gpu.QuotaKeyTotal: want}, budget)
		})
	}
}

func TestParseBudgetCountsAFaultyAmountAsZero(t *testing.T) {
	const whole = `must be a whole number of at least 0, such as 8 or "8", got `
	for raw, want := range map[string]string{
		`-1`: whole + `-1`, `1.5`: whole + `1.5`, `""`: whole + `""`, `null`: whole + `null`, `true`: whole + `true`, `[3]`: whole + `[3]`, `{}`: whole + `{}`,
		``: whole, `"-1"`: whole, `"1.5"`: whole, `"1m"`: whole, `"1e-9"`: whole, `"1e-20"`: whole, `" 3"`: whole, `"3 "`: whole, `"three"`: whole, `"0x3"`: whole, `"1_000"`: whole,
		`"1.0000000000000000000001"`: whole, `1e-99`: whole,
		`10000000000000000000`: "must be at most 9007199254740992, got 10000000000000000000", `"10000000000000000000"`: "must be at most", `9007199254740993`: "must be at most",
		`"9007199254740992001m"`: "must be at most", `"1Ei"`: "must be at most", `"9E"`: "must be at most", `1e99`: "must be at most", `"99999999999999999e18"`: "must be at most",
		`1e999999999`: "exponent has at most 2 digits, got 1e999999999", `"1E-999999999"`: "exponent", `"1e+100"`: "exponent",
		`0.` + strings.Repeat("0", 1000) + `1`: "must be a number of at most 34 bytes, got 0.000",
		`"` + strings.Repeat("9", 1000) + `"`:  "must be a number of at most 34 bytes",
	} {
		t.Run(shorten(raw), func(t *testing.T) {
			budget, faults := ParseBudget(map[string]json.RawMessage{"cpu": json.RawMessage(`4`), ClassQuotaKey("h100"): json.RawMessage(raw)})
			require.ErrorContains(t, faults[ClassQuotaKey("h100")], want)
			assert.Len(t, faults, 1)
			assert.Less(t, len(faults[ClassQuotaKey("h100")].Error()), 200)
			assert.Equal(t, Amounts{ClassQuotaKey("h100"): 0}, budget)
		})
	}
}

func TestParseBudgetSpendsNothingOnAHugeExponent(t *testing.T) {
	start := time.Now()
	for _, raw := range []string{`1e999999999`, `"1e-999999999"`, `1e99`, `"1e-99"`} {
		for range 100 {
			ParseBudget(map[string]json.RawMessage{gpu.QuotaKeyTotal: json.RawMessage(raw)})
		}
	}
	assert.Less(t, time.Since(start), 5*time.Second)
}

func TestParseBudgetKnowsItsKeys(t *testing.T) {
	longest := strings.Repeat("x", 57)
	for key, valid := range map[string]bool{
		gpu.QuotaKeyTotal: true, ClassQuotaKey("h100"): true, ClassQuotaKey("total"): true, ClassQuotaKey(longest): true,
		ClassQuotaKey(longest + "x"): false, ClassQuotaKey(""): false, ClassQuotaKey("H100"): false, ClassQuotaKey("a.b"): false, ClassQuotaKey("-a"): false,
		gpu.QuotaKeyPrefix: false, gpu.QuotaKeyPrefix + "h100": false, gpu.QuotaKeyPrefix + "Total": false, gpu.QuotaKeyTotal + " ": false,
	} {
		t.Run(key, func(t *testing.T) {
			budget, faults := ParseBudget(map[string]json.RawMessage{key: json.RawMessage(`3`)})
			if valid {
				assert.Empty(t, faults)
				assert.Equal(t, Amounts{key: 3}, budget)
				return
			}
			assert.Nil(t, budget)
			require.ErrorContains(t, faults[key], "is no GPU quota; the keys are gpu.cozystack.io/total and gpu.cozystack.io/class.<name of a GPUClass>")
		})
	}
	budget, faults := ParseBudget(map[string]json.RawMessage{"cpu": json.RawMessage(`"-4"`), "GPU.cozystack.io/total": json.RawMessage(`{}`), "requests.gpu.cozystack.io/total": json.RawMessage(`1`)})
	assert.Nil(t, budget)
	assert.Nil(t, faults)
}

func usage(total int64, classes ...any) Amounts {
	amounts := Amounts{gpu.QuotaKeyTotal: total}
	for i := 0; i < len(classes); i += 2 {
		amounts[ClassQuotaKey(classes[i].(string))] = int64(classes[i+1].(int))
	}
	return amounts
}

func TestParseUsageCountsClassEntries(t *testing.T) {
	for name, tc := range map[string]struct {
		raw    string
		factor int64
		want   Amounts
	}{
		"absent":                                {``, 1, nil},
		"null":                                  {`null`, 1, nil},
		"empty":                                 {`[]`, 1, nil},
		"one class":                             {`[{"className":"h100","count":2}]`, 1, usage(2, "h100", 2)},
		"times the factor":                      {`[{"className":"h100","count":2}]`, 5, usage(10, "h100", 10)},
		"times 0":                               {`[{"className":"h100","count":2}]`, 0, nil},
		"several entries":                       {`[{"className":"b","count":2},{"className":"a","count":1},{"className":"b","count":3}]`, 2, usage(12, "b", 10, "a", 2)},
		"a class named total":                   {`[{"className":"total","count":2}]`, 1, usage(2, "total", 2)},
		"devices":                               {`[{"name":"nvidia.com/H100"},{"name":"x","deviceName":"y","count":"many","model":[1]}]`, 1, nil},
		"a device of whatever name":             {`[{"name":null}]`, 1, nil},
		"an unknown class":                      {`[{"className":"nonesuch","count":1}]`, 1, usage(1, "nonesuch", 1)},
		"the largest amount":                    {`[{"className":"a","count":1}]`, MaxUsage, usage(MaxUsage, "a", MaxUsage)},
		"a list longer than is read of classes": {`[{"name":"x"}` + strings.Repeat(`,{"name":"x"}`, MaxEntriesBytes) + `]`, 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseUsage(json.RawMessage(tc.raw), tc.factor)
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
		})
	}
}

func TestParseUsageNamesTheFault(t *testing.T) {
	classes := make([]string, 17)
	for i := range classes {
		classes[i] = fmt.Sprintf(`{"className":"c%d","count":1}`, i)
	}
	for name, tc := range map[string]struct {
		raw    string
		factor int64
		want   string
	}{
		"an object":                  {`{"className":"a","count":1}`, 1, "must be a list"},
		"a string":                   {`"[]"`, 1, "must be a list"},
		"a number":                   {`1`, 1, "must be a list"},
		"no JSON":                    {`[`, 1, "must be a list"},
		"a null entry":               {`[null]`, 1, "[0]: must be an object"},
		"an empty entry":             {`[{}]`, 1, "[0].className: must be the name of a GPUClass, got nothing"},
		"neither class nor name":     {`[{"deviceName":"x"}]`, 1, `[0]: unknown field "deviceName"`},
		"a count as string":          {`[{"className":"a","count":"1"}]`, 1, `[0].count: must be a whole number of at least 1, got "1"`},
		"no count":                   {`[{"className":"a"}]`, 1, "got nothing"},
		"a count of 0":               {`[{"className":"a","count":0}]`, 1, "got 0"},
		"a faulty entry times 0":     {`[{"className":"a","count":0}]`, 0, "got 0"},
		"a case variant":             {`[{"ClassName":"a","count":1}]`, 1, `[0]: unknown field "ClassName"; the fields are className and count`},
		"a case variant with a name": {`[{"name":"x"},{"name":"x","CLASSNAME":"a"}]`, 1, `[1]: unknown field "CLASSNAME"`},
		"a case variant of count":    {`[{"className":"a","Count":9,"count":1}]`, 1, `[0]: unknown field "Count"`},
		"a duplicate field":          {`[{"className":"a","count":1,"count":9}]`, 1, `[0]: duplicate field "count"`},
		"a duplicate name":           {`[{"name":"x","name":"y"}]`, 1, `[0]: duplicate field "name"`},
		"a name beside a class":      {`[{"name":"x","className":"a","count":1}]`, 1, `[0]: unknown field "name"`},
		"a null class beside a name": {`[{"name":"x","className":null}]`, 1, "[0].className: must be the name of a GPUClass, got null"},
		"both kinds":                 {`[{"className":"a","count":1},{"name":"x"}]`, 1, "but not both"},
		"both kinds times 0":         {`[{"className":"a","count":1},{"name":"x"}]`, 0, "but not both"},
		"a name no class can have":   {`[{"className":"A100","count":1}]`, 1, "[0].className: must be a DNS label of at most 57 characters, got A100"},
		"too long a name":            {`[{"className":"` + strings.Repeat("x", 58) + `","count":1}]`, 1, "must be a DNS label"},
		"too many classes":           {`[` + strings.Join(classes, ",") + `]`, 1, "names 17 classes; at most 16 can be named"},
		"too long a list":            {`[` + strings.Repeat(" ", MaxEntriesBytes) + `{"className":"a","count":1}]`, 1, "bytes long; at most 16384 are read"},
		"beyond the largest amount":  {`[{"className":"a","count":2}]`, MaxUsage/2 + 1, "asks for more than 1099511627776 units"},
		"beyond it only together":    {`[{"className":"a","count":1},{"className":"b","count":1}]`, MaxUsage, "asks for more than 1099511627776 units"},
		"beyond 64 bits":             {`[{"className":"a","count":2147483647}]`, 1 << 62, "asks for more than"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseUsage(json.RawMessage(tc.raw), tc.factor)
			require.ErrorContains(t, err, tc.want)
			assert.Nil(t, got)
			assert.Less(t, len(err.Error()), 1<<10)
		})
	}
}

func TestParseUsageKeepsItsErrorShort(t *testing.T) {
	_, err := ParseUsage(json.RawMessage("["+strings.Repeat("{},", 99999)+"{}]"), 1)
	require.ErrorContains(t, err, "; and 199984 faults more")
	assert.Less(t, len(err.Error()), 4<<10)
}

// Whatever is read as an amount is the number that exact arithmetic makes of
// it, and nothing else is.
func FuzzParseBudget(f *testing.F) {
	for _, seed := range []string{`3`, `3.0`, `-1`, `1.5`, `1e3`, `1e-3`, `1e999999999`, `"1k"`, `"3"`, `"1Ki"`, `""`, `null`, `[]`, `"\u0033"`, `9007199254740993`} {
		f.Add(gpu.QuotaKeyTotal, seed)
	}
	f.Add(ClassQuotaKey("a"), `1`)
	f.Add(gpu.QuotaKeyPrefix+"b", `1`)
	f.Add("cpu", `1`)
	f.Fuzz(func(t *testing.T, key, raw string) {
		budget, faults := ParseBudget(map[string]json.RawMessage{key: json.RawMessage(raw)})
		amount, declared := budget[key]
		if !strings.HasPrefix(key, gpu.QuotaKeyPrefix) {
			assert.False(t, declared)
			assert.Empty(t, faults)
			return
		}
		if err := faults[key]; err != nil {
			assert.Less(t, len(err.Error()), 256)
			assert.Zero(t, amount)
		} else {
			require.True(t, declared)
		}
		assert.LessOrEqual(t, amount, int64(MaxAmount))
		assert.GreaterOrEqual(t, amount, int64(0))
		if !declared || !json.Valid([]byte(raw)) || raw[0] == '"' || len(raw) > maxValueBytes || hugeExponent.MatchString(raw) {
			return
		}
		if exact, isNumber := new(big.Rat).SetString(raw); isNumber && raw[0] != ' ' {
			fits := exact.IsInt() && exact.Sign() >= 0 && exact.Cmp(big.NewRat(MaxAmount, 1)) <= 0
			assert.Equal(t, fits, faults[key] == nil, "%v", faults[key])
			if fits {
				assert.Equal(t, exact.Num().Int64(), amount)
			}
		}
	})
}

// What is counted is what a plain reader sums up.
func FuzzParseUsage(f *testing.F) {
	for _, seed := range []string{
		`null`, `[]`, `[{"className":"a","count":1}]`, `[{"className":"a","count":1},{"className":"b","count":2},{"className":"a","count":3}]`, `[{"name":"x"}]`,
		`[{"name":"x"},{"className":"a","count":1}]`, `[{"ClassName":"a","count":1}]`, `[{"className":"a","count":1,"count":2}]`, `[{}]`, `[[]]`,
	} {
		f.Add(seed, int64(3))
	}
	f.Fuzz(func(t *testing.T, raw string, factor int64) {
		got, err := ParseUsage(json.RawMessage(raw), factor)
		if err != nil {
			assert.Less(t, len(err.Error()), 8<<10)
			assert.Nil(t, got)
			return
		}
		if got == nil {
			return
		}
		var entries []struct {
			ClassName string `json:"className"`
			Count     int64  `json:"count"`
		}
		require.NoError(t, json.Unmarshal([]byte(raw), &entries))
		want := Amounts{}
		for _, e := range entries {
			want[ClassQuotaKey(e.ClassName)] += e.Count * factor
			want[gpu.QuotaKeyTotal] += e.Count * factor
		}
		assert.Equal(t, want, got)
	})
}
