//! examples/shop, with MariaDB, two servers with the module, and a browser. A crowd of shoppers loses replies while the programs of
//! the shop die; nothing may be oversold, lost, ordered twice or stale. `page.py` tries the page.

use std::path::{Path, PathBuf};
use std::process::Command;

/// In seconds: many times what a program takes.
const PATIENCE: &str = "900";

/// Runs a Python program to its end, and returns its output.
#[track_caller]
fn run(program: &str, arguments: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join(".venv/bin/python");
    assert!(
        python.exists(),
        "the shop's packages are missing: run `make prepare-tests`"
    );
    let output = Command::new("timeout") // so that a program that hangs shows how far it came
        .args(["--signal=INT", "--kill-after=60", PATIENCE])
        .arg(python)
        .args(["-B", program])
        .args(arguments)
        .current_dir(root)
        .env("SLUICE_MODULE", module())
        .output()
        .expect("timeout starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    text
}

/// The module that `make test` names, or the one that `cargo test` builds.
fn module() -> PathBuf {
    let built = || {
        let test = std::env::current_exe().expect("a test knows its file");
        test.with_file_name("libsluice.so")
    };
    std::env::var_os("SLUICE_MODULE").map_or_else(built, PathBuf::from)
}

#[test]
fn a_crowd_buys_while_the_programs_of_the_shop_die() {
    let report = run("examples/shop/load.py", &["--shoppers", "300"]);
    let number = |name: &str| -> u64 {
        let line = report
            .lines()
            .find_map(|line| line.trim().strip_prefix(name));
        let number = line.and_then(|rest| rest.split_whitespace().next());
        let number = number.and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("no number of {name}:\n{report}"))
    };
    for none in [
        "oversold",
        "double orders",
        "lost orders",
        "wrong states",
        "books that differ",
        "wrong payments",
        "users over their limit",
        "jobs with an old fence",
        "late jobs accepted",
        "stale reads",
    ] {
        assert_eq!(number(none), 0, "{none}\n{report}");
    }
    assert!(number("sold  ") > 0, "{report}");
    for killed in [
        "order worker killed",
        "MariaDB killed",
        "Redis (orders) killed",
    ] {
        assert!(report.contains(killed), "{report}");
    }
}

#[test]
fn a_wrong_option_is_explained() {
    for (program, option, value) in [("run", "--port", "80000"), ("load", "--parallel", "0")] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let output = Command::new(root.join(".venv/bin/python"))
            .args(["-B", &format!("examples/shop/{program}.py"), option, value])
            .current_dir(root)
            .output()
            .expect("python starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{errors}");
        assert!(errors.contains(&format!("argument {option}: ")), "{errors}");
    }
}

#[test]
fn the_page_holds_in_a_browser() {
    let passed = run("tests/shop/page.py", &[]);
    let source = include_str!("page.py");
    let (_, list) = source.split_once("TESTS = [").expect("the list of tests");
    let (list, _) = list.split_once(']').expect("its end");
    let names = list
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let ends = [
        "ctrl_c_ends_everything",
        "a_closed_terminal_ends_everything",
        "a_terminal_that_closes_after_ctrl_c_ends_everything",
    ];
    let expected: Vec<_> = names.chain(ends).collect();
    assert_eq!(passed.lines().collect::<Vec<_>>(), expected);
}
