// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// sentinelName names a webhook that nobody serves and what it is called for.
const sentinelName = "applied.devcluster.gpu.cozystack.io"

// applyWebhooks applies the objects and returns once the API server calls the
// webhooks that are configured among them.
//
// The API server learns of configurations by a watch of its own, so for a moment
// it admits objects without a new webhook, or calls an old address. It takes up
// those of one kind in the order of their writes: when one that was applied
// later is called, so are these.
func (c *Cluster) applyWebhooks(ctx context.Context, objects []*unstructured.Unstructured) error {
	if err := Apply(ctx, c.Config(), objects); err != nil {
		return err
	}
	waited := map[string]bool{}
	for _, object := range objects {
		if kind := object.GetKind(); configuresWebhooks(kind) && !waited[kind] {
			waited[kind] = true
			if err := c.waitTakenUp(ctx, kind); err != nil {
				return fmt.Errorf("wait until the API server has taken up a %s: %w", kind, err)
			}
		}
	}
	return nil
}

func configuresWebhooks(kind string) bool {
	return strings.HasSuffix(kind, "WebhookConfiguration")
}

// waitTakenUp waits until the API server calls what is now configured by objects
// of the kind, MutatingWebhookConfiguration or ValidatingWebhookConfiguration.
func (c *Cluster) waitTakenUp(ctx context.Context, kind string) (err error) {
	config := c.Config()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	sentinel := sentinel(kind)
	if err := Apply(ctx, config, []*unstructured.Unstructured{sentinel}); err != nil {
		return err
	}
	defer func() {
		resource := sentinel.GroupVersionKind().GroupVersion().WithResource(strings.ToLower(kind) + "s")
		err = errors.Join(err, dynamic.NewForConfigOrDie(config).Resource(resource).
			Delete(context.WithoutCancel(ctx), sentinelName, metav1.DeleteOptions{}))
	}()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: sentinelName, Labels: map[string]string{sentinelName: kind}}}
	return poll(ctx, 30*time.Second, func() error {
		_, err := client.CoreV1().ConfigMaps(metav1.NamespaceDefault).
			Create(ctx, object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		switch {
		case err == nil:
			return errors.New("not called yet")
		case strings.Contains(err.Error(), "failed calling webhook"):
			return nil
		}
		return err
	})
}

func sentinel(kind string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1",
		"kind":       kind,
		"metadata":   map[string]any{"name": sentinelName},
		"webhooks": []any{map[string]any{
			"name":                    sentinelName,
			"admissionReviewVersions": []any{"v1"},
			"sideEffects":             "None",
			"failurePolicy":           "Fail",
			"clientConfig":            map[string]any{"url": "https://" + loopback(1)},
			"objectSelector":          map[string]any{"matchLabels": map[string]any{sentinelName: kind}},
			"rules": []any{map[string]any{
				"apiGroups": []any{""}, "apiVersions": []any{"v1"}, "resources": []any{"configmaps"}, "operations": []any{"CREATE"},
			}},
		}},
	}}
}
