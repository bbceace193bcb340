// SPDX-License-Identifier: Apache-2.0

// Package gpu holds the names by which the GPU services find each other's work.
//
// The services share no code besides this package and the model, and never
// call each other. What one leaves for another lies on Kubernetes objects,
// under the names below:
//
//   - A chart writes AnnotationGPUs (which classes, how many units) and
//     LabelGPUReference (select me) on a VM template. KubeVirt copies both to
//     the VirtualMachineInstance and to each of its launcher pods.
//   - vmi-webhook reads the annotation of a labelled VMI and writes GPU entries
//     named by VMIGPUNamePrefix and, for a licensed class, a volume and disk
//     named LicenseVolumeName from the Secret LicenseSecretName.
//   - pod-webhook reads the annotation of a labelled launcher pod and writes
//     tolerations.
//   - license-copier writes that Secret, marked with LabelGPUClass, into every
//     namespace that LabelNamespaceVGPU entitles, and the conditions of every
//     GPUClass.
//   - budget-checker reads the QuotaKeyPrefix keys of a tenant's quotas.
//
// Whoever removes or renames a value here breaks running clouds: VMs and
// Secrets carry these names for as long as they live.
package gpu

const (
	// AnnotationGPUs holds the GPU classes of a VM as a JSON list,
	// [{"className":"l40s-24c","count":2}].
	AnnotationGPUs = "cozystack.io/gpus"

	// LabelGPUReference stands next to AnnotationGPUs; both webhooks select on
	// its existence. Its value is LabelValueTrue.
	LabelGPUReference = "cozystack.io/gpu-reference"

	// LabelValueTrue is the one value that switches a label of this package on.
	LabelValueTrue = "true"

	// VMIGPUNamePrefix begins the name of each GPU entry written to a VMI; the
	// entry's index over all classes follows, from 0.
	VMIGPUNamePrefix = "gpuclass-"

	// LicenseSecretNamespace is where the hoster keeps the licence Secrets that
	// classes name, unless a flag says otherwise.
	LicenseSecretNamespace = "cozy-gpu-operator"

	// LicenseTokenKey is the licence Secret's key of the NVIDIA client
	// configuration token, as NVIDIA's GPU operator names it.
	LicenseTokenKey = "client_configuration_token.tok"

	// LicenseGriddConfKey is the licence Secret's optional key of the guest
	// driver's configuration, as NVIDIA's GPU operator names it.
	LicenseGriddConfKey = "gridd.conf"

	// LabelGPUClass marks a copy of a licence Secret; its value is the class.
	// A Secret without it is nobody's copy and is never written.
	LabelGPUClass = "cozystack.io/gpu-class"

	// LicenseVolumeName names the licence's volume and disk on a VMI.
	LicenseVolumeName = "gpu-license"

	// LicenseVolumeLabel is the file system label by which a guest finds the
	// licence disk.
	LicenseVolumeLabel = "vgpu-license"

	// LabelNamespaceVGPU with LabelValueTrue on a namespace entitles its VMs to
	// vGPU classes and to copies of their licences.
	LabelNamespaceVGPU = "namespace.cozystack.io/vgpu"

	// QuotaKeyPrefix begins every GPU key of a tenant's quotas, so that a chart
	// can keep them all out of the namespace's ResourceQuota.
	QuotaKeyPrefix = "gpu.cozystack.io/"

	// QuotaKeyTotal limits the units of all classes together.
	QuotaKeyTotal = QuotaKeyPrefix + "total"

	// ConditionResourceNameConflict is True on a GPUClass whose resource name
	// an older class already has.
	ConditionResourceNameConflict = "ResourceNameConflict"

	// ConditionLicenseSecretMissing is True on a GPUClass whose licence Secret
	// does not exist or holds no token.
	ConditionLicenseSecretMissing = "LicenseSecretMissing"
)

const licenseSecretPrefix = "gpu-license-"

// LicenseSecretName returns the name of the Secret that holds a copy of the
// class's licence in each entitled namespace.
func LicenseSecretName(class string) string {
	return licenseSecretPrefix + class
}
