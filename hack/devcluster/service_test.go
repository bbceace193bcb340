// SPDX-License-Identifier: Apache-2.0

package devcluster

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// vmi asks for GPUs without saying which, so vmi-webhook refuses it.
const vmi = `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: sample, namespace: default, labels: {cozystack.io/gpu-reference: "true"}}
spec: {domain: {devices: {}}}
`

func TestServiceServesWhileOneOfItsReplicasDoes(t *testing.T) {
	root := filepath.Join("..", "..")
	kubevirt, err := Build(t.Context(), KubeVirt(root), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	c := startCluster(t, Options{})
	ctx := t.Context()
	if err := c.InstallCRDs(ctx, root, kubevirt); err != nil {
		t.Fatal(err)
	}
	service, err := c.InstallService(ctx, root, "vmi-webhook", ServiceOptions{Replicas: 2})
	if err != nil {
		t.Fatal(err)
	}

	objects, err := ParseObjects(strings.NewReader(vmi))
	if err != nil {
		t.Fatal(err)
	}
	client := dynamic.NewForConfigOrDie(c.Config()).
		Resource(schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}).Namespace("default")
	create := func() string {
		_, err := client.Create(ctx, objects[0], metav1.CreateOptions{})
		if err == nil {
			t.Fatal("a VMI was admitted that should not be")
		}
		return err.Error()
	}
	const answered, unanswered = "denied the request", "failed calling webhook"
	expect := func(when, want string) {
		t.Helper()
		if got := create(); !strings.Contains(got, want) {
			t.Errorf("%s: %s", when, got)
		}
	}

	expect("with both replicas", answered)
	stopped, killed := service.Replicas[0], service.Replicas[1]
	if err := stopped.Stop(time.Minute); err != nil {
		t.Fatal(err)
	}
	expect("after one was stopped", answered)
	if err := killed.Kill(); err != nil {
		t.Fatal(err)
	}
	expect("with none", unanswered)
	if err := c.Restart(ctx, stopped.Process); err != nil {
		t.Fatal(err)
	}
	if err := poll(ctx, time.Minute, func() error {
		if got := create(); !strings.Contains(got, answered) {
			return errors.New(got)
		}
		return nil
	}); err != nil {
		t.Errorf("after one was started again: %v", err)
	}

	deployment, err := kubernetes.NewForConfigOrDie(c.Config()).AppsV1().Deployments("cozy-gpu").Get(ctx, "vmi-webhook", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if *deployment.Spec.Replicas != 0 {
		t.Errorf("the Deployment asks for %d pods", *deployment.Spec.Replicas)
	}
	token, err := os.ReadFile(filepath.Join(c.Dir(), "kubeconfigs", "cozy-gpu.vmi-webhook"))
	if err != nil || !strings.Contains(string(token), "token: ") {
		t.Errorf("no kubeconfig with a token of the service: %v", err)
	}

	if _, err := c.InstallService(ctx, root, "vmi-webhook", ServiceOptions{Replicas: 2}); err == nil {
		t.Error("installed over replicas that run")
	}
	if err := service.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.InstallService(ctx, root, "vmi-webhook", ServiceOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("installed again", answered)
}

const webhookManifests = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: w, namespace: shop}
spec: {replicas: 2, template: {spec: {serviceAccountName: w, containers: [{name: w, args: [--flag]}]}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: w}
webhooks:
- {name: one, failurePolicy: Fail, clientConfig: {service: {name: w, namespace: shop, path: /one}}}
- {name: two, clientConfig: {caBundle: x, service: {name: w, namespace: shop, path: /two}}}
---
apiVersion: v1
kind: Service
metadata: {name: w, namespace: shop}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: w, namespace: shop}
`

func TestManifestsAreMadeLocal(t *testing.T) {
	objects, err := ParseObjects(strings.NewReader(webhookManifests))
	if err != nil {
		t.Fatal(err)
	}
	m, err := localManifests(objects, "https://127.0.0.1:1", []byte("ca"))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.objects) != 2 || len(m.webhooks) != 1 {
		t.Fatalf("%d objects, %d webhook configurations", len(m.objects), len(m.webhooks))
	}
	replicas, _, _ := unstructured.NestedInt64(m.objects[0].Object, "spec", "replicas")
	if replicas != 0 || m.service.Spec.Template.Spec.Containers[0].Args[0] != "--flag" {
		t.Errorf("Deployment is %v", m.objects[0])
	}
	webhooks, _, _ := unstructured.NestedSlice(m.webhooks[0].Object, "webhooks")
	for i, path := range []string{"/one", "/two"} {
		client, _, _ := unstructured.NestedMap(webhooks[i].(map[string]any), "clientConfig")
		if len(client) != 2 || client["url"] != "https://127.0.0.1:1"+path || client["caBundle"] != "Y2E=" {
			t.Errorf("webhook %d is called by %v", i, client)
		}
	}
	if webhooks[0].(map[string]any)["failurePolicy"] != "Fail" {
		t.Error("the rest of the webhook is lost")
	}
	if given, _, _ := unstructured.NestedInt64(objects[0].Object, "spec", "replicas"); given != 2 {
		t.Error("the given objects were changed")
	}

	if _, err := localManifests(objects[1:], "", nil); err == nil {
		t.Error("manifests without a Deployment are accepted")
	}
}
