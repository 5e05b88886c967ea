# Sluice: build, run, test. `make` lists the targets.

SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help run build test matrix faults soak load valgrind miri asan audit bench demo filter-rates lint install clean prepare \
  prepare-tests

PORT ?= 6379
SERVER ?= redis-server
PREFIX ?= /usr/local
export SERVER

# Most tests wait for a server most of the time.
export RUST_TEST_THREADS ?= 4

# Always here, whatever CARGO_TARGET_DIR says: redis.conf names this file.
module := target/release/libsluice.so
module_dir := $(PREFIX)/lib/redis/modules
share_dir := $(PREFIX)/share/sluice

help: ## list the targets
	@echo 'make <target> [NAME=value ...]'
	@echo
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

run: ## start a server with Sluice here (PORT=6379, SERVER=redis-server)
	@if (exec 3<>/dev/tcp/127.0.0.1/$(PORT)) 2>/dev/null; then \
	  echo "Port $(PORT) is in use, so nothing was started. Choose another one: make run PORT=6380" >&2; exit 1; \
	fi
	@$(MAKE) --no-print-directory build
	@mkdir -p data
	@exec $(SERVER) redis.conf --port $(PORT)

build: prepare ## build the module, target/release/libsluice.so
	@cargo build --release --target-dir target

test: build prepare-tests ## run all tests on a real server (SERVER=/path/to/redis-server for another one)
	@SLUICE_MODULE=$(CURDIR)/$(module) cargo test

matrix: build prepare-tests ## run all tests on four servers and print a table (SERVERS='redis-8.0 valkey-9.1' TESTS='--test server')
	@SLUICE_MODULE=$(CURDIR)/$(module) TESTS='$(TESTS)' scripts/matrix $(SERVERS)

faults: build prepare-tests ## what tests do a little of, for a quarter of an hour: histories, broken files, fail-overs, moving slots
	@SLUICE_MODULE=$(CURDIR)/$(module) SLUICE_HISTORIES=2000 SLUICE_FAULTS=all SLUICE_FAILOVERS=30 SLUICE_REDLOCK_SECONDS=45 \
	  CLUSTER_SECONDS=40 cargo test --no-fail-fast --test linearizable --test corruption --test failover --test cluster \
	  -- --nocapture

bench: build ## server CPU of each command (ROWS=lock: those rows only; ARGS='--aof --rounds 9 --cycles 5000')
	@SLUICE_MODULE=$(CURDIR)/$(module) cargo bench --bench commands -- $(ROWS) $(ARGS)

demo: build ## the flash sale: GET/SET, a SETNX lock, Lua and STOCK.* sell 1000 pieces to a crowd (ARGS='--buyers 5000')
	@SLUICE_MODULE=$(CURDIR)/$(module) cargo run --release --example flash_sale -- $(ARGS)

filter-rates: ## what filters err and take, measured: writes the table and the plots of docs/filters.md
	@cargo run --release --example filter_rates

# COMMANDS, CLIENTS, SECONDS and RATE as the heads of tests/soak/main.rs and tests/load/main.rs have them.
soak: COMMANDS ?= 10000000
soak: build ## commands of all kinds, ten million, and no byte more in use afterwards (COMMANDS=10000000, SEED=1)
	@SLUICE_MODULE=$(CURDIR)/$(module) COMMANDS=$(COMMANDS) cargo test --quiet --test soak -- --nocapture

load: CLIENTS ?= 10000
load: SECONDS ?= 60
load: RATE ?= 10000
load: build ## ten thousand clients, half of them waiting: latencies and memory (CLIENTS=10000 SECONDS=60 RATE=10000)
	@SLUICE_MODULE=$(CURDIR)/$(module) CLIENTS=$(CLIENTS) SECONDS=$(SECONDS) RATE=$(RATE) \
	  cargo test --quiet --test load -- --nocapture

valgrind: prepare ## the soak and the core of the suite on a server under memcheck (TESTS='lock::commands', COMMANDS=200000)
	@scripts/valgrind

miri: ## the pure state machines in Miri: undefined behaviour (TESTS=lock::model)
	@scripts/miri $(TESTS)

asan: ## the pure state machines under AddressSanitizer (TESTS=deadlock)
	@scripts/asan

audit: ## licences and sources of all crates, and advisories where cargo-deny is installed
	@scripts/audit

lint: ## formatting and clippy, warnings are errors
	@cargo fmt --check
	@cargo clippy --all-targets -- -D warnings

# Not `build`: after `make build`, `sudo make install` needs no cargo.
$(module):
	@$(MAKE) --no-print-directory build

install: $(module) ## install the module and an example configuration (PREFIX=/usr/local, DESTDIR=)
	@install -D -m 755 $(module) $(DESTDIR)$(module_dir)/libsluice.so
	@mkdir -p $(DESTDIR)$(share_dir)
	@sed -e 's|^loadmodule .*|loadmodule $(module_dir)/libsluice.so|' -e 's|^dir .*|dir /var/lib/redis|' redis.conf \
	  > $(DESTDIR)$(share_dir)/redis.conf
	@echo 'Installed $(DESTDIR)$(module_dir)/libsluice.so and $(DESTDIR)$(share_dir)/redis.conf'

clean: ## remove what was built (the dataset of `make run`, in data/, stays)
	@cargo clean

prepare: ## install what is missing to build and run (Debian and Ubuntu)
	@scripts/prepare

prepare-tests: ## make .venv with redis-py, for the Python examples of the documentation
	@scripts/prepare-python
