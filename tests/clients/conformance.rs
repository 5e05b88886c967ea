//! The core of the conformance suite, `clients/conformance`: lost replies and killed connections, with a client in each language.
//! `make conformance` runs all of it.

use std::process::Command;

use super::support::{module_path, program};
use super::{folder, node_package, python};

/// In seconds: many times the usual duration.
const PATIENCE: &str = "240";

/// Runs the core with a client and a protocol.
#[track_caller]
fn run_core(client: &str, protocol: &str) {
    let output = Command::new("timeout")
        .arg(PATIENCE)
        .arg(python())
        .arg(folder().join("clients/conformance/run"))
        .args(["--core", "--client", client, "--protocol", protocol])
        .arg("--module")
        .arg(module_path())
        .arg("--server")
        .arg(program())
        .output()
        .expect("timeout runs");
    let report = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}\n{errors}");
    assert!(
        report.contains(" 0 failed, 0 not applicable"),
        "{report}\n{errors}"
    );
}

#[test]
fn the_python_package_passes_the_core_of_the_conformance_suite() {
    run_core("python", "3");
}

#[test]
fn the_node_package_passes_the_core_of_the_conformance_suite() {
    node_package();
    run_core("node-ioredis", "2");
}
