// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Memory returns a figure of /proc/<pid>/status in MiB, such as VmRSS, what is
// resident, or VmHWM, the most that ever was.
func Memory(t testing.TB, pid int, field string) float64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(raw)) {
		if value, found := strings.CutPrefix(line, field+":"); found {
			kib, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			require.NoError(t, err)
			return kib / 1024
		}
	}
	require.Fail(t, "no such field", field)
	return 0
}
