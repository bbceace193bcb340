// SPDX-License-Identifier: Apache-2.0

package model

import "strings"

// RootTenantNamespace is the namespace of the topmost tenant.
const RootTenantNamespace = "tenant-root"

const tenantNamespacePrefix = "tenant-"

// TenantNamespace returns the namespace that belongs to the Tenant of that name
// in the namespace, as Cozystack names it: x in tenant-root has tenant-x, y in
// tenant-x has tenant-x-y, and root in tenant-root has tenant-root itself.
// Cozystack's chart takes neither a name with a dash nor a namespace of
// another kind; for these ok is false.
func TenantNamespace(namespace, name string) (owned string, ok bool) {
	switch {
	case name == "" || strings.Contains(name, "-") || !isTenantNamespace(namespace):
		return "", false
	case namespace != RootTenantNamespace:
		return namespace + "-" + name, true
	default:
		return tenantNamespacePrefix + name, true
	}
}

// ParentTenantNamespace returns the namespace that holds the Tenant to which
// the namespace belongs: the one of the tenant above. The topmost has none, nor
// has a namespace that can belong to no tenant; for these ok is false.
func ParentTenantNamespace(namespace string) (parent string, ok bool) {
	if namespace == RootTenantNamespace || !isTenantNamespace(namespace) {
		return "", false
	}
	above := namespace[:strings.LastIndexByte(namespace, '-')]
	if above+"-" == tenantNamespacePrefix {
		return RootTenantNamespace, true
	}
	return above, true
}

func isTenantNamespace(namespace string) bool {
	names, ok := strings.CutPrefix(namespace, tenantNamespacePrefix)
	return ok && names != "" && !strings.HasPrefix(names, "-") && !strings.HasSuffix(names, "-") && !strings.Contains(names, "--")
}

// IsTenantBelow reports whether the namespace belongs to a tenant somewhere
// below the one that has the other namespace.
func IsTenantBelow(namespace, above string) bool {
	for {
		parent, ok := ParentTenantNamespace(namespace)
		if !ok {
			return false
		}
		if parent == above {
			return true
		}
		namespace = parent
	}
}
