// SPDX-License-Identifier: Apache-2.0

package review

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	kjson "sigs.k8s.io/json"
)

// object is the part of an object that is read. The spec has met no schema: it
// may hold anything.
type object struct {
	Metadata struct {
		Name              string  `json:"name"`
		GenerateName      string  `json:"generateName"`
		ResourceVersion   string  `json:"resourceVersion"`
		DeletionTimestamp *string `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec json.RawMessage `json:"spec"`
}

func decode(raw []byte) (*object, error) {
	o := &object{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, o); err != nil {
		return nil, err
	}
	return o, nil
}

// name returns the object's name, or one that is nobody else's for an object
// whose name is still to be generated. It has no more dashes than the generated
// one, since a Tenant with a dash in its name would have no namespace.
func (o *object) name(request *admissionv1.AdmissionRequest) string {
	switch {
	case request.Name != "":
		return request.Name
	case o.Metadata.Name != "":
		return o.Metadata.Name
	default:
		return o.Metadata.GenerateName + strings.ReplaceAll(string(request.UID), "-", "")
	}
}

// field is a field of a JSON object as it stands there.
type field struct {
	name  string
	value json.RawMessage
}

// split returns the fields of a JSON object in their order, duplicates
// included. Of null and of nothing ok is true.
func split(raw json.RawMessage) (fields []field, ok bool) {
	if isNull(raw) {
		return nil, true
	}
	if !json.Valid(raw) {
		return nil, false
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		return nil, false
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, false
		}
		f := field{name: name.(string)}
		if err := decoder.Decode(&f.value); err != nil {
			return nil, false
		}
		fields = append(fields, f)
	}
	return fields, true
}

// values returns every value of the fields of that very name.
func values(fields []field, name string) []json.RawMessage {
	var found []json.RawMessage
	for _, f := range fields {
		if f.name == name {
			found = append(found, f.value)
		}
	}
	return found
}

// pick returns the value of the field at that path, nil if there is none, and
// faults for one that is there more than once or in another case: readers do
// not agree on these.
func pick(fields []field, parent, name string) (json.RawMessage, []fault) {
	var faults []fault
	path := parent + "." + name
	for _, f := range fields {
		if f.name != name && strings.EqualFold(f.name, name) {
			variant := parent + "." + f.name
			faults = append(faults, fault{
				path: variant, cause: CauseFieldCase, values: values(fields, f.name),
				message: fmt.Sprintf("%s is no field; write %s", variant, path),
			})
		}
	}
	found := values(fields, name)
	switch {
	case len(found) > 1:
		return nil, append(faults, fault{
			path: path, cause: CauseDuplicateField, values: found,
			message: fmt.Sprintf("%s stands there %d times; write it once", path, len(found)),
		})
	case len(found) == 0:
		return nil, faults
	default:
		return found[0], faults
	}
}

func isNull(raw json.RawMessage) bool {
	return len(raw) == 0 || string(raw) == "null"
}

// same reports whether the values are the same JSON, whatever the order of their
// fields and their spaces.
func same(a, b []json.RawMessage) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) && !sameValue(a[i], b[i]) {
			return false
		}
	}
	return true
}

func sameValue(a, b json.RawMessage) bool {
	var decodedA, decodedB any
	return unambiguous(a, &decodedA) && unambiguous(b, &decodedB) && reflect.DeepEqual(decodedA, decodedB)
}

// unambiguous decodes a value that means the same to every reader.
func unambiguous(raw json.RawMessage, v *any) bool {
	if raw == nil {
		return true // an absent field
	}
	strict, err := kjson.UnmarshalStrict(raw, v, kjson.DisallowDuplicateFields)
	return err == nil && len(strict) == 0
}
