// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cozystack.io/gpu/hack/devcluster"
	"cozystack.io/gpu/hack/e2e/suite"
)

// Under LiveUpdate KubeVirt resets a VMI's tolerations to the template's, which
// is why they are put on the pod.
func TestLiveUpdateKeepsDevicesAndTolerations(t *testing.T) {
	classes(t)
	ns := namespace(t)
	vm(t, ns, "live", template(t, oneL40S, usualSpec))
	waitPhase(t, ns, "live", "Running")

	patch(t, vms, ns, "live", "{spec: {template: {spec: {tolerations: [{key: example.com/own, operator: Exists}]}}}}")
	own := map[string]any{"key": "example.com/own", "operator": "Exists"}
	eventually(t, func(c *assert.CollectT) {
		vmi, err := env.Dynamic.Resource(suite.VMIs).Namespace(ns).Get(context.Background(), "live", metav1.GetOptions{})
		require.NoError(c, err)
		assert.Equal(c, []any{own}, nested(vmi, "spec", "tolerations"))
		assertLicensed(c, vmi)
	})

	patch(t, vms, ns, "live", "{spec: {template: {spec: {domain: {cpu: {sockets: 2}}}}}}")
	// KubeVirt migrates the VM to plug the CPUs: the target pod is new.
	eventually(t, func(c *assert.CollectT) {
		vmi, err := env.Dynamic.Resource(suite.VMIs).Namespace(ns).Get(context.Background(), "live", metav1.GetOptions{})
		require.NoError(c, err)
		assert.EqualValues(c, 2, nested(vmi, "spec", "domain", "cpu", "sockets"))
		assertLicensed(c, vmi)
		pods := launchers(c, ns, "live")
		if assert.Len(c, pods, 2) {
			for _, pod := range pods {
				assert.Contains(c, pod.Spec.Tolerations, l40sTaint)
				assert.EqualValues(c, 1, requested(&pod, l40sResource))
			}
		}
	})
	assert.Nil(t, condition(get(t, vms, ns, "live"), "RestartRequired"), "what the webhooks wrote asks for no restart")
}

// volumeClaim creates a bound PersistentVolumeClaim.
func volumeClaim(t testing.TB, namespace, name string) {
	t.Helper()
	env.Create(t, pvs, suite.Object(t, `
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s-%[2]s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  hostPath: {path: /nowhere}
  claimRef: {namespace: %[1]s, name: %[2]s}
  persistentVolumeReclaimPolicy: Retain
`, namespace, name))
	env.Create(t, pvcs, suite.Object(t, `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[2]s, namespace: %[1]s}
spec: {accessModes: [ReadWriteMany], storageClassName: "", resources: {requests: {storage: 1Gi}}}
`, namespace, name))
}

// subresource calls KubeVirt's aggregated API for a VM, again as long as the VM
// is busy with an earlier call.
func subresource(t testing.TB, namespace, vm, verb string, body any) {
	t.Helper()
	raw, err := json.Marshal(body)
	require.NoError(t, err)
	eventually(t, func(c *assert.CollectT) {
		assert.NoError(c, env.Kube.CoreV1().RESTClient().Put().
			AbsPath(fmt.Sprintf("/apis/subresources.kubevirt.io/v1/namespaces/%s/virtualmachines/%s/%s", namespace, vm, verb)).
			SetHeader("Content-Type", "application/json").Body(raw).Do(context.Background()).Error())
	})
}

func TestVolumesPluggedAndUnplugged(t *testing.T) {
	classes(t)
	ns := namespace(t)
	volumeClaim(t, ns, "data")
	vm(t, ns, "plug", template(t, oneL40S, usualSpec))
	waitPhase(t, ns, "plug", "Running")
	hasVolume := func(c *assert.CollectT, want bool) {
		vmi, err := env.Dynamic.Resource(suite.VMIs).Namespace(ns).Get(context.Background(), "plug", metav1.GetOptions{})
		require.NoError(c, err)
		names := disksOf(vmi)
		if want {
			assert.Contains(c, names, "data")
		} else {
			assert.NotContains(c, names, "data")
		}
		assert.Contains(c, names, "gpu-license")
		assert.Contains(c, nested(vmi, "spec", "volumes"), any(licenseVolume))
		assert.Equal(c, entries(l40sResource, 1), nested(vmi, "spec", "domain", "devices", "gpus"))
	}
	check := func(want bool) {
		t.Helper()
		eventually(t, func(c *assert.CollectT) { hasVolume(c, want) })
	}

	subresource(t, ns, "plug", "addvolume", map[string]any{
		"name": "data", "disk": map[string]any{"name": "data", "disk": map[string]any{"bus": "scsi"}},
		"volumeSource": map[string]any{"persistentVolumeClaim": map[string]any{"claimName": "data"}},
	})
	check(true)
	subresource(t, ns, "plug", "removevolume", map[string]any{"name": "data"})
	check(false)
	eventually(t, func(c *assert.CollectT) { // KubeVirt is done with the VM, too
		object, err := env.Dynamic.Resource(vms).Namespace(ns).Get(context.Background(), "plug", metav1.GetOptions{})
		require.NoError(c, err)
		assert.Len(c, nested(object, "spec", "template", "spec", "volumes"), 2)
		assert.Empty(c, nested(object, "status", "volumeRequests"))
	})

	gates(t, "DeclarativeHotplugVolumes", "HotplugVolumes")
	setTemplate := func(disks, volumes string) {
		patch(t, vms, ns, "plug", fmt.Sprintf("{spec: {template: {spec: {volumes: [%s], domain: {devices: {disks: [%s]}}}}}}", volumes, disks))
	}
	const (
		disks   = "{name: root, disk: {bus: virtio}}, {name: cloudinit, disk: {bus: virtio}}"
		volumes = "{name: root, containerDisk: {image: 'example.com/debian:13'}}, {name: cloudinit, cloudInitNoCloud: {userData: '#cloud-config'}}"
	)
	setTemplate(disks+", {name: data, disk: {bus: scsi}}", volumes+", {name: data, persistentVolumeClaim: {claimName: data, hotpluggable: true}}")
	check(true)
	setTemplate(disks, volumes)
	check(false)
	assert.Nil(t, condition(get(t, vms, ns, "plug"), "RestartRequired"))
}

// gates opens one of KubeVirt's feature gates and closes another, if one is
// named, until the test ends.
func gates(t testing.TB, open, closed string) {
	t.Helper()
	client := env.Dynamic.Resource(suite.KubeVirts).Namespace("kubevirt")
	set := func(change func(list []any) []any) (before []any) {
		kubevirt, err := client.Get(context.WithoutCancel(t.Context()), "kubevirt", metav1.GetOptions{})
		require.NoError(t, err)
		developer := nested(kubevirt, "spec", "configuration", "developerConfiguration").(map[string]any)
		before = developer["featureGates"].([]any)
		developer["featureGates"] = change(slices.Clone(before))
		kubevirt, err = client.Update(context.WithoutCancel(t.Context()), kubevirt, metav1.UpdateOptions{})
		require.NoError(t, err)
		for _, program := range []string{devcluster.VirtAPI, devcluster.VirtController} {
			eventually(t, func(c *assert.CollectT) {
				log, err := os.ReadFile(env.Cluster.Process(program).Log)
				require.NoError(c, err)
				assert.Contains(c, string(log), fmt.Sprintf("Updating cluster config from KubeVirt to resource version '%s'", kubevirt.GetResourceVersion()))
			}, "%s does not know of the gates", program)
		}
		return before
	}
	before := set(func(list []any) []any {
		return append(slices.DeleteFunc(list, func(gate any) bool { return gate == closed }), open)
	})
	t.Cleanup(func() { set(func([]any) []any { return before }) })
}

// startMigration asks for a migration, which ends with its VM: KubeVirt lets go
// of one that it handed to virt-handler only when virt-handler says so.
func startMigration(t testing.TB, namespace, vmi string) {
	t.Helper()
	object := suite.Object(t, "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstanceMigration, metadata: {name: move-%s, namespace: %s}, spec: {vmiName: %[1]s}}", vmi, namespace)
	_, err := env.Dynamic.Resource(migrations).Namespace(namespace).Create(t.Context(), object, metav1.CreateOptions{})
	require.NoError(t, err)
}

// migrate asks for a migration and returns its target pod.
func migrate(t testing.TB, namespace, vmi string) (pod corev1.Pod) {
	t.Helper()
	startMigration(t, namespace, vmi)
	eventually(t, func(c *assert.CollectT) {
		target := false
		for _, candidate := range launchers(c, namespace, vmi) {
			if candidate.Labels["kubevirt.io/migrationJobUID"] != "" {
				pod, target = candidate, true
			}
		}
		assert.True(c, target, "no target pod")
	})
	return pod
}

func TestMigrationTargetHasTheTolerations(t *testing.T) {
	classes(t)
	ns := namespace(t)
	vm(t, ns, "mover", template(t, oneL40S, usualSpec))
	waitPhase(t, ns, "mover", "Running")
	source := waitBound(t, ns, "mover").Spec.NodeName
	target := migrate(t, ns, "mover")
	eventually(t, func(c *assert.CollectT) {
		pod, err := env.Kube.CoreV1().Pods(ns).Get(context.Background(), target.Name, metav1.GetOptions{})
		require.NoError(c, err)
		assert.Regexp(c, "^gpu-l40s-", pod.Spec.NodeName)
		assert.NotEqual(c, source, pod.Spec.NodeName)
	})
	assert.Contains(t, target.Spec.Tolerations, l40sTaint)
	assert.EqualValues(t, 1, requested(&target, l40sResource))
}

// A running VMI's metadata can be edited, its devices cannot.
func TestEditedVMIGivesNoTolerationWithoutItsDevice(t *testing.T) {
	classes(t)
	ns := namespace(t)
	vm(t, ns, "edited", template(t, oneL40S, usualSpec))
	vm(t, ns, "plain", template(t, "", usualSpec))
	waitPhase(t, ns, "edited", "Running")
	waitPhase(t, ns, "plain", "Running")

	patch(t, suite.VMIs, ns, "edited", `{metadata: {annotations: {cozystack.io/gpus: '[{"className":"h100","count":1}]'}}}`)
	target := migrate(t, ns, "edited")
	assert.NotContains(t, target.Spec.Tolerations, h100Taint)

	patch(t, suite.VMIs, ns, "plain", `{metadata: {labels: {cozystack.io/gpu-reference: "true"}, annotations: {cozystack.io/gpus: '[{"className":"h100","count":1}]'}}}`)
	startMigration(t, ns, "plain")
	eventually(t, func(c *assert.CollectT) {
		pods := launchers(c, ns, "plain")
		assert.Len(c, pods, 2)
		for _, pod := range pods {
			assert.NotContains(c, pod.Spec.Tolerations, h100Taint)
		}
	})
}

func TestBrokenAnnotationRefusesTheNextPod(t *testing.T) {
	classes(t)
	for name, tc := range map[string]struct{ patch, want string }{
		"missing": {`{metadata: {annotations: {cozystack.io/gpus: null}}}`, "does not name them"},
		"broken":  {`{metadata: {annotations: {cozystack.io/gpus: '[{"className":"l40s"}]'}}}`, "[0].count: must be a whole number"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := namespace(t)
			vm(t, ns, "edited", template(t, oneL40S, usualSpec))
			waitPhase(t, ns, "edited", "Running")
			patch(t, suite.VMIs, ns, "edited", tc.patch)
			startMigration(t, ns, "edited")
			eventually(t, func(c *assert.CollectT) {
				events, err := env.Kube.CoreV1().Events(ns).List(context.Background(), metav1.ListOptions{FieldSelector: "reason=FailedCreate"})
				require.NoError(c, err)
				messages := ""
				for _, event := range events.Items {
					messages += event.Message + "\n"
				}
				assert.Contains(c, messages, tc.want)
			})
			assert.Len(t, launchers(t, ns, "edited"), 1)
		})
	}
}

// KubeVirt binds volumes that wait for a first consumer with a temporary
// launcher pod, which must fit where the VM will run.
func TestTemporaryPodThatBindsVolumesHasTheTolerations(t *testing.T) {
	classes(t)
	ns := namespace(t)
	env.Create(t, storage, suite.Object(t, "{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: %s}, provisioner: kubernetes.io/no-provisioner, volumeBindingMode: WaitForFirstConsumer}", ns))
	dv := env.Create(t, dataVolumes, suite.Object(t, "{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, metadata: {name: root, namespace: %s}, spec: {}, status: {phase: WaitForFirstConsumer}}", ns))
	env.Create(t, pvcs, suite.Object(t, `
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: root
  namespace: %s
  ownerReferences: [{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, name: root, uid: %s, controller: true}]
spec: {accessModes: [ReadWriteOnce], storageClassName: %s, resources: {requests: {storage: 1Gi}}}
`, ns, dv.GetUID(), ns))
	vm(t, ns, "first", template(t, oneL40S, `
domain: {memory: {guest: 1Gi}, devices: {disks: [{name: root, disk: {bus: virtio}}]}}
volumes: [{name: root, dataVolume: {name: root}}]
`))
	eventually(t, func(c *assert.CollectT) {
		pods := launchers(c, ns, "first")
		if assert.Len(c, pods, 1) {
			assert.Equal(c, "true", pods[0].Annotations["kubevirt.io/ephemeral-provisioning"])
			assert.Contains(c, pods[0].Spec.Tolerations, l40sTaint)
		}
	})
}
