// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Write is a request that asked the API server to change something, whether it
// was granted or not.
type Write struct {
	Verb, Resource, Namespace, Name string
	Code                            int
}

// auditEvent is the part of a line of the audit log that is read.
type auditEvent struct {
	Stage     string
	Verb      string
	UserAgent string
	User      struct{ Username string }
	ObjectRef struct{ APIGroup, Resource, Subresource, Namespace, Name string }
	// The answer's metadata; of a creation, the name too.
	ResponseStatus struct{ Code int }
	Annotations    map[string]string
}

// resource returns resource and subresource as rules of roles write them.
func (e auditEvent) resource() string {
	if e.ObjectRef.Subresource == "" {
		return e.ObjectRef.Resource
	}
	return e.ObjectRef.Resource + "/" + e.ObjectRef.Subresource
}

// Audit reads the API server's audit log from the moment it was made.
type Audit struct {
	path, user string
	offset     int64 // of what has not been read yet
	writes     []Write
}

// NewAudit returns a reader of what the user writes from now on.
func (e *Env) NewAudit(t testing.TB, user string) *Audit {
	t.Helper()
	info, err := os.Stat(e.Cluster.AuditLog())
	require.NoError(t, err)
	return &Audit{path: e.Cluster.AuditLog(), user: user, offset: info.Size()}
}

// Writes returns the user's writes so far. Leases are not counted.
func (a *Audit) Writes(t testing.TB) []Write {
	t.Helper()
	file, err := os.Open(a.path)
	require.NoError(t, err)
	defer file.Close()
	_, err = file.Seek(a.offset, io.SeekStart)
	require.NoError(t, err)
	for reader := bufio.NewReader(file); ; {
		line, err := reader.ReadBytes('\n')
		if err != nil {
			return a.writes // the last line may not be whole yet
		}
		a.offset += int64(len(line))
		var event auditEvent
		if json.Unmarshal(line, &event) != nil {
			continue // a line that the mark cut
		}
		read := slices.Contains([]string{"get", "list", "watch"}, event.Verb)
		if read || event.Stage != "ResponseComplete" || event.User.Username != a.user || event.ObjectRef.Resource == "leases" {
			continue
		}
		ref := event.ObjectRef
		a.writes = append(a.writes, Write{event.Verb, event.resource(), ref.Namespace, ref.Name, event.ResponseStatus.Code})
	}
}

// Settled returns the user's writes once there were none for a second.
func (a *Audit) Settled(t testing.TB) []Write {
	t.Helper()
	known, last := len(a.Writes(t)), time.Now()
	require.Eventually(t, func() bool {
		if now := len(a.Writes(t)); now != known {
			known, last = now, time.Now()
		}
		return time.Since(last) > time.Second
	}, time.Minute, 100*time.Millisecond)
	return a.writes
}
