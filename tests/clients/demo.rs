//! The flash sale of `make demo`, with a smaller crowd. It checks itself: it fails if `STOCK.DEDUCT`
//! oversold, sold an order twice, or sent a buyer a reply that differs from the event stream.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of this test, in which `cargo test` puts the module too.
fn deps() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its file");
    test.parent().expect("it is in a folder").to_owned()
}

/// The example, built as `cargo test` builds it.
fn flash_sale() -> PathBuf {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--example", "flash_sale"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(built.expect("cargo runs").success());
    let profile = deps().parent().map(Path::to_owned);
    profile.expect("target/debug").join("examples/flash_sale")
}

/// How many sales are tried: on a busy machine, one process can sell everything before the other begins. Then no way of selling oversells.
const ATTEMPTS: usize = 5;

#[test]
fn the_flash_sale_oversells_by_get_and_set_and_not_by_deduct() {
    let example = flash_sale();
    let has_oversold = (0..ATTEMPTS).any(|_| sale_oversells(&example));
    assert!(
        has_oversold,
        "no sale of {ATTEMPTS} has oversold in both ways"
    );
}

/// Runs the example, and checks that `STOCK.DEDUCT` does not oversell. Returns whether both other ways of selling have oversold.
fn sale_oversells(example: &Path) -> bool {
    let module = std::env::var_os("SLUICE_MODULE");
    let module = module.unwrap_or_else(|| deps().join("libsluice.so").into());
    let output = Command::new(example)
        .env("SLUICE_MODULE", module)
        .args(["--buyers", "1500", "--processes", "2"])
        .output()
        .expect("the example runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    let row = |way: &str| -> Vec<i64> {
        let line = text.lines().find(|line| line.starts_with(way));
        let words = line.unwrap_or_default().trim_start_matches(way);
        let words = words.split_whitespace().take(5);
        words.map(|word| word.parse().expect("a number")).collect()
    };
    let [sold, oversold, resent, orders_twice, users_twice] = row("STOCK.DEDUCT")[..] else {
        panic!("{text}");
    };
    assert_eq!([sold, oversold, orders_twice, users_twice], [1000, 0, 0, 0]);
    assert!(resent > 0, "{text}");
    println!("{text}");
    let [by_get_and_set, by_local_lock] = ["GET, then SET", "local lock"].map(|way| row(way)[1]);
    by_get_and_set > 0 && by_local_lock > 0
}
