// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

// What a hoster has to mend is in the API server's words.
func TestFailedReadHasTheAPIServersReason(t *testing.T) {
	apiServer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"may not read ` + r.URL.Path + `"}`))
	}))
	defer apiServer.Close()
	reader, err := NewReader(&rest.Config{Host: apiServer.URL})
	require.NoError(t, err)
	_, err = reader.Classes(t.Context())
	for _, want := range []string{
		"read gpuclasses: may not read /apis/cozystack.io/v1alpha1/gpuclasses",
	} {
		require.ErrorContains(t, err, want)
	}
}
