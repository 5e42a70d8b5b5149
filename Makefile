# paymentd: everything that one does with this tree. `make help` lists it.
# Written for GNU Make 3.81 (macOS) and later.

GO        ?= go
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS   := -X main.version=$(VERSION)
PKG       ?= ./...
TIMEOUT   ?= 30m
RACE      ?= -race
FUZZTIME  ?= 60s
BENCH     ?= .
BENCHTIME ?= 1s
ARGS      ?=
SCALE     ?= 1
NAME      ?=
FOR       ?= 10m
SEED      ?=
LINT      := $(GO) tool -modfile=tools/go.mod golangci-lint

# The version is stamped by LDFLAGS; asking git again would fail in a clone that belongs to another user.
export GOFLAGS := $(strip $(shell $(GO) env GOFLAGS 2>/dev/null) -buildvcs=false)

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@printf 'usage: make <target> [NAME=value]\n\n'
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@printf '\n  make run needs Go, make and git; the rest is fetched when it is missing.\n'

.PHONY: run
run: build ## start PostgreSQL, the Toss simulator and paymentd, confirm one payment, stay up (ARGS=--help: flags)
	@exec ./bin/devstack $(ARGS)

.PHONY: setup
setup: ## get what the tests need; says nothing when nothing is missing
	@GO='$(GO)' RACE='$(RACE)' ./tools/setup

.PHONY: test
test: setup ## all tests with the race detector and a real PostgreSQL (PKG=./internal/pg/ TESTFLAGS='-run Name')
	PAYMENTD_REQUIRE_DB=1 $(GO) test $(RACE) -shuffle=on -count=1 -timeout=$(TIMEOUT) $(TESTFLAGS) $(PKG)
ifeq ($(RACE)$(PKG)$(TESTFLAGS),-race./...)
	$(GO) test -count=1 -timeout=$(TIMEOUT) ./internal/protocol # its usual bounds are too large for the race detector
endif

.PHONY: lint
lint: ## golangci-lint as pinned in tools/go.mod (built at its first use: a minute or two)
	$(LINT) run $(LINTFLAGS) $(PKG)

.PHONY: fmt
fmt: ## format the Go files
	gofmt -w .

.PHONY: check
check: check-fmt check-vet check-fix check-tidy check-gen lint test ## the whole gate before a merge

.PHONY: check-fmt
check-fmt:
	@out="$$(gofmt -l .)"; if [ -n "$$out" ]; then echo "not formatted, run make fmt:"; echo "$$out"; exit 1; fi

.PHONY: check-vet
check-vet:
	$(GO) vet $(PKG)

.PHONY: check-fix
check-fix:
	$(GO) fix -diff $(PKG)

.PHONY: check-tidy
check-tidy:
	$(GO) mod tidy -diff

# Compares the working tree before and after, so that it also works on a tree with changes.
.PHONY: check-gen
check-gen:
	@git diff --quiet --exit-code HEAD -- LICENSE || { echo "check-gen needs a git clone that git accepts"; exit 1; }; \
	sum() { { git diff; git ls-files -o --exclude-standard | sort | while read -r f; do cksum "$$f"; done; } | cksum; }; \
	before="$$(sum)"; $(GO) generate $(PKG) || exit 1; \
	if [ "$$before" != "$$(sum)" ]; then echo "generated files are stale: commit what make generate changed"; git status --short; exit 1; fi

.PHONY: generate
generate: ## rewrite the generated files (docs/state-machine.md and what else has a go:generate line)
	$(GO) generate $(PKG)

.PHONY: bench
bench: ## confirms per second against PostgreSQL's own, and how many callers are held: scenarios S9 and S8 (ARGS=--help)
	$(GO) run ./loadtest/bench --json $(if $(ARGS),bin,loadtest/results)/bench.json $(ARGS)

.PHONY: gobench
gobench: ## Go benchmarks (BENCH=Settle BENCHTIME=3s PKG=./internal/store/)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime '$(BENCHTIME)' -benchmem $(TESTFLAGS) $(PKG)

.PHONY: chaos
chaos: ## confirm payments while paymentd and all around it is killed, scenario S10 (FOR=10m SEED=7 ARGS=--help)
	$(GO) run ./loadtest/chaos --for $(FOR) $(if $(SEED),--seed $(SEED)) $(ARGS)

# Only what ran at its own pace is worth a page.
RESULTS = $(if $(filter 1,$(SCALE)),loadtest/results,bin/results)
RENEW = $(if $(filter 1,$(SCALE)),&& $(GO) run ./loadtest/scenarios --page docs/scenarios.md)

.PHONY: scenarios
scenarios: ## play S1 to S6, S8 and S11 at their own pace, about 15 minutes, and renew docs/scenarios.md (SCALE=0.1: two, into bin/results; ARGS=--help)
	$(GO) run ./loadtest/scenarios --scale $(SCALE) --out $(RESULTS) $(ARGS) $(RENEW)

.PHONY: scenario
scenario: ## play some of them (NAME=s1, NAME='s2 s3'; NAME= lists them)
	$(GO) run ./loadtest/scenarios --scale $(SCALE) --out $(RESULTS) $(ARGS) $(if $(NAME),$(NAME) $(RENEW),--list)

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME=60s each
	@found=0; \
	for at in $$(grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' cmd internal breaker \
		| sed -E 's,^(.*)/[^/]*:[0-9]+:func (Fuzz.*)$$,\1@\2,' | sort -u); do \
		found=1; echo "== $${at#*@} in $${at%@*} for $(FUZZTIME)"; \
		$(GO) test -run '^$$' -fuzz "^$${at#*@}\$$" -fuzztime '$(FUZZTIME)' "./$${at%@*}" || exit 1; \
	done; \
	if [ $$found = 0 ]; then echo "no fuzz target found"; exit 1; fi

.PHONY: cover
cover: setup ## coverage over all packages, as bin/coverage.html
	@mkdir -p bin
	PAYMENTD_REQUIRE_DB=1 $(GO) test -count=1 -timeout=$(TIMEOUT) -coverpkg=./... -coverprofile=bin/coverage.out $(PKG)
	$(GO) tool cover -html=bin/coverage.out -o bin/coverage.html
	$(GO) tool cover -func=bin/coverage.out | tail -n 1

.PHONY: rules
rules: ## check and test the alert rules and the Alertmanager file (fetches Debian's Prometheus into the cache if there is none)
	$(GO) test -count=1 -run 'Prometheus|Alert' ./deploy

.PHONY: k6-check
k6-check: ## type-check the k6 scripts (needs npm; part of make test)
	cd loadtest/k6 && npm ci --prefer-offline --ignore-scripts --no-audit --no-fund && npm run check

.PHONY: soak
soak: ## confirm for 30 minutes with faults going on and off; nothing may grow (ARGS='--for 5m --rate 50')
	$(GO) run ./loadtest/soak $(ARGS)

.PHONY: e2e-alert
e2e-alert: setup ## real Prometheus and Alertmanager during a hanging gateway: seconds to pending, firing, delivered (6 minutes)
	PAYMENTD_REQUIRE_DB=1 PAYMENTD_TEST_REAL_TIME=1 $(GO) test -count=1 -timeout=$(TIMEOUT) -run '^TestScenarioS7$$' -v ./cmd/paymentd

.PHONY: pictures
pictures: setup ## draw docs/img anew from half a minute of a real paymentd, as the dashboards show it
	PAYMENTD_REQUIRE_DB=1 PAYMENTD_TEST_PICTURES=1 $(GO) test -count=1 -timeout=$(TIMEOUT) -run '^TestDashboardsShowARun$$' ./cmd/paymentd

.PHONY: build
build: ## build the programs into bin/, stamped with VERSION
	@mkdir -p bin
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

.PHONY: clean
clean: ## remove what was built here
	rm -rf bin
