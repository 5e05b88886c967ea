//! Small libraries in C that a server loads: a clock of its own, a module to compare with.

use std::path::Path;
use std::process::Command;

/// Compiles a library of one source, which stays beside it.
pub fn compile(source: &str, library: &Path) {
    let file = library.with_extension("c");
    std::fs::write(&file, source).expect("cannot write the library's source");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"])
        .arg("-o")
        .args([library, &file])
        .arg("-ldl")
        .output()
        .expect("cannot run cc, which links Rust programs too");
    let complaints = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{complaints}");
}
