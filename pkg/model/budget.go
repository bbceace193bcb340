// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"

	"cozystack.io/gpu/pkg/gpu"
)

const (
	// maxClassNameLength is what the schema of GPUClass allows.
	maxClassNameLength = 57
	// maxClassesUsed bounds what one object makes a ledger hold. It is as many as
	// the devices that a VM can have.
	maxClassesUsed = 16
	// maxValueBytes is the longest value of a quota key that is read, as JSON.
	maxValueBytes = 34
)

// hugeExponent matches an exponent of three digits. A quantity of one would
// cost memory as large as the number.
var hugeExponent = regexp.MustCompile(`[eE][+-]?[0-9]{3}`)

// ParseBudget reads what a tenant's quotas declare under gpu.QuotaKeyPrefix:
// units for gpu.QuotaKeyTotal and for the ClassQuotaKey of any class. Values
// are numbers or quantities that are whole, so "1k" is 1000; 0 forbids. Other
// quotas are not looked at.
//
// Faults are returned by key. A valid key whose value is faulty counts as 0, so
// that a misspelt limit is not one that is missing. The amounts are nil when no
// valid key is declared.
func ParseBudget(quotas map[string]json.RawMessage) (budget Amounts, faults map[string]error) {
	for key, raw := range quotas {
		if !strings.HasPrefix(key, gpu.QuotaKeyPrefix) {
			continue
		}
		var amount int64
		err := checkQuotaKey(key)
		if err == nil {
			amount, err = parseAmount(raw)
			if budget == nil {
				budget = Amounts{}
			}
			budget[key] = amount
		}
		if err != nil {
			if faults == nil {
				faults = map[string]error{}
			}
			faults[key] = err
		}
	}
	return budget, faults
}

func checkQuotaKey(key string) error {
	class, isClass := strings.CutPrefix(key, classQuotaKeyPrefix)
	if key == gpu.QuotaKeyTotal || isClass && isClassName(class) {
		return nil
	}
	return fmt.Errorf("is no GPU quota; the keys are %s and %s", gpu.QuotaKeyTotal, ClassQuotaKey("<name of a GPUClass>"))
}

// isClassName reports whether a GPUClass can have the name.
func isClassName(name string) bool {
	return len(name) <= maxClassNameLength && len(validation.IsDNS1123Label(name)) == 0
}

// parseAmount returns 0 with an error.
func parseAmount(raw json.RawMessage) (int64, error) {
	if len(raw) > maxValueBytes {
		return 0, fmt.Errorf("must be a number of at most %d bytes, got %s", maxValueBytes, shown(raw))
	}
	wrong := fmt.Errorf(`must be a whole number of at least 0, such as 8 or "8", got %s`, shown(raw))
	text := string(raw)
	switch {
	case text == "":
		return 0, wrong
	case text[0] == '"':
		if json.Unmarshal(raw, &text) != nil {
			return 0, wrong
		}
	case text[0] != '-' && (text[0] < '0' || text[0] > '9'): // null, a truth value, a list or an object
		return 0, wrong
	}
	if hugeExponent.MatchString(text) {
		return 0, fmt.Errorf("must be a number whose exponent has at most 2 digits, got %s", shown(raw))
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil || quantity.Sign() < 0 {
		return 0, wrong
	}
	if quantity.CmpInt64(MaxAmount) > 0 {
		return 0, fmt.Errorf("must be at most %d, got %s", int64(MaxAmount), shown(raw))
	}
	amount := quantity.Value() // rounded up if it is not whole
	if quantity.CmpInt64(amount) != 0 {
		return 0, wrong
	}
	return amount, nil
}

// ParseUsage returns the units that factor VMs (0 or more) with these spec.gpus
// use: of each class they name, and of all together. The amounts are nil if
// that is nothing; then the list may be absent (nil), null or empty.
//
// Class entries are read as strictly as by ParseEntries; besides, the names
// must be such as a class can have, and at most 16 different ones. An entry with a name
// and no className is a device of KubeVirt's: it uses nothing, and its other
// fields are not looked at. A list with both kinds is a fault, since a VM can
// have devices of its own or those of classes.
func ParseUsage(gpus json.RawMessage, factor int64) (Amounts, error) {
	if len(gpus) == 0 || string(gpus) == "null" {
		return nil, nil
	}
	var items []json.RawMessage
	if json.Unmarshal(gpus, &items) != nil {
		return nil, fmt.Errorf(`must be a list such as [{"className":"l40s-24c","count":1}], got %s`, shown(gpus))
	}
	entries, err := classEntries(items)
	switch {
	case err != nil:
		return nil, err
	case len(entries) == 0:
		return nil, nil
	case len(entries) < len(items):
		return nil, errors.New("must name either GPU classes, by className, or devices, by name, but not both")
	case len(gpus) > MaxEntriesBytes:
		return nil, fmt.Errorf("is %d bytes long; at most %d are read", len(gpus), MaxEntriesBytes)
	}
	units := Units(entries)
	switch {
	case len(units) > maxClassesUsed:
		return nil, fmt.Errorf("names %d classes; at most %d can be named", len(units), maxClassesUsed)
	case factor <= 0:
		return nil, nil
	}
	usage := Amounts{}
	for class, units := range units { // at most some 300 counts of 32 bits
		if units > MaxUsage/factor {
			return nil, fmt.Errorf("asks for more than %d units", int64(MaxUsage))
		}
		usage[ClassQuotaKey(class)] = units * factor
		usage[gpu.QuotaKeyTotal] += units * factor
	}
	if usage[gpu.QuotaKeyTotal] > MaxUsage {
		return nil, fmt.Errorf("asks for more than %d units", int64(MaxUsage))
	}
	return usage, nil
}

// classEntries returns the entries among the items that name a class.
func classEntries(items []json.RawMessage) ([]Entry, error) {
	var entries []Entry
	var found faults
	for i, item := range items {
		if device, faults := parseDevice(item); device {
			found.add(i, faults)
			continue
		}
		entry, faults := parseEntry(item)
		if entry.ClassName != "" && !isClassName(entry.ClassName) {
			faults = append(faults, fmt.Sprintf(".className: must be a DNS label of at most %d characters, got %s", maxClassNameLength, shorten(entry.ClassName)))
		}
		found.add(i, faults)
		entries = append(entries, entry)
	}
	return entries, found.err()
}

// parseDevice reports whether the entry is one of a device, and its faults.
func parseDevice(item json.RawMessage) (device bool, faults []string) {
	var fields map[string]json.RawMessage
	strict, err := kjson.UnmarshalStrict(item, &fields, kjson.DisallowDuplicateFields)
	if _, named := fields["name"]; err != nil || !named {
		return false, nil
	}
	for field := range fields {
		if strings.EqualFold(field, "className") {
			return false, nil
		}
	}
	for _, err := range strict {
		faults = append(faults, ": "+shorten(err.Error()))
	}
	return true, faults
}
