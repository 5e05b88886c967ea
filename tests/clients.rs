//! What `examples/clients` and docs/clients.md promise, on real servers: locks exclude, holders learn that they have lost
//! one, what is repeated happens once, and stale fences are refused.
//!
//! The Python and the Node examples are tried by programs of their own languages, in `tests/clients/`.

mod cluster_support;
mod support;

#[path = "clients/lossy.rs"]
mod lossy;

#[path = "../examples/clients/rust/lock.rs"]
mod lock;

#[path = "../examples/clients/rust/shop.rs"]
mod shop;

use std::path::{Path, PathBuf};
use std::process::Command;

use lossy::Lossy;
use support::Server;

/// Of these, the reply to each request is lost until it is asked again.
const LOST: [&str; 2] = ["LOCK.ACQUIRE", "STOCK.DEDUCT"];

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn python() -> PathBuf {
    let python = folder().join(".venv/bin/python");
    assert!(python.exists(), "redis-py is missing: run `make prepare-tests`");
    python
}

fn node() -> PathBuf {
    let redis = folder().join("examples/clients/node/node_modules/redis");
    assert!(redis.exists(), "node-redis is missing: run `make prepare-tests`");
    "node".into()
}

/// Runs a program of `tests/clients`, which prints the name of each of its tests when it has passed; all must have.
#[track_caller]
fn run(interpreter: &Path, program: &str, arguments: &[String]) {
    let program = folder().join("tests/clients").join(program);
    let output = Command::new(interpreter)
        .arg(&program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", interpreter.display()));
    let passed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "passed:\n{passed}\n{errors}");
    // A program that has done nothing would succeed as well.
    let source = std::fs::read_to_string(&program).expect("it has just run");
    let (_, list) = source.split_once("TESTS = [").expect("the list of tests");
    let (list, _) = list.split_once(']').expect("its end");
    let tests: Vec<_> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    assert!(!tests.is_empty());
    assert_eq!(passed.lines().collect::<Vec<_>>(), tests);
}

/// Runs such a program on a server and behind a network that loses replies.
#[track_caller]
fn run_alone(interpreter: &Path, program: &str, protocol: &str) {
    let server = Server::start();
    let lossy = Lossy::before(server.port(), &LOST);
    let ports = [server.port(), lossy.port()].map(|port| port.to_string());
    run(interpreter, program, &[&ports[..], &[protocol.into()]].concat());
}

#[test]
fn the_examples_of_redis_py_hold_in_resp2() {
    run_alone(&python(), "python.py", "2");
}

#[test]
fn the_examples_of_redis_py_hold_in_resp3() {
    run_alone(&python(), "python.py", "3");
}
