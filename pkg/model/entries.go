// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	kjson "sigs.k8s.io/json"
)

// MaxEntriesBytes is the longest list of entries that ParseEntries reads. It
// holds some 300 entries, far more than a VM has use for.
const MaxEntriesBytes = 16 << 10

// An error goes into statuses, events and logs, and is repeated with each try,
// so it must not grow with what it complains of.
const (
	shownFaults = 16
	shownBytes  = 64
)

// Entry is a request for units of one class. A list may name a class more than
// once; its units add up.
type Entry struct {
	ClassName string
	Count     int32
}

// ParseEntries reads the list of entries in gpu.AnnotationGPUs. Each entry has
// a className that is not empty and a whole count of at least 1. The error
// names every fault with its position.
//
// The reading is strict, for what is misread here becomes a VM without its
// GPU: names of fields are compared with their case, and unknown fields,
// duplicate fields, null and anything after the list are faults.
func ParseEntries(raw string) ([]Entry, error) {
	if len(raw) > MaxEntriesBytes {
		return nil, fmt.Errorf("is %d bytes long; at most %d are read", len(raw), MaxEntriesBytes)
	}
	var items []json.RawMessage
	err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(raw), &items)
	if isSyntax, offset := kjson.SyntaxErrorOffset(err); isSyntax {
		return nil, fmt.Errorf("byte %d: %w", offset, err)
	}
	if items == nil { // null, or no list at all
		return nil, errors.New(`must be a list such as [{"className":"l40s-24c","count":1}]`)
	}
	entries := make([]Entry, 0, len(items))
	var found faults
	for i, item := range items {
		entry, faults := parseEntry(item)
		found.add(i, faults)
		entries = append(entries, entry)
	}
	if err := found.err(); err != nil {
		return nil, err
	}
	return entries, nil
}

// faults are those of a list's items, the first of them in words.
type faults struct {
	shown []string
	count int
}

func (f *faults) add(item int, faults []string) {
	f.count += len(faults)
	for _, fault := range faults {
		if len(f.shown) < shownFaults {
			f.shown = append(f.shown, fmt.Sprintf("[%d]%s", item, fault))
		}
	}
}

func (f *faults) err() error {
	if f.count == 0 {
		return nil
	}
	text := strings.Join(f.shown, "; ")
	if more := f.count - len(f.shown); more > 0 {
		text += fmt.Sprintf("; and %d faults more", more)
	}
	return errors.New(text)
}

// parseEntry returns the entry or its faults, each beginning with a path
// within the entry and of bounded length.
func parseEntry(item json.RawMessage) (entry Entry, faults []string) {
	var fields struct {
		ClassName json.RawMessage `json:"className"`
		Count     json.RawMessage `json:"count"`
	}
	if item[0] != '{' {
		return entry, []string{`: must be an object such as {"className":"l40s-24c","count":1}`}
	}
	strict, err := kjson.UnmarshalStrict(item, &fields)
	if err != nil {
		return entry, []string{": " + err.Error()}
	}
	for _, err := range strict {
		faults = append(faults, fmt.Sprintf(": %s; the fields are className and count", shorten(err.Error())))
	}
	if json.Unmarshal(fields.ClassName, &entry.ClassName) != nil || entry.ClassName == "" {
		faults = append(faults, fmt.Sprintf(".className: must be the name of a GPUClass, got %s", shown(fields.ClassName)))
	}
	if json.Unmarshal(fields.Count, &entry.Count) != nil || entry.Count < 1 {
		faults = append(faults, fmt.Sprintf(".count: must be a whole number of at least 1, got %s", shown(fields.Count)))
	}
	return entry, faults
}

func shown(raw json.RawMessage) string {
	if raw == nil {
		return "nothing"
	}
	return shorten(string(raw))
}

func shorten(text string) string {
	if len(text) <= shownBytes {
		return text
	}
	return strings.ToValidUTF8(text[:shownBytes], "") + "…"
}

// Units returns the units that the entries ask of each class.
func Units(entries []Entry) map[string]int64 {
	units := make(map[string]int64, len(entries))
	for _, e := range entries {
		units[e.ClassName] += int64(e.Count)
	}
	return units
}

// ClassNames returns each class that the entries name once, in their order.
func ClassNames(entries []Entry) []string {
	var names []string
	for _, e := range entries {
		if !slices.Contains(names, e.ClassName) {
			names = append(names, e.ClassName)
		}
	}
	return names
}
