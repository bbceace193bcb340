// SPDX-License-Identifier: Apache-2.0

package matching

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/hack/devcluster"
	"cozystack.io/gpu/hack/e2e/suite"
)

// free are specs that do not depend on budget-checker.
var free = map[string]string{
	"no spec":                    ``,
	"spec null":                  `null`,
	"spec a string":              `none`,
	"spec a list":                `[gpus]`,
	"spec a number":              `7`,
	"spec empty":                 `{}`,
	"other fields":               `{instanceType: u1.medium, minReplicas: 0, maxReplicas: 10}`,
	"gpus null":                  `{gpus: null}`,
	"gpus empty":                 `{gpus: [], Gpus: []}`,
	"gpus elsewhere":             `{template: {gpus: [{className: l40s, count: 1}]}}`,
	"gpus in another name":       `{gpusAllowed: [{className: l40s, count: 1}]}`,
	"quotas null":                `{resourceQuotas: null}`,
	"quotas a list":              `{resourceQuotas: [gpu.cozystack.io/total]}`,
	"quotas a string":            `{resourceQuotas: gpu.cozystack.io/total}`,
	"quotas a number":            `{resourceQuotas: 1.5}`,
	"quotas empty":               `{resourceQuotas: {}}`,
	"quotas without GPU keys":    `{resourceQuotas: {cpu: "8", memory: 16Gi, nvidia.com/L40S: "1", requests.gpu.cozystack.io/total: 1}}`,
	"quota keys beside quotas":   `{gpu.cozystack.io/total: 1}`,
	"a key that begins the same": `{resourceQuotas: {gpu.cozystack.io: 1, gpu.cozystack.iox/total: 1}}`,
}

// judged are specs that budget-checker has to see.
var judged = map[string]string{
	"class entries":               `{instanceType: u1.medium, gpus: [{className: l40s, count: 1}]}`,
	"legacy entries":              `{gpus: [{name: nvidia.com/L40S}]}`,
	"entries null":                `{gpus: [null]}`,
	"gpus an object":              `{gpus: {className: l40s, count: 1}}`,
	"gpus an empty object":        `{gpus: {}}`,
	"gpus a string":               `{gpus: l40s}`,
	"gpus an empty string":        `{gpus: ""}`,
	"gpus a number":               `{gpus: 0}`,
	"gpus a boolean":              `{gpus: false}`,
	"gpus in another case":        `{GPUs: [{className: l40s, count: 1}]}`,
	"gpus twice, one empty":       `{gpus: [], Gpus: [{className: l40s, count: 1}]}`,
	"a quota":                     `{resourceQuotas: {cpu: "8", gpu.cozystack.io/total: "4"}}`,
	"a quota of a class":          `{resourceQuotas: {gpu.cozystack.io/l40s: 4}}`,
	"a quota that is null":        `{resourceQuotas: {gpu.cozystack.io/total: null}}`,
	"a quota without a name":      `{resourceQuotas: {gpu.cozystack.io/: 1}}`,
	"quotas in another case":      `{resourcequotas: {gpu.cozystack.io/total: "4"}}`,
	"quotas twice, one of others": `{resourceQuotas: {cpu: "8"}, ResourceQuotas: {gpu.cozystack.io/total: "4"}}`,
	"quotas beside empty gpus":    `{gpus: null, resourceQuotas: {gpu.cozystack.io/total: "4"}}`,
	"gpus beside odd quotas":      `{gpus: [{className: l40s, count: 1}], resourceQuotas: [7]}`,
}

var dryRun = []string{metav1.DryRunAll}

// writes are the ways to write an object without leaving a trace. That named
// "plain" is stored without a spec.
var writes = map[string]func(ctx context.Context, object *unstructured.Unstructured, resource string) error{
	"create": func(ctx context.Context, object *unstructured.Unstructured, resource string) error {
		object.SetName("new")
		_, err := client(resource).Create(ctx, object, metav1.CreateOptions{DryRun: dryRun})
		return err
	},
	"create by apply": func(ctx context.Context, object *unstructured.Unstructured, resource string) error {
		object.SetName("new")
		return apply(ctx, object, resource)
	},
	"update": update,
	"patch":  patch,
	"apply":  apply,
}

func update(ctx context.Context, object *unstructured.Unstructured, resource string) error {
	stored, err := client(resource).Get(ctx, object.GetName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	object.SetResourceVersion(stored.GetResourceVersion())
	_, err = client(resource).Update(ctx, object, metav1.UpdateOptions{DryRun: dryRun})
	return err
}

func patch(ctx context.Context, object *unstructured.Unstructured, resource string) error {
	patch, err := json.Marshal([]any{map[string]any{"op": "add", "path": "/spec", "value": object.Object["spec"]}})
	if err != nil {
		return err
	}
	_, err = client(resource).Patch(ctx, object.GetName(), types.JSONPatchType, patch, metav1.PatchOptions{DryRun: dryRun})
	return err
}

func apply(ctx context.Context, object *unstructured.Unstructured, resource string) error {
	_, err := client(resource).Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: devcluster.FieldManager, Force: true, DryRun: dryRun})
	return err
}

// eachWrite runs the test for every kind, way and spec.
func eachWrite(t *testing.T, specs map[string]string, test func(t *testing.T, err error)) {
	t.Helper()
	for resource := range kinds {
		for way, write := range writes {
			for name, spec := range specs {
				t.Run(resource+"/"+way+"/"+name, func(t *testing.T) {
					test(t, write(t.Context(), newObject(t, resource, "plain", spec), resource))
				})
			}
		}
	}
}

func TestWritesWithoutGPUsGoOn(t *testing.T) {
	eachWrite(t, free, func(t *testing.T, err error) { require.NoError(t, err) })
}

func TestWritesWithGPUsFailClosed(t *testing.T) {
	eachWrite(t, judged, requireUnanswered)
}

func TestDryRunsAreNotAllThatIsMatched(t *testing.T) {
	for resource := range kinds {
		for prefix, spec := range withGPUs {
			_, err := client(resource).Create(t.Context(), newObject(t, resource, prefix+"-new", spec), metav1.CreateOptions{})
			requireUnanswered(t, err)
		}
		_, err := client(resource).Create(t.Context(), newObject(t, resource, "stored", free["other fields"]), metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = client(resource).Patch(t.Context(), "stored", types.MergePatchType, []byte(`{"spec":{"gpus":[{"className":"l40s","count":1}]}}`), metav1.PatchOptions{})
		requireUnanswered(t, err)
		_, err = client(resource).Patch(t.Context(), "stored", types.MergePatchType, []byte(`{"spec":{"instanceType":"u1.large"}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
}

func TestWritesToObjectsThatHaveGPUsFailClosedWhateverTheyChange(t *testing.T) {
	for resource := range kinds {
		for prefix := range withGPUs {
			name := prefix + "-kept"
			for way, write := range map[string]func() error{
				"all of the spec taken away": func() error {
					return update(t.Context(), newObject(t, resource, name, ""), resource)
				},
				"another spec": func() error {
					return patch(t.Context(), newObject(t, resource, name, `{instanceType: u1.medium}`), resource)
				},
				"a label": func() error {
					_, err := client(resource).Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
					return err
				},
				"an applied field": func() error {
					return apply(t.Context(), newObject(t, resource, name, `{instanceType: u1.medium}`), resource)
				},
				"what counts taken away": func() error {
					_, err := client(resource).Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"gpus":null,"resourceQuotas":null}}`), metav1.PatchOptions{})
					return err
				},
			} {
				t.Run(resource+"/"+prefix+"/"+way, func(t *testing.T) { requireUnanswered(t, write()) })
			}
		}
	}
}

func TestReadsStatusAndDeletionsGoOn(t *testing.T) {
	for resource := range kinds {
		for prefix := range withGPUs {
			t.Run(resource+"/"+prefix, func(t *testing.T) {
				name := prefix + "-deleted"
				_, err := client(resource).Get(t.Context(), name, metav1.GetOptions{})
				require.NoError(t, err)
				list, err := client(resource).List(t.Context(), metav1.ListOptions{})
				require.NoError(t, err)
				assert.NotEmpty(t, list.Items)
				_, err = client(resource).Patch(t.Context(), name, types.MergePatchType, []byte(`{"status":{"version":"1"}}`), metav1.PatchOptions{}, "status")
				require.NoError(t, err)
				require.NoError(t, client(resource).Delete(t.Context(), name, metav1.DeleteOptions{}))
				_, err = client(resource).Get(t.Context(), name, metav1.GetOptions{})
				assert.True(t, apierrors.IsNotFound(err), "%v", err)
			})
		}
	}
}

// requireUnanswered requires that the API server called the webhook and refused
// the write because nobody answered.
func requireUnanswered(t *testing.T, err error) {
	t.Helper()
	status := suite.Status(t, err)
	require.EqualValues(t, http.StatusInternalServerError, status.Code, status.Message)
	require.Contains(t, status.Message, `failed calling webhook "budget-checker.gpu.cozystack.io"`)
	require.Contains(t, status.Message, "connection refused")
}
