// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Running VMs and copied Secrets carry these strings, so a change of any of
// them is a breaking change even where everything still compiles.
func TestNamesAreAsDeployedCloudsCarryThem(t *testing.T) {
	for got, want := range map[string]string{
		AnnotationGPUs:                "cozystack.io/gpus",
		LabelGPUReference:             "cozystack.io/gpu-reference",
		LabelValueTrue:                "true",
		VMIGPUNamePrefix:              "gpuclass-",
		LicenseSecretNamespace:        "cozy-gpu-operator",
		LicenseTokenKey:               "client_configuration_token.tok",
		LicenseGriddConfKey:           "gridd.conf",
		LabelGPUClass:                 "cozystack.io/gpu-class",
		LicenseVolumeName:             "gpu-license",
		LicenseVolumeLabel:            "vgpu-license",
		LabelNamespaceVGPU:            "namespace.cozystack.io/vgpu",
		QuotaKeyPrefix:                "gpu.cozystack.io/",
		QuotaKeyTotal:                 "gpu.cozystack.io/total",
		ConditionResourceNameConflict: "ResourceNameConflict",
		ConditionLicenseSecretMissing: "LicenseSecretMissing",
		LicenseSecretName("l40s-24c"): "gpu-license-l40s-24c",
	} {
		assert.Equal(t, want, got)
	}
}

func TestLicenseSecretNameOfTheLongestClassIsAValidName(t *testing.T) {
	const longestClass, longestSecretName = 57, 253
	assert.LessOrEqual(t, len(LicenseSecretName(strings.Repeat("x", longestClass))), longestSecretName)
}
