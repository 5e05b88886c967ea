# Sluice: build, run, test, pack. `make` lists the targets; a line with `#:` begins a group of them.

SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help deps run build test matrix faults soak load monitoring-test hints-test valgrind miri asan audit bench instructions demo shop \
  conformance shop-load filter-rates hit-rates lint install uninstall clean prepare prepare-tests prepare-shop prepare-valgrind dist \
  dist-node dist-python dist-rust dist-test prepare-cross msrv deb

PORT ?= 6379
SERVER ?= redis-server
PREFIX ?= /usr/local
PLATFORMS ?= x86_64 aarch64 x86_64-musl aarch64-musl
export SERVER PREFIX DESTDIR

# Most tests mostly wait for a server.
export RUST_TEST_THREADS ?= 8

# The same for every CARGO_TARGET_DIR: redis.conf names this file.
module := target/release/libsluice.so

help:
	@echo 'make <target> [NAME=value ...]'
	@sed -nE -e 's/^#: (.*)/\n\1/p' -e 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

#: Use it

deps: ## print what is missing for the build, `make run` and `make test`, and install it (Debian and Ubuntu: apt)
	@scripts/deps

# Each port has its own files in data/: two servers that share files lose writes.
run: ## start a server with Sluice here (PORT=6379, SERVER=redis-server)
	@if (exec 3<>/dev/tcp/127.0.0.1/$(PORT)) 2>/dev/null; then \
	  echo "Port $(PORT) is in use, so nothing was started. Choose another one: make run PORT=6380" >&2; exit 1; \
	fi
	@$(MAKE) --no-print-directory build
	@mkdir -p data
	@exec $(SERVER) redis.conf --port $(PORT) --dbfilename $(PORT).rdb --appenddirname $(PORT)

build: prepare ## build the module, target/release/libsluice.so
	@cargo build --release --target-dir target

demo: build ## the flash sale: GET/SET, a local lock, a SETNX lock, Lua and STOCK.* sell 1000 items (ARGS="--buyers 5000")
	@SLUICE_MODULE='$(CURDIR)/$(module)' cargo run --release --example flash_sale -- $(ARGS)

shop: build prepare-shop ## a shop with a flash sale on MariaDB and Redis, with buttons that break it (ARGS="--port 8080")
	@SLUICE_MODULE='$(CURDIR)/$(module)' .venv/bin/python -B examples/shop/run.py $(ARGS)

shop-load: build prepare-shop ## thousands of shoppers in this shop, while its programs die (ARGS="--shoppers 20000")
	@SLUICE_MODULE='$(CURDIR)/$(module)' .venv/bin/python -B examples/shop/load.py $(ARGS)

# Not `build`: after `make build`, `sudo make install` needs no cargo.
$(module):
	@$(MAKE) --no-print-directory build

install: $(module) ## install the module and an example configuration (PREFIX=/usr/local, DESTDIR=)
	@MODULE=$(module) CONF=redis.conf scripts/install.sh

uninstall: ## remove the files of `make install` (the same PREFIX and DESTDIR)
	@scripts/install.sh uninstall

#: Develop it

test: build prepare-tests ## run all tests on a real server (SERVER=/path/to/redis-server for another one)
	@SLUICE_MODULE='$(CURDIR)/$(module)' scripts/test

matrix: build prepare-tests ## run all tests on nine servers and print a table (SERVERS='redis-8.6 valkey-9.1' TESTS='--test server')
	@SLUICE_MODULE='$(CURDIR)/$(module)' TESTS='$(TESTS)' scripts/matrix $(SERVERS)

faults: build prepare-tests ## the long form of some tests, a quarter of an hour: histories, damaged files, failovers, moving slots
	@SLUICE_MODULE='$(CURDIR)/$(module)' SLUICE_HISTORIES=2000 SLUICE_FAULTS=all SLUICE_FAILOVERS=30 SLUICE_REDLOCK_SECONDS=45 \
	  CLUSTER_SECONDS=40 cargo test --no-fail-fast --test linearizable --test corruption --test failover --test cluster \
	  -- --nocapture
	@SLUICE_MODULE='$(CURDIR)/$(module)' SLUICE_NEAR_STEPS=100000 cargo test --test cache near:: -- --nocapture

conformance: build prepare-tests ## each client on Redis 7.0 and Valkey 9: lost replies, failovers; writes the table of docs/clients.md (ARGS='--client python')
	@scripts/prepare-servers valkey-9.1
	@$(if $(filter go,$(or $(ARGS),go)),scripts/prepare-go)
	@$(if $(filter java,$(or $(ARGS),java)),scripts/prepare-java)
	@cargo build --release --package sluice-client --features cluster,sentinel,tokio-comp --example conformance
	@.venv/bin/python clients/conformance/run --module '$(module)' --server redis-server --server .servers/valkey-9.1 \
	  $(or $(ARGS),--table)

# Everything, in about ten minutes, unless told otherwise: make bench ARGS=--help.
bench: build prepare-valgrind ## measure everything and write docs/benchmarks.md (ROWS=lock: print those rows only; ARGS='--aof --rounds 9')
	@SLUICE_MODULE='$(CURDIR)/$(module)' cargo bench --bench sluice -- $(ROWS) $(ARGS)

instructions: build prepare-valgrind ## count the instructions of hot commands and of their floor rows (ROWS=lock)
	@SLUICE_MODULE='$(CURDIR)/$(module)' cargo bench --bench sluice -- --parts instructions $(ROWS) $(ARGS)

filter-rates: ## measure false positives and memory of filters: writes the table and the plots of docs/filters.md
	@cargo run --release --example filter_rates

hit-rates: build ## measure the hit ratio of a full cache: writes the table and the plot of docs/cache.md
	@SLUICE_MODULE='$(CURDIR)/$(module)' cargo run --release --example hit_rates

# COMMANDS, CLIENTS, SECONDS and RATE as the heads of tests/soak/main.rs and tests/load/main.rs have them.
soak: COMMANDS ?= 10000000
soak: build ## ten million commands of all kinds; fails if memory remains in use (COMMANDS=10000000, SEED=1)
	@SLUICE_MODULE='$(CURDIR)/$(module)' COMMANDS=$(COMMANDS) cargo test --quiet --test soak -- --nocapture

load: CLIENTS ?= 10000
load: SECONDS ?= 60
load: RATE ?= 10000
load: build ## ten thousand clients, half of them waiting: latencies and memory (CLIENTS=10000 SECONDS=60 RATE=10000)
	@SLUICE_MODULE='$(CURDIR)/$(module)' CLIENTS=$(CLIENTS) SECONDS=$(SECONDS) RATE=$(RATE) \
	  cargo test --quiet --test load -- --nocapture

monitoring-test: build ## monitoring/ with promtool, Prometheus and redis_exporter (of PATH, or unpacked from Debian's packages)
	@SLUICE_MODULE='$(CURDIR)/$(module)' scripts/monitoring-test

hints-test: build ## the hints of redis-cli for all commands (REDIS_CLI=/path/to/redis-cli, 7.2 or later; default: a valkey-cli in .servers)
	@$(if $(REDIS_CLI),,scripts/prepare-servers valkey-cli)
	@SLUICE_MODULE='$(CURDIR)/$(module)' REDIS_CLI='$(or $(REDIS_CLI),.servers/valkey-cli)' scripts/hints-test

valgrind: prepare prepare-valgrind ## the soak and the core of the suite on a server under memcheck (TESTS='lock::commands', COMMANDS=200000)
	@scripts/valgrind

miri: ## the pure state machines in Miri: undefined behavior (TESTS=lock::model)
	@scripts/miri $(TESTS)

asan: ## the pure state machines under AddressSanitizer (TESTS=deadlock)
	@scripts/asan

audit: ## licenses and sources of all crates, and advisories if cargo-deny is installed
	@scripts/audit

msrv: ## build the module and clients/rust, each with the oldest version of Rust that it supports (rustup)
	@scripts/msrv

lint: ## formatting, clippy and the words of the documentation; warnings are errors
	@cargo fmt --check
	@cargo clippy --workspace --all-targets -- -D warnings
	@scripts/prose

clean: ## remove the build (the datasets of `make run`, in data/, stay)
	@cargo clean

#: Release it

dist: prepare prepare-cross dist-python dist-node dist-rust ## packages for all platforms, client packages and checksums, in target/dist (PLATFORMS=aarch64)
	@scripts/package all $(PLATFORMS)

dist-test: prepare ## the core of the suite with each tarball of `make dist`, for arm64 under qemu (PLATFORMS=aarch64 TESTS='--test lock')
	@TESTS='$(TESTS)' scripts/dist-test $(PLATFORMS)

dist-node: ## the Node package clients/node, in target/dist (npm pack)
	@scripts/prepare-node
	@mkdir -p target/dist
	@cd clients/node && npm pack --silent --pack-destination ../../target/dist

dist-rust: ## the crate clients/rust, in target/dist, after a build of its files alone (cargo package)
	@mkdir -p target/dist
	@cargo package --quiet --allow-dirty -p sluice-client --target-dir target
	@cp target/package/sluice-client-*.crate target/dist

deb: prepare ## a Debian package, and its checksum, in target/dist (installs cargo-deb)
	@scripts/package deb

dist-python: ## a wheel and an sdist of clients/python in target/dist, after mypy --strict
	@scripts/prepare-python
	@scripts/package-python

#: Parts of other targets

prepare: ## print the missing packages of the build and `make run`, and install them
	@scripts/prepare

prepare-tests: ## install Python and Node packages into this folder, and MariaDB and Chromium, for the tests of the clients
	@scripts/prepare-python
	@scripts/prepare-node
	@scripts/prepare-shop --browser

prepare-shop: ## print the missing packages of `make shop`, and install them
	@scripts/prepare-python
	@scripts/prepare-shop

prepare-cross: ## install zig, cargo-zigbuild and the targets of rustc, for `make dist`
	@scripts/prepare-cross $(PLATFORMS)

prepare-valgrind: ## install valgrind, if it is missing
	@scripts/prepare-valgrind
