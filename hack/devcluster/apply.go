// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

const (
	// FieldManager is the name under which Apply owns fields.
	FieldManager = "devcluster"
	// applyTimeout bounds the wait for a kind that was just defined.
	applyTimeout = 30 * time.Second
)

var crdKind = schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}

// Apply applies the objects on the server's side, taking over fields that
// others own. Namespaces and custom resource definitions go first, whatever
// their place; the rest follows in the given order once the definitions are
// established.
func Apply(ctx context.Context, config *rest.Config, objects []*unstructured.Unstructured) error {
	a, err := newApplier(config)
	if err != nil {
		return err
	}
	var first, rest, crds []*unstructured.Unstructured
	for _, object := range objects {
		switch object.GroupVersionKind().GroupKind() {
		case crdKind:
			first, crds = append(first, object), append(crds, object)
		case schema.GroupKind{Kind: "Namespace"}:
			first = append(first, object)
		default:
			rest = append(rest, object)
		}
	}
	for _, object := range first {
		if err := a.apply(ctx, object); err != nil {
			return err
		}
	}
	for _, crd := range crds {
		if err := a.waitEstablished(ctx, crd); err != nil {
			return err
		}
	}
	for _, object := range rest {
		if err := a.apply(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

// ApplyStatus applies the status that the objects hold.
func ApplyStatus(ctx context.Context, config *rest.Config, objects []*unstructured.Unstructured) error {
	a, err := newApplier(config)
	if err != nil {
		return err
	}
	for _, object := range objects {
		client, err := a.resource(ctx, object)
		if err != nil {
			return err
		}
		_, err = client.ApplyStatus(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
		if err != nil {
			return fmt.Errorf("apply the status of %s %s: %w", object.GetKind(), name(object), err)
		}
	}
	return nil
}

type applier struct {
	client dynamic.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func newApplier(config *rest.Config) (applier, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return applier{}, err
	}
	discovery, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return applier{}, err
	}
	return applier{client, restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discovery))}, nil
}

func (a applier) apply(ctx context.Context, object *unstructured.Unstructured) error {
	err := a.tryApply(ctx, object)
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", object.GetKind(), name(object), err)
	}
	return nil
}

func (a applier) tryApply(ctx context.Context, object *unstructured.Unstructured) error {
	client, err := a.resource(ctx, object)
	if err != nil {
		return err
	}
	_, err = client.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	return err
}

// resource returns the client for the object's kind. A kind that was defined a
// moment ago takes a while to be served.
func (a applier) resource(ctx context.Context, object *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := object.GroupVersionKind()
	var mapping *meta.RESTMapping
	err := poll(ctx, applyTimeout, func() (err error) {
		mapping, err = a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if meta.IsNoMatchError(err) {
			a.mapper.Reset()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return a.client.Resource(mapping.Resource), nil
	}
	namespace := object.GetNamespace()
	if namespace == "" {
		return nil, errors.New("no namespace")
	}
	return a.client.Resource(mapping.Resource).Namespace(namespace), nil
}

func (a applier) waitEstablished(ctx context.Context, crd *unstructured.Unstructured) error {
	client, err := a.resource(ctx, crd)
	if err != nil {
		return err
	}
	return poll(ctx, applyTimeout, func() error {
		current, err := client.Get(ctx, crd.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		return hasCondition(current, "Established")
	})
}

// hasCondition returns an error unless the object has the condition with
// status True.
func hasCondition(object *unstructured.Unstructured, kind string) error {
	conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	if err != nil {
		return err
	}
	for _, condition := range conditions {
		if c, ok := condition.(map[string]any); ok && c["type"] == kind && c["status"] == "True" {
			return nil
		}
	}
	return fmt.Errorf("%s %s is not %s: %v", object.GetKind(), name(object), kind, conditions)
}

// ParseObjects reads a stream of YAML or JSON documents. Lists are taken apart.
func ParseObjects(r io.Reader) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(r, 4096)
	for {
		var document runtime.RawExtension
		if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("parse objects: %w", err)
		}
		if raw := bytes.TrimSpace(document.Raw); len(raw) == 0 || string(raw) == "null" {
			continue
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(document.Raw); err != nil {
			return nil, fmt.Errorf("parse objects: %w", err)
		}
		if !object.IsList() {
			objects = append(objects, object)
			continue
		}
		if err := object.EachListItem(func(item runtime.Object) error {
			objects = append(objects, item.(*unstructured.Unstructured))
			return nil
		}); err != nil {
			return nil, fmt.Errorf("parse objects: %w", err)
		}
	}
}

// Kustomize returns the objects that `kubectl kustomize` builds from dir.
func (c *Cluster) Kustomize(ctx context.Context, dir string) ([]*unstructured.Unstructured, error) {
	out, err := output(ctx, c.path("bin", "kubectl"), "kustomize", dir)
	if err != nil {
		return nil, err
	}
	return ParseObjects(bytes.NewReader(out))
}

// output returns what a command prints; its error ends with what the command
// says of it.
func output(ctx context.Context, path string, args ...string) ([]byte, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", path, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

// poll calls check until it succeeds and returns its last error in time.
func poll(ctx context.Context, timeout time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func name(object *unstructured.Unstructured) string {
	if object.GetNamespace() == "" {
		return object.GetName()
	}
	return object.GetNamespace() + "/" + object.GetName()
}
