# The targets of the house. `make help` explains them.

GO      ?= go
BIN     := bin/svc
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)
PKGS    := ./...

.PHONY: help generate build run dev cluster test check release race lint fmt fmt-check fuzz-short long crash storm storm-short upgrade planted golden openapi bench sdkcheck webhookcheck widgetcheck browsercheck consolecheck consoletypes conformance cover migrate verify ci

help: ## explain each target
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

generate: ## build the chat widget and the web console, which the binary embeds (the console needs npm)
	$(GO) generate ./transport/embed/widget ./transport/console

build: generate ## build the one binary, bin/svc
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/svc

run: build ## a first look: a node with a private Postgres, a tenant, a key and a sample agent
	$(BIN) dev

dev: run ## the same as run

cluster: build ## three nodes on this machine, with a Postgres, a Redis and a load balancer (needs redis-server)
	$(BIN) dev --nodes 3

migrate: build ## bring the database of SVC_DATABASE_URL (or the private one) up to date
	$(BIN) migrate

test: ## format, vet, house, unit and integration tests with the race detector
	@bash .ci/test

check: ## what CI checks beside it: tests without the race detector, black-box tests, browser skills in a real browser, foreign SDKs, verifiers and servers
	@bash .ci/check

release: lint race browsercheck consolecheck planted crash upgrade storm ## what CI leaves out, before a release and after a change of what it tests (hours)

race: ## all tests with the race detector
	$(GO) test -race $(PKGS)

lint: ## vet and staticcheck
	$(GO) vet $(PKGS)
	cd bench && $(GO) vet $(PKGS)
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 -tags storm $(PKGS)

fmt: ## format the code
	gofmt -w $$(git ls-files '*.go')

fmt-check:
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt would change:"; echo "$$out"; exit 1; }

fuzz-short: ## each fuzz target 5,000 times
	@bash .ci/fuzz 5000x

long: ## what CI leaves out for its half hour, a test a line in .ci/long: outages, floods, drains, kills under load, what starts many servers
	$(GO) test -count=1 -parallel 4 -timeout 40m -run "^($$(paste -sd'|' .ci/long))$$" ./cmd/svc/blackbox ./actors/stream ./cluster/membership ./persistence/journal ./persistence/pgtest ./persistence/private ./persistence/store ./transport/browser

crash: long ## kill -9 at every commit boundary and at random under load, against a real server process; and make long
	$(GO) test -tags failpoints -count=1 -parallel 4 -timeout 50m -run 'TestCrash|TestSIGTERMWhile|TestKilledAtEachPoint|TestTheNthHitKills' ./cmd/svc/blackbox ./actors/ingest ./actors/skillrun ./actors/sync ./actors/thread ./actors/trigger ./persistence/journal ./persistence/failpoint
	$(GO) test -tags failpoints -count=1 -timeout 10m -run 'TestAChromiumElsewhere|TestTheOperatorDoesWithoutASandbox|TestNoDatagramLeaves' ./transport/browser

storm-short: ## 20 kills of three nodes under load, and all else that may happen to them; one node on its own; the embed API on three (five minutes)
	$(GO) test -tags storm -count=1 -timeout 30m -run 'TestCluster(OfOne|Bulk|Documents|Sources|SourcesDefects|Storm|Kill|Skills)$$|TestEmbedOnThreeNodes$$' ./cmd/svc/blackbox

upgrade: ## work that the binary of an earlier commit began goes on under today's, on one node and node by node under load (ten minutes; needs the history of the repository)
	$(GO) test -tags storm -count=1 -timeout 40m -run '^TestUpgrade' ./cmd/svc/blackbox

planted: ## each law of the storms finds a planted fault, and the defects of make storm still fit the code (four minutes)
	$(GO) test -tags storm -count=1 -timeout 9m -run 'TestCluster(PlantedFaults|DefectsApply)$$' ./cmd/svc/blackbox

storm: ## the same and defects that are planted, twenty rolling restarts, and 300 kills, with Postgres and Redis lost, nodes paused and cut off (half an hour; as root in networks of their own)
	$(GO) test -tags storm -count=1 -timeout 90m -v -run 'TestCluster(OfOne|Bulk|Documents|Sources|SourcesDefects|Storm|Kill|Skills|SkillDefects|Defects|LongStorm|Rolls|RollsShort|PlantedFaults)$$|TestEmbedOnThreeNodes$$' ./cmd/svc/blackbox

sdkcheck: ## the vendors' official SDKs accept what our model wires speak
	cd bench/sdkcheck && $(GO) test ./...

webhookcheck: ## foreign verifiers accept our signatures, and the code of docs/webhooks.md and docs/triggers.md does what it says (needs node, npm, python3, curl and openssl)
	cd bench/webhookcheck && $(GO) test -count=1 ./...

widgetcheck: ## types and unit tests of the chat widget (needs node and npm)
	cd transport/embed/widget && npm ci --no-fund --no-audit --silent && npm run -s check && npm run -s test

browsercheck: build ## the chat widget as its visitors have it, in a real browser (needs node, npm and chromium-headless-shell)
	cd bench/widgetcheck && $(GO) test -count=1 -timeout 10m ./...

consoletypes: generate ## types and unit tests of the web console (needs node and npm)
	cd transport/console/app && npm run -s check && npm run -s test

consolecheck: build consoletypes ## the web console as people have it, in a real browser (needs node, npm and chromium-headless-shell)
	cd bench/consolecheck && $(GO) test -count=1 -timeout 20m ./...

conformance: ## a real third-party tool server and the client scenarios of the protocol's own conformance tool (needs node and npm)
	$(GO) test -tags npm -count=1 ./transport/mcp/conformance

openapi: build ## write docs/openapi.json from the route table
	$(BIN) openapi > docs/openapi.json

golden: openapi ## rewrite docs/openapi.json, and see that a node serves it; review it as text (the others: go test ./actors/run ./schemas/webhook -update)
	$(GO) test ./cmd/svc/blackbox -run Golden -update

bench: build ## the measured figures of bench/RESULTS.md, without those of go test (half an hour)
	cd bench && $(GO) run . -svc ../$(BIN) all

cover: ## test coverage by package
	$(GO) test -cover $(PKGS)

verify: openapi ## fail when generated files are not up to date
	git diff --exit-code -- docs/openapi.json

ci: test check ## what CI runs
