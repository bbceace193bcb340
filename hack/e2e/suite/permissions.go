// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// permission is one of those that a rule of a role combines.
type permission struct {
	role, namespace       string // a ClusterRole has no namespace
	group, resource, verb string
	names                 []string // of objects; empty for all
}

func (p permission) String() string {
	resource := p.resource
	if p.group != "" {
		resource += "." + p.group
	}
	return strings.TrimSpace(fmt.Sprintf("%s: %s %s %s", p.role, p.verb, resource, strings.Join(p.names, ",")))
}

// covers tells whether the request needed the permission. An informer lists by
// a watch where the API server can stream lists, and by a list elsewhere.
func (p permission) covers(e auditEvent) bool {
	sameVerb := p.verb == e.Verb || p.verb == "list" && e.Verb == "watch"
	return sameVerb && p.group == e.ObjectRef.APIGroup && p.resource == e.resource() &&
		(p.namespace == "" || p.namespace == e.ObjectRef.Namespace) &&
		(len(p.names) == 0 || slices.Contains(p.names, e.ObjectRef.Name))
}

// ranAll tells whether no flag kept a test from running.
func ranAll() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return false
		}
	}
	return true
}

// checkPermissions returns an error that names each permission in deploy/ that
// its service did not use since the cluster's start, going by the audit log.
func (e *Env) checkPermissions(ctx context.Context) error {
	var errs []error
	for _, service := range e.Services {
		permissions, account, err := e.permissions(ctx, service)
		if err != nil {
			return fmt.Errorf("read the permissions of %s: %w", service, err)
		}
		unused, err := e.unused(permissions, account, service)
		if err != nil {
			return fmt.Errorf("read what %s did: %w", service, err)
		}
		for _, p := range unused {
			errs = append(errs, fmt.Errorf("%s never used a permission that it is installed with: %s", service, p))
		}
	}
	return errors.Join(errs...)
}

// permissions returns what the roles in deploy/<service> allow, and the name of
// its account.
func (e *Env) permissions(ctx context.Context, service string) (permissions []permission, account string, err error) {
	objects, err := e.Cluster.Kustomize(ctx, filepath.Join(e.Root, "deploy", service))
	if err != nil {
		return nil, "", err
	}
	for _, object := range objects {
		switch object.GetKind() {
		case "ServiceAccount":
			account = "system:serviceaccount:" + object.GetNamespace() + ":" + object.GetName()
		case "ClusterRole", "Role":
			more, err := rolePermissions(object)
			if err != nil {
				return nil, "", err
			}
			permissions = append(permissions, more...)
		}
	}
	if account == "" || len(permissions) == 0 {
		return nil, "", errors.New("found no ServiceAccount or no role")
	}
	return permissions, account, nil
}

func rolePermissions(object *unstructured.Unstructured) (permissions []permission, err error) {
	var role rbacv1.Role // has all that is read of a ClusterRole, too
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role); err != nil {
		return nil, err
	}
	for _, rule := range role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					permissions = append(permissions, permission{
						role.Kind + " " + role.Name, role.Namespace, group, resource, verb, rule.ResourceNames,
					})
				}
			}
		}
	}
	return permissions, nil
}

// unused returns the permissions that no request of the service needed. Tests
// borrow its account too: what they do has another user agent.
func (e *Env) unused(permissions []permission, account, userAgent string) ([]permission, error) {
	file, err := os.Open(e.Cluster.AuditLog())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	for reader := bufio.NewReader(file); ; {
		line, err := reader.ReadBytes('\n')
		if err != nil {
			return permissions, nil // the last line may not be whole yet
		}
		var event auditEvent
		if json.Unmarshal(line, &event) != nil || event.User.Username != account || event.UserAgent != userAgent ||
			event.Annotations["authorization.k8s.io/decision"] != "allow" {
			continue
		}
		permissions = slices.DeleteFunc(permissions, func(p permission) bool { return p.covers(event) })
	}
}
