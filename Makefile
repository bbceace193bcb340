# SPDX-License-Identifier: Apache-2.0

SHELL := bash -o pipefail

# One set of flags for all builds, so that they share Go's build cache.
export GOFLAGS := -trimpath -buildvcs=false
export CGO_ENABLED := 0

SHARED     := pkg/gpu pkg/model
SERVICES   := services/vmi-webhook services/pod-webhook services/license-copier services/budget-checker
DEVELOPING := hack/devcluster hack/e2e hack/images hack/cozystack
MODULES    := $(SHARED) $(SERVICES) $(DEVELOPING)

# What is stamped into the binaries, and by whom images are built and named.
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
LDFLAGS   = -s -w -X main.version=$(VERSION) -X main.revision=$(REVISION)
ARCH     ?= $(shell go env GOARCH)
IMAGES   ?= gpu
BUILDER  ?= docker build
# Mounting an image takes root, if only that of a user namespace.
UNSHARE   = $(if $(filter-out 0,$(shell id -u)),buildah unshare)

# Modules are built and tested one by one, as their images and users do it:
# a workspace would lend them each other's requirements.
each = set -e; for module in $(1); do (cd $$module && GOWORK=off $(2)); done
# Root on Debian installs the programs that tests lack; others are told to.
need = command -v $(1) >/dev/null || { [ $$(id -u) = 0 ] && command -v apt-get >/dev/null && \
  { apt-get update -qq && apt-get install -qq --no-install-recommends $(1); } >/dev/null; } || \
  { echo "the tests need $(1): install the package of this name"; exit 1; }
DEVCLUSTER = cd hack/devcluster && GOWORK=off go run ./cmd/devcluster

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: up ## Show a VM get its GPU, three that do not, and a budget that holds, with real KubeVirt
	@hack/demo/demo.sh

.PHONY: test
test: lint verify-generate test-unit test-images test-e2e ## Unit tests, the images, then end to end on a development cluster

.PHONY: test-unit
test-unit: ## Unit tests
	@$(call each,$(SHARED) $(SERVICES),go test ./...)

.PHONY: test-race
test-race: ## Unit tests with the race detector, which needs a C compiler
	@$(call each,$(SHARED) $(SERVICES),CGO_ENABLED=1 go test -race ./...)

.PHONY: test-e2e
test-e2e: ## End-to-end tests; each package starts a cluster of its own
	@$(call need,openssl)
	@$(DEVCLUSTER) build >/dev/null
	@cd hack/devcluster && GOWORK=off go test -count=1 ./...
	@cd hack/e2e && GOWORK=off go test -count=1 -p 2 -timeout 40m ./shipping ./licensecopier ./budgetchecker ./kubevirt ./guards ./vmiwebhook ./matching
	@cd hack/cozystack && GOWORK=off go test -count=1 ./...

.PHONY: vet
vet: ## go vet, and a check that all code is formatted
	@unformatted=$$(gofmt -l pkg services hack); if [ -n "$$unformatted" ]; then echo "not formatted: $$unformatted"; exit 1; fi
	@$(call each,$(MODULES),go vet ./...)

.PHONY: build
build: ## Build the services into bin/
	@$(call each,$(SERVICES),go build -ldflags "$(LDFLAGS)" -o ../../bin/ .)

.PHONY: image-binaries
image-binaries: # for Linux, in a folder of their own: it is the images' context
	@$(call each,$(SERVICES),GOOS=linux GOARCH=$(ARCH) go build -ldflags "$(LDFLAGS)" -o ../../bin/linux-$(ARCH)/ .)

.PHONY: images
images: image-binaries ## Build the images (BUILDER="docker build" or "buildah bud", IMAGES, ARCH, VERSION)
	@set -e; for service in $(notdir $(SERVICES)); do \
	  $(BUILDER) --platform linux/$(ARCH) --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) \
	    -t $(IMAGES)/$$service:$(VERSION) -f services/$$service/Dockerfile bin/linux-$(ARCH); done

.PHONY: test-images
test-images: image-binaries ## Build the images with buildah and start them
	@$(call need,buildah)
	@cd hack/images && GOWORK=off VERSION=$(VERSION) REVISION=$(REVISION) $(UNSHARE) go test -count=1 ./...

.PHONY: bench
bench: ## Benchmarks of the decisions
	@$(call each,$(SERVICES),go test -run '^$$' -bench . -benchmem ./...)

.PHONY: bench-copier
bench-copier: ## Copies of 3 licences in 200 and 2,000 namespaces, on a development cluster
	cd hack/e2e && GOWORK=off go test -count=1 -run '^$$' -bench BenchmarkFanOut -benchtime 1x -timeout 30m ./licensecopier

.PHONY: bench-budget
bench-budget: ## Latency and memory of budget-checker with 100 and 10,000 VMs, on a development cluster
	cd hack/e2e && GOWORK=off go test -count=1 -run '^$$' -bench BenchmarkWrite -benchtime 1x -timeout 30m ./budgetchecker

.PHONY: fuzz
fuzz: ## Fuzz each parser of foreign input for a minute
	cd pkg/model && GOWORK=off go test -run '^$$' -fuzz FuzzParseEntries -fuzztime 1m .
	cd pkg/model && GOWORK=off go test -run '^$$' -fuzz FuzzParseBudget -fuzztime 1m .
	cd pkg/model && GOWORK=off go test -run '^$$' -fuzz FuzzParseUsage -fuzztime 1m .
	cd services/vmi-webhook && GOWORK=off go test -run '^$$' -fuzz FuzzAdmit -fuzztime 1m ./internal/admit
	cd services/budget-checker && GOWORK=off go test -run '^$$' -fuzz FuzzAdmit -fuzztime 1m ./internal/review

.PHONY: up
up: ## Start a development cluster with the services, and leave it running
	@$(DEVCLUSTER) up

.PHONY: down
down: ## End the development cluster
	@$(DEVCLUSTER) down

# Tools are built once into bin/, at the versions of their go.mod.
bin/%: hack/tools/go.mod hack/tools/go.sum
	@cd hack/tools && GOWORK=off go build -o ../../bin/ $$(GOWORK=off go list -f '{{.ImportPath}}' tool | grep '/$*$$')

.PHONY: generate
generate: bin/controller-gen ## Generate deepcopy functions and CRDs from the API types
	@cd pkg/model && GOWORK=off ../../bin/controller-gen object:headerFile=../../hack/boilerplate.go.txt crd paths=./v1alpha1 output:crd:dir=../../deploy/crds

.PHONY: verify-generate
verify-generate: ## Check that make generate has nothing to change
	@sum() { cat pkg/model/v1alpha1/zz_generated.deepcopy.go deploy/crds/cozystack.io_*.yaml | sha256sum; }; \
	before=$$(sum); $(MAKE) --no-print-directory generate; \
	if [ "$$before" != "$$(sum)" ]; then echo "generated files were out of date: commit what make generate changed"; exit 1; fi

.PHONY: lint
lint: vet bin/staticcheck ## go vet, staticcheck and go mod tidy
	@$(call each,$(MODULES),$(CURDIR)/bin/staticcheck ./...)
	@$(call each,$(MODULES) hack/tools,go mod tidy -diff)

.PHONY: tidy
tidy: ## go mod tidy in every module
	@$(call each,$(MODULES),go mod tidy)
