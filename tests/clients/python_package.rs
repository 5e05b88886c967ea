//! The Python package, `clients/python`: its own tests with pytest, on a server and on a cluster of two nodes, its types and its
//! version.

use std::path::Path;
use std::process::Command;

use super::support::Server;
use super::support::cluster::{self, two_nodes};
use super::{folder, python};

/// In seconds: many times the usual duration.
const PATIENCE: &str = "1800";

/// Runs the tests of the package with a client library and a protocol.
#[track_caller]
fn run_package(client: &str, protocol: &str) {
    let server = Server::start();
    let (node, _other) = two_nodes(&cluster::node());
    let output = Command::new("timeout")
        .args(["-s", "ABRT", PATIENCE])
        .arg(python())
        .args(["-B", "-X", "faulthandler", "-m", "pytest", "-q"])
        .current_dir(folder().join("clients/python"))
        .env("PORT", server.port().to_string())
        .env("CLUSTER", node.port().to_string())
        .env("CLIENT", client)
        .env("PROTOCOL", protocol)
        .output()
        .expect("timeout runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    assert!(!text.contains("skipped"), "{text}");
}

#[test]
fn the_python_package_holds_with_redis_py_in_resp2() {
    run_package("redis", "2");
}

#[test]
fn the_python_package_holds_with_redis_py_in_resp3() {
    run_package("redis", "3");
}

#[test]
fn the_python_package_holds_with_valkey_py_in_resp2() {
    run_package("valkey", "2");
}

#[test]
fn the_python_package_holds_with_valkey_py_in_resp3() {
    run_package("valkey", "3");
}

#[test]
fn the_types_of_the_python_package_are_complete() {
    // Beside the package: two runs of the tests share no folder.
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mypy");
    let output = Command::new(python())
        .args(["-B", "-m", "mypy", "--strict", "--cache-dir"])
        .arg(cache)
        .current_dir(folder().join("clients/python"))
        .output()
        .expect("Python runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    assert!(text.starts_with("Success: no issues found in "), "{text}");
}

#[test]
fn the_python_package_and_the_rust_crate_have_the_version_of_the_module() {
    let line = format!("\nversion = \"{}\"\n", env!("CARGO_PKG_VERSION"));
    for (section, file) in [
        (
            "[project]",
            include_str!("../../clients/python/pyproject.toml"),
        ),
        ("[package]", include_str!("../../clients/rust/Cargo.toml")),
    ] {
        let (_, rest) = file.split_once(section).expect("the section");
        let rest = rest.split("\n[").next().expect("its lines");
        assert!(rest.contains(&line), "{section} has no{line}");
    }
}
