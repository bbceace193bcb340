// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/rbac"
)

// namespace is where KubeVirt is installed; virt-api and virt-controller
// assume it when they run outside a pod.
const namespace = "kubevirt"

// crds returns all of KubeVirt's CRDs with their full schemas: virt-controller
// starts only when it can watch every one.
func crds() ([]runtime.Object, error) {
	var objects []runtime.Object
	for _, build := range []func() (*apiextensionsv1.CustomResourceDefinition, error){
		components.NewKubeVirtCrd,
		components.NewVirtualMachineCrd,
		components.NewVirtualMachineInstanceCrd,
		components.NewPresetCrd,
		components.NewReplicaSetCrd,
		components.NewVirtualMachinePoolCrd,
		components.NewVirtualMachineInstanceMigrationCrd,
		components.NewMigrationPolicyCrd,
		components.NewVirtualMachineInstancetypeCrd,
		components.NewVirtualMachineClusterInstancetypeCrd,
		components.NewVirtualMachinePreferenceCrd,
		components.NewVirtualMachineClusterPreferenceCrd,
		components.NewVirtualMachineSnapshotCrd,
		components.NewVirtualMachineSnapshotContentCrd,
		components.NewVirtualMachineRestoreCrd,
		components.NewVirtualMachineCloneCrd,
		components.NewVirtualMachineExportCrd,
	} {
		crd, err := build()
		if err != nil {
			return nil, fmt.Errorf("generate a CustomResourceDefinition: %w", err)
		}
		objects = append(objects, crd)
	}
	return objects, nil
}

// manifests returns what virt-operator installs around virt-api,
// virt-controller and virt-handler, as in production: the Service and the
// webhooks lead to pods that a development cluster does not have.
func manifests() ([]runtime.Object, error) {
	objects := []runtime.Object{
		&corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"kubevirt.io": ""}},
		},
		components.NewKubeVirtPriorityClassCR(),
	}
	objects = append(objects, rbac.GetAllCluster()...)
	objects = append(objects, rbac.GetAllApiServer(namespace)...)
	objects = append(objects, rbac.GetAllController(namespace)...)
	objects = append(objects, rbac.GetAllHandler(namespace)...)
	objects = append(objects,
		components.NewApiServerService(namespace),
		components.NewVirtAPIMutatingWebhookConfiguration(namespace),
		components.NewVirtAPIValidatingWebhookConfiguration(namespace),
	)
	for _, service := range components.NewVirtAPIAPIServices(namespace) {
		objects = append(objects, service)
	}
	return objects, nil
}
