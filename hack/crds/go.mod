// Modules whose CRDs the tests check our manifests against. No code is built
// from them: tests read their files from the module cache. `go mod tidy` would
// drop them.
module cozystack.io/gpu/hack/crds

go 1.26.0

require (
	github.com/cert-manager/cert-manager v1.21.2
	github.com/prometheus-operator/prometheus-operator v0.85.0
)
