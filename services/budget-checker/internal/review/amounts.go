// SPDX-License-Identifier: Apache-2.0

package review

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cozystack.io/gpu/pkg/gpu"
	"cozystack.io/gpu/pkg/model"
	"cozystack.io/gpu/services/budget-checker/internal/budget"
)

const (
	pathSpec   = "spec"
	pathGPUs   = pathSpec + ".gpus"
	pathQuotas = pathSpec + ".resourceQuotas"

	// defaultMaxReplicas is the default of Cozystack's chart for worker pools.
	defaultMaxReplicas = 10
	// maxQuotas bounds what one Tenant makes a ledger hold.
	maxQuotas = 64
)

// fault is something in a spec that cannot be read.
type fault struct {
	path    string
	cause   metav1.CauseType
	message string
	// values are those that the fault comes from: as long as an object has
	// just these, it has the fault.
	values []json.RawMessage
}

// reading is what a spec says about units.
type reading struct {
	// amounts are what the object uses or declares. What is faulty counts as
	// nothing, a quota that is as 0.
	amounts model.Amounts
	// perVM are the units of each VM, by quota key, if VMs there will be.
	perVM  model.Amounts
	faults []fault
}

// Amounts returns what a stored object of the resource with that spec counts
// for: the units that it uses or, of a Tenant, declares. Whatever is faulty in
// it uses nothing, and a faulty quota is 0.
func Amounts(resource budget.Resource, spec json.RawMessage) model.Amounts {
	return read(resource, spec).amounts
}

func read(resource budget.Resource, spec json.RawMessage) reading {
	fields, ok := split(spec)
	if !ok {
		return reading{faults: []fault{noObject(pathSpec, spec)}}
	}
	if resource == budget.Tenants {
		return readBudget(fields)
	}
	return readUsage(resource, fields)
}

// readUsage reads the class entries of VMs. Replicas are looked at only if there
// are such entries: other pools do not concern the budgets.
func readUsage(resource budget.Resource, fields []field) reading {
	gpus, faults := pick(fields, pathSpec, "gpus")
	perVM, err := model.ParseUsage(gpus, 1)
	if err != nil {
		return reading{faults: append(faults, unreadable(pathGPUs, gpus, err))}
	}
	r := reading{amounts: perVM, perVM: perVM, faults: faults}
	if resource != budget.KubernetesNodes || len(perVM) == 0 {
		return r
	}
	replicas, faults := readReplicas(fields)
	for i := range faults {
		// Units that are new must not count as nothing for a fault that is old.
		faults[i].values = append([]json.RawMessage{gpus}, faults[i].values...)
	}
	r.faults = append(r.faults, faults...)
	if r.amounts, err = model.ParseUsage(gpus, replicas); err != nil {
		r.faults = append(r.faults, unreadable(pathGPUs, gpus, err))
	}
	return r
}

func unreadable(path string, value json.RawMessage, err error) fault {
	return fault{
		path: path, cause: CauseEntriesMalformed, values: []json.RawMessage{value},
		message: fmt.Sprintf("%s cannot be read: %v", path, err),
	}
}

// readReplicas returns how many VMs a pool may come to have. A faulty bound is
// left out.
func readReplicas(fields []field) (int64, []fault) {
	var most int64
	var faults []fault
	for _, bound := range []struct {
		name  string
		value int64
	}{{"minReplicas", 0}, {"maxReplicas", defaultMaxReplicas}} {
		raw, found := pick(fields, pathSpec, bound.name)
		faults = append(faults, found...)
		value := bound.value
		switch {
		case len(values(fields, bound.name)) > 1:
			value = 0
		case isNull(raw):
		case json.Unmarshal(raw, &value) != nil || value < 0:
			value = 0
			path := pathSpec + "." + bound.name
			faults = append(faults, fault{
				path: path, cause: CauseReplicasInvalid, values: []json.RawMessage{raw},
				message: fmt.Sprintf("%s must be a whole number of at least 0, got %s", path, shorten(string(raw), shownValue)),
			})
		}
		most = max(most, value)
	}
	return most, faults
}

// readBudget reads the GPU quotas of a Tenant.
func readBudget(fields []field) reading {
	raw, faults := pick(fields, pathSpec, "resourceQuotas")
	quotas, ok := split(raw)
	if !ok {
		return reading{faults: append(faults, noObject(pathQuotas, raw))}
	}
	byKey := map[string]json.RawMessage{}
	all := map[string][]json.RawMessage{}
	for _, quota := range quotas {
		if strings.HasPrefix(quota.name, gpu.QuotaKeyPrefix) {
			byKey[quota.name] = quota.value
			all[quota.name] = append(all[quota.name], quota.value)
		}
	}
	amounts, wrong := model.ParseBudget(byKey)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		path := pathQuotas + "[" + key + "]"
		switch {
		case len(all[key]) > 1:
			if _, valid := amounts[key]; valid {
				amounts[key] = 0
			}
			faults = append(faults, fault{
				path: path, cause: CauseDuplicateField, values: all[key],
				message: fmt.Sprintf("%s stands there %d times; write it once", shorten(path, shownPath), len(all[key])),
			})
		case wrong[key] != nil:
			faults = append(faults, fault{
				path: path, cause: CauseQuotaInvalid, values: all[key],
				message: fmt.Sprintf("%s %v", shorten(path, shownPath), wrong[key]),
			})
		}
	}
	if len(amounts) > maxQuotas {
		declared, _ := json.Marshal(byKey) // values that were JSON and are
		faults = append(faults, fault{
			path: pathQuotas, cause: CauseQuotaInvalid, values: []json.RawMessage{declared},
			message: fmt.Sprintf("%s declares %d GPU quotas; at most %d can be declared", pathQuotas, len(amounts), maxQuotas),
		})
	}
	return reading{amounts: amounts, faults: faults}
}

func noObject(path string, value json.RawMessage) fault {
	return fault{
		path: path, cause: CauseWrongType, values: []json.RawMessage{value},
		message: fmt.Sprintf("%s must be an object, got %s", path, shorten(string(value), shownValue)),
	}
}

// sift parts the faults of a new spec into those that refuse it and those that
// the stored spec has already.
func sift(found, stored []fault) (faults, tolerated []fault) {
	for _, f := range found {
		if slices.ContainsFunc(stored, func(old fault) bool { return old.path == f.path && old.cause == f.cause && same(old.values, f.values) }) {
			tolerated = append(tolerated, f)
		} else {
			faults = append(faults, f)
		}
	}
	return faults, tolerated
}
