// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"

	"cozystack.io/gpu/pkg/gpu"
)

func TestDefaultsAreValid(t *testing.T) {
	o, err := parseOptions(nil, nil)
	require.NoError(t, err)
	assert.Equal(t, zapcore.InfoLevel, o.logLevel)
	assert.Equal(t, gpu.LicenseSecretNamespace, o.licenseNamespace)
	assert.True(t, o.leaderElect)
}

func TestWithoutAWayToTheAPIServerTheFlagIsNamed(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // no pod
	for _, kubeconfig := range []string{"", filepath.Join(t.TempDir(), "missing")} {
		_, err := options{kubeconfig: kubeconfig}.restConfig()
		require.ErrorContains(t, err, "--kubeconfig")
		require.ErrorContains(t, err, kubeconfig)
		assert.NotContains(t, err.Error(), "KUBERNETES_MASTER", "which is not read")
	}
}

func TestHelpListsEveryFlag(t *testing.T) {
	var out strings.Builder
	_, err := parseOptions([]string{"--help"}, &out)
	require.ErrorIs(t, err, flag.ErrHelp)
	for _, name := range []string{
		"license-namespace", "workers", "leader-elect", "leader-elect-namespace", "leader-elect-name",
		"metrics-addr", "health-addr", "kubeconfig", "kube-api-qps", "kube-api-burst", "log-level", "version",
	} {
		assert.Contains(t, out.String(), "-"+name)
	}
}

func TestWrongValuesNameTheFlagInOneLine(t *testing.T) {
	for args, want := range map[string]string{
		"--license-namespace=a/b":    "--license-namespace",
		"--license-namespace=":       "--license-namespace",
		"--workers=0":                "--workers",
		"--leader-elect=maybe":       "-leader-elect",
		"--leader-elect-namespace=A": "--leader-elect-namespace",
		"--leader-elect-name=":       "--leader-elect-name",
		"--metrics-addr=x":           "--metrics-addr",
		"--health-addr=":             "--health-addr",
		"--kube-api-qps=0":           "--kube-api-qps",
		"--kube-api-qps=1e-300":      "--kube-api-qps",
		"--kube-api-qps=NaN":         "--kube-api-qps",
		"--kube-api-qps=Inf":         "--kube-api-qps",
		"--kube-api-burst=-1":        "--kube-api-burst",
		"--log-level=loud":           "-log-level",
		"--log-level=fatal":          "--log-level",
		"--no-such-flag":             "-no-such-flag",
		"serve":                      `"serve"`,
	} {
		t.Run(args, func(t *testing.T) {
			_, err := parseOptions([]string{args}, nil)
			require.ErrorContains(t, err, want)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}
