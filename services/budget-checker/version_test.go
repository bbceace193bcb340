// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestVersionIsWhatTheLinkerWrote(t *testing.T) {
	unset := thisBuild()
	assert.NotEmpty(t, unset.version)
	assert.NotEmpty(t, unset.revision)

	t.Cleanup(func() { version, revision = "", "" })
	version, revision = "v1.2.3", "0123abc"
	assert.Equal(t, "budget-checker v1.2.3 (revision 0123abc, "+runtime.Version()+")", thisBuild().String())
	metric := thisBuild().metric()
	assert.Equal(t, 1.0, testutil.ToFloat64(metric))
	problems, err := testutil.CollectAndLint(metric)
	require.NoError(t, err)
	assert.Empty(t, problems)
}

func TestVersionIsAskedForByFlag(t *testing.T) {
	o, err := parseOptions([]string{"--version"}, nil)
	require.NoError(t, err)
	assert.True(t, o.version)
}
