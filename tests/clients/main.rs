//! What `examples/clients` and docs/clients.md promise, on real servers: locks exclude, holders learn that they have lost
//! one, what is repeated happens once, and stale fences are refused.
//!
//! The Python and the Node examples are tried by programs of their own languages beside this file. `filters.rs` tries the
//! helpers for filters that client libraries have, `python_package.rs` runs the tests of clients/python, `rust.rs` tries
//! clients/rust, and `demo.rs` the flash sale of `make demo`.

mod conformance;
mod demo;
mod filters;
mod lossy;
mod python_package;
mod rust;
mod rust_locks;
mod rust_near;
mod rust_options;
#[path = "../support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use lossy::Lossy;
use support::cluster::{self, two_nodes};
use support::{SOON, Server, eventually, wait_for_replica_sync};

/// Of these, the reply to each request is lost until it is asked again.
const LOST: [&str; 2] = ["LOCK.ACQUIRE", "STOCK.DEDUCT"];

/// In seconds: many times what a program takes.
const PATIENCE: &str = "60";

/// In seconds: the same for a file of the tests of a package.
const PACKAGE_PATIENCE: &str = "300";

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn python() -> PathBuf {
    let python = folder().join(".venv/bin/python");
    assert!(
        python.exists(),
        "redis-py is missing: run `make prepare-tests`"
    );
    python
}

fn node() -> PathBuf {
    let redis = folder().join("examples/clients/node/node_modules/redis");
    assert!(
        redis.exists(),
        "node-redis is missing: run `make prepare-tests`"
    );
    "node".into()
}

/// Runs a program of `tests/clients`, which prints the name of each of its tests when it has passed; all must have.
#[track_caller]
fn run(interpreter: &Path, program: &str, arguments: &[String]) {
    let program = folder().join("tests/clients").join(program);
    let output = Command::new("timeout") // so that what hangs tells how far it came
        .arg(PATIENCE)
        .arg(interpreter)
        .arg(&program)
        .args(arguments)
        .env("PYTHONPATH", folder().join("clients/python/src"))
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", interpreter.display()));
    let passed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "passed:\n{passed}\n{errors}");
    // A program that has done nothing would succeed as well.
    let source = std::fs::read_to_string(&program).expect("it has just run");
    let (_, list) = source.split_once("TESTS = [").expect("the list of tests");
    let (list, _) = list.split_once(']').expect("its end");
    let tests: Vec<_> = list
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    assert!(!tests.is_empty());
    assert_eq!(passed.lines().collect::<Vec<_>>(), tests);
}

/// Runs such a program on a server and behind a network that loses replies.
#[track_caller]
fn run_alone(interpreter: &Path, program: &str, protocol: &str) {
    let server = Server::start();
    let lossy = Lossy::before(server.port(), &LOST);
    let ports = [server.port(), lossy.port()].map(|port| port.to_string());
    run(
        interpreter,
        program,
        &[&ports[..], &[protocol.into()]].concat(),
    );
}

/// The folder of the Node package, with the libraries for its tests.
fn node_package() -> PathBuf {
    let home = folder().join("clients/node");
    let is_there = home.join("node_modules/ioredis").exists();
    assert!(is_there, "ioredis is missing: run `make prepare-tests`");
    home
}

/// Runs one file of the tests of `clients/node` with these variables of the environment.
#[track_caller]
fn run_node_package(file: &str, variables: &[(&str, &str)]) {
    let home = node_package();
    let output = Command::new("timeout")
        .arg(PACKAGE_PATIENCE)
        .args(["node", "--test", "--test-reporter=tap"])
        .arg(format!("test/{file}.test.js"))
        .envs(variables.iter().copied())
        .current_dir(home)
        .output()
        .expect("node runs");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}");
    let count = |what: &str| {
        let line = report.lines().find_map(|line| line.strip_prefix(what));
        line.and_then(|number| number.trim().parse::<u32>().ok())
            .unwrap_or_else(|| panic!("no {what} in\n{report}"))
    };
    let not_run = ["# skipped ", "# todo ", "# cancelled "].map(count);
    assert!(count("# pass ") >= 3 && not_run == [0; 3], "{report}");
}

/// Runs such a file on a server of its own.
#[track_caller]
fn run_node_package_alone(file: &str, libraries: &str) {
    let server = Server::start();
    let port = server.port().to_string();
    run_node_package(
        file,
        &[("SLUICE_PORT", &port), ("SLUICE_LIBRARIES", libraries)],
    );
}

#[test]
fn the_node_package_locks_with_node_redis() {
    run_node_package_alone("locks", "node-redis");
}

#[test]
fn the_node_package_locks_with_ioredis_and_iovalkey() {
    run_node_package_alone("locks", "io");
}

#[test]
fn the_families_of_the_node_package_hold_with_node_redis() {
    run_node_package_alone("families", "node-redis");
}

#[test]
fn the_families_of_the_node_package_hold_with_ioredis_and_iovalkey() {
    run_node_package_alone("families", "io");
}

#[test]
fn the_node_package_repeats_only_what_is_safe_to_repeat() {
    run_node_package_alone("repeats", "");
}

#[test]
fn the_node_package_holds_in_a_cluster() {
    let (one, _other) = two_nodes(&cluster::node());
    let port = one.port().to_string();
    let variables = [("SLUICE_PORT", &*port), ("SLUICE_CLUSTER_PORT", &*port)];
    run_node_package("cluster", &variables);
}

#[test]
fn the_node_package_finds_the_master_behind_sentinel() {
    let (master, replica) = (Server::start(), Server::start());
    replica.replica_of(&master);
    wait_for_replica_sync(&master, &replica);
    let sentinel = Server::builder().sentinel().start();
    let port = master.port().to_string();
    sentinel.command(["SENTINEL", "MONITOR", "shop", "127.0.0.1", &port, "1"]);
    eventually(SOON, || {
        let about = sentinel.command(["SENTINEL", "MASTER", "shop"]);
        about.field("num-slaves") == &"1"
    });
    let port = sentinel.port().to_string();
    let variables = [
        ("SLUICE_SENTINEL_PORT", &*port),
        ("SLUICE_MASTER_NAME", "shop"),
    ];
    run_node_package("sentinel", &variables);
}

#[test]
fn the_near_cache_of_the_node_package_serves_nothing_old() {
    run_node_package_alone("near", "");
}

#[test]
fn the_node_drop_in_for_redlock_holds() {
    let servers = [(); 3].map(|()| Server::start());
    let ports = servers.each_ref().map(|server| server.port().to_string());
    let variables = [
        ("SLUICE_PORT", &*ports[0]),
        ("SLUICE_PORTS", &ports.join(",")),
        ("SLUICE_LIBRARIES", "ioredis"),
    ];
    run_node_package("redlock", &variables);
}

#[test]
fn the_node_package_installs_and_its_readme_runs() {
    run_node_package_alone("package", "");
}

#[test]
fn the_node_package_has_the_version_of_the_module() {
    let version = format!("\"version\": \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(include_str!("../../clients/node/package.json").contains(&version));
}

#[test]
fn the_guide_shows_the_examples_word_for_word() {
    let guide = include_str!("../../docs/clients.md");
    let mut shown = 0;
    for part in guide.split("From [`").skip(1) {
        let (file, rest) = part.split_once('`').expect("the name of a file");
        let (_, block) = rest.split_once("\n```").expect("a block of code");
        let (_, block) = block.split_once('\n').expect("its language");
        let (block, _) = block.split_once("\n```").expect("its end");
        let source = std::fs::read_to_string(folder().join(file));
        let source = source.unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(source.contains(block), "{file} has no such lines:\n{block}");
        shown += 1;
    }
    assert!(shown > 20, "{shown}");
}

#[test]
fn the_example_of_the_python_package_holds() {
    run_alone(&python(), "python.py", "3");
}

#[test]
fn the_example_of_the_node_package_holds_in_resp2() {
    run_alone(&node(), "node.mjs", "2");
}

#[test]
fn the_example_of_the_node_package_holds_in_resp3() {
    run_alone(&node(), "node.mjs", "3");
}

#[test]
fn the_node_examples_of_the_reference_of_caching_hold() {
    let server = Server::start();
    run(&node(), "cache.mjs", &[server.port().to_string()]);
}

#[test]
fn the_node_example_of_the_reference_of_idempotency_keys_holds() {
    let server = Server::start();
    run(&node(), "once.mjs", &[server.port().to_string()]);
}
