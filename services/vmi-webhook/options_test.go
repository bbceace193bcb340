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
)

func TestDefaultsAreValid(t *testing.T) {
	o, err := parseOptions(nil, nil)
	require.NoError(t, err)
	assert.Equal(t, zapcore.InfoLevel, o.logLevel)
	assert.Equal(t, ":8443", o.server.Addr)
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
		"addr", "metrics-addr", "health-addr", "tls-cert-file", "tls-private-key-file", "shutdown-delay", "drain-timeout",
		"kubeconfig", "kube-api-qps", "kube-api-burst", "log-level", "version",
	} {
		assert.Contains(t, out.String(), "-"+name)
	}
}

func TestWrongValuesNameTheFlagInOneLine(t *testing.T) {
	for args, want := range map[string]string{
		"--addr=8443":             "--addr",
		"--metrics-addr=x":        "--metrics-addr",
		"--health-addr=":          "--health-addr",
		"--tls-cert-file=":        "--tls-cert-file",
		"--tls-private-key-file=": "--tls-private-key-file",
		"--shutdown-delay=-1s":    "--shutdown-delay",
		"--shutdown-delay=1":      "-shutdown-delay",
		"--kube-api-qps=0":        "--kube-api-qps",
		"--kube-api-qps=NaN":      "--kube-api-qps",
		"--kube-api-qps=Inf":      "--kube-api-qps",
		"--log-level=fatal":       "--log-level",
		"--shutdown-delay=999h":   "--shutdown-delay",
		"--drain-timeout=-1s":     "--drain-timeout",
		"--drain-timeout=999h":    "--drain-timeout",
		"--kube-api-burst=-1":     "--kube-api-burst",
		"--log-level=loud":        "-log-level",
		"--no-such-flag":          "-no-such-flag",
		"serve":                   `"serve"`,
	} {
		t.Run(args, func(t *testing.T) {
			_, err := parseOptions([]string{args}, nil)
			require.ErrorContains(t, err, want)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}
