// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseEntriesKeepsOrderAndRepetition(t *testing.T) {
	entries, err := ParseEntries(` [{"className":"b","count":2}, {"count":1,"className":"a"},{"className":"b","count":2147483647}] `)
	require.NoError(t, err)
	assert.Equal(t, []Entry{{"b", 2}, {"a", 1}, {"b", 2147483647}}, entries)
	assert.Equal(t, map[string]int64{"a": 1, "b": 2147483649}, Units(entries))
	assert.Equal(t, []string{"b", "a"}, ClassNames(entries))
}

func TestParseEntriesReadsAnEmptyList(t *testing.T) {
	entries, err := ParseEntries("[]")
	require.NoError(t, err)
	assert.Empty(t, entries)
}

func TestParseEntriesNamesTheFaultAndItsPosition(t *testing.T) {
	for name, tc := range map[string]struct{ raw, want string }{
		"nothing":                   {``, "byte 0: unexpected end of JSON input"},
		"no JSON":                   {`l40s`, "byte 1: invalid character 'l'"},
		"cut off":                   {`[{"className":"a"`, "byte 17: unexpected end"},
		"garbage after the list":    {`[] x`, "byte 4: invalid character 'x' after top-level value"},
		"a second list":             {`[][]`, "byte 3: invalid character '['"},
		"null":                      {`null`, "must be a list"},
		"an object":                 {`{"className":"a","count":1}`, "must be a list"},
		"a string":                  {`"[]"`, "must be a list"},
		"a null entry":              {`[null]`, "[0]: must be an object"},
		"an entry of another type":  {`[{"className":"a","count":1},"b"]`, "[1]: must be an object"},
		"an unknown field":          {`[{"className":"a","count":1,"model":"x"}]`, `[0]: unknown field "model"; the fields are className and count`},
		"wrong case":                {`[{"classname":"a","count":1}]`, `[0]: unknown field "classname"`},
		"wrong case beside right":   {`[{"className":"a","Count":9,"count":1}]`, `[0]: unknown field "Count"`},
		"a duplicate field":         {`[{"className":"a","count":1,"count":2}]`, `[0]: duplicate field "count"`},
		"no class":                  {`[{"count":1}]`, "[0].className: must be the name of a GPUClass, got nothing"},
		"a null class":              {`[{"className":null,"count":1}]`, "[0].className: must be the name of a GPUClass, got null"},
		"an empty class":            {`[{"className":"","count":1}]`, `[0].className: must be the name of a GPUClass, got ""`},
		"a numeric class":           {`[{"className":40,"count":1}]`, "[0].className: must be the name of a GPUClass, got 40"},
		"no count":                  {`[{"className":"a"}]`, "[0].count: must be a whole number of at least 1, got nothing"},
		"a null count":              {`[{"className":"a","count":null}]`, "[0].count: must be a whole number of at least 1, got null"},
		"a count of zero":           {`[{"className":"a","count":0}]`, "[0].count: must be a whole number of at least 1, got 0"},
		"a negative count":          {`[{"className":"a","count":-1}]`, "got -1"},
		"a fractional count":        {`[{"className":"a","count":1.5}]`, "got 1.5"},
		"a count with an exponent":  {`[{"className":"a","count":1e0}]`, "got 1e0"},
		"a string count":            {`[{"className":"a","count":"1"}]`, `got "1"`},
		"a count beyond 32 bits":    {`[{"className":"a","count":2147483648}]`, "got 2147483648"},
		"more than one faulty part": {`[{"className":"a","count":0},{"count":1}]`, "[0].count: must be a whole number of at least 1, got 0; [1].className: must"},
	} {
		t.Run(name, func(t *testing.T) {
			entries, err := ParseEntries(tc.raw)
			require.ErrorContains(t, err, tc.want)
			assert.Nil(t, entries)
		})
	}
}

func TestParseEntriesKeepsItsErrorShort(t *testing.T) {
	_, err := ParseEntries("[" + strings.Repeat("{},", 5000) + "{}]")
	require.ErrorContains(t, err, "; and 9986 faults more")
	assert.Less(t, len(err.Error()), 4<<10)
	_, err = ParseEntries(`[{"className":"a","count":"` + strings.Repeat("é", 5000) + `","` + strings.Repeat("x", 5000) + `":1}]`)
	require.ErrorContains(t, err, "…")
	assert.Less(t, len(err.Error()), 1<<10)
}

func TestParseEntriesReadsUpToItsLimit(t *testing.T) {
	list := `[{"className":"a","count":1}]`
	_, err := ParseEntries(list + strings.Repeat(" ", MaxEntriesBytes-len(list)))
	require.NoError(t, err)
	_, err = ParseEntries(list + strings.Repeat(" ", MaxEntriesBytes-len(list)+1))
	require.ErrorContains(t, err, "is 16385 bytes long; at most 16384 are read")
}

// Whatever is read must be a list that any other strict reader reads alike.
func FuzzParseEntries(f *testing.F) {
	for _, seed := range []string{
		`[]`, `null`, `[{"className":"a","count":1}]`, `[{"className":"a","count":1},{"className":"b","count":2}]`,
		`[{"classname":"a","count":1}]`, `[{"className":"a","count":1,"count":2}]`, `[{"className":"a","count":"1"}]`,
		`[{"className":"\u0061","count":2147483647}] x`, `[[]]`, `[{}]`, `[1e3]`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		entries, err := ParseEntries(raw)
		if err != nil {
			assert.Nil(t, entries)
			return
		}
		type entry struct {
			ClassName string `json:"className"`
			Count     int32  `json:"count"`
		}
		want := []entry{}
		decoder := json.NewDecoder(strings.NewReader(raw))
		decoder.DisallowUnknownFields()
		require.NoError(t, decoder.Decode(&want))
		require.Len(t, entries, len(want))
		for i, e := range entries {
			assert.NotEmpty(t, e.ClassName)
			assert.Positive(t, e.Count)
			assert.Equal(t, want[i], entry(e))
		}
	})
}
