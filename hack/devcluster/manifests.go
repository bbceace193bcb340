// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"encoding/base64"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// manifests are a service's objects, changed so that the service can run as a
// process beside the cluster.
type manifests struct {
	objects  []*unstructured.Unstructured
	webhooks []*unstructured.Unstructured // applied once the service serves
	service  appsv1.Deployment
}

// localManifests prepares the objects of deploy/<service>: no pod is asked for,
// and webhooks are called at baseURL, trusting ca, instead of through a
// Service, for which the API server would need a pod network. What asks for
// certificates is left out: nobody would issue them, and ca stands in.
func localManifests(objects []*unstructured.Unstructured, baseURL string, ca []byte) (manifests, error) {
	var m manifests
	deployments := 0
	for _, object := range objects {
		object = object.DeepCopy()
		switch kind := object.GetKind(); {
		case kind == "Deployment":
			deployments++
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &m.service); err != nil {
				return manifests{}, fmt.Errorf("read Deployment %s: %w", name(object), err)
			}
			if err := unstructured.SetNestedField(object.Object, int64(0), "spec", "replicas"); err != nil {
				return manifests{}, err
			}
			m.objects = append(m.objects, object)
		case configuresWebhooks(kind):
			if err := callByURL(object, baseURL, ca); err != nil {
				return manifests{}, fmt.Errorf("read %s %s: %w", kind, name(object), err)
			}
			m.webhooks = append(m.webhooks, object)
		case object.GroupVersionKind().Group == "cert-manager.io":
		default:
			m.objects = append(m.objects, object)
		}
	}
	if deployments != 1 {
		return manifests{}, fmt.Errorf("found %d Deployments instead of one", deployments)
	}
	if len(m.service.Spec.Template.Spec.Containers) != 1 {
		return manifests{}, errors.New("the Deployment does not have exactly one container")
	}
	return m, nil
}

func callByURL(configuration *unstructured.Unstructured, baseURL string, ca []byte) error {
	webhooks, _, err := unstructured.NestedSlice(configuration.Object, "webhooks")
	if err != nil {
		return err
	}
	for _, webhook := range webhooks {
		webhook, ok := webhook.(map[string]any)
		if !ok {
			return errors.New("webhooks is no list of objects")
		}
		path, found, err := unstructured.NestedString(webhook, "clientConfig", "service", "path")
		if err != nil {
			return err
		}
		if !found {
			return fmt.Errorf("webhook %v names no path of a Service", webhook["name"])
		}
		webhook["clientConfig"] = map[string]any{
			"url":      baseURL + path,
			"caBundle": base64.StdEncoding.EncodeToString(ca),
		}
	}
	return unstructured.SetNestedSlice(configuration.Object, webhooks, "webhooks")
}
