//! Measures the false positive rate and the memory of filters: fills Bloom and cuckoo filters, queries millions of items that
//! were never added, and writes the table and the plots of `docs/filters.md`.
//!
//! `make filter-rates` runs it. It needs no server: the filters are the module's own.

#[path = "../../benches/chart/mod.rs"]
mod chart;
mod measure;
mod plot;

use std::error::Error;
use std::fmt::Write;
use std::path::Path;

use measure::{Measured, bloom, cuckoo, growth};

const RATES: [f64; 5] = [0.1, 0.01, 0.001, 0.0001, 0.00001];

/// A filter grows to so many times its reserved capacity.
const GROWTH: u64 = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let blooms: Vec<_> = RATES.iter().map(|rate| (*rate, bloom(*rate))).collect();
    let cuckoos: Vec<_> = [8, 16, 32]
        .iter()
        .map(|bits| (*bits, cuckoo(*bits)))
        .collect();
    let grown: Vec<_> = [0.01, 0.001, 0.0001]
        .iter()
        .map(|rate| (*rate, growth(*rate, GROWTH)))
        .collect();
    plot::bits(&docs.join("filters-bits.svg"), &blooms, &cuckoos)?;
    plot::error(&docs.join("filters-error.svg"), &grown)?;
    replace(&docs.join("filters.md"), &table(&blooms, &cuckoos))?;
    Ok(())
}

fn table(blooms: &[(f64, [Measured; 2])], cuckoos: &[(u64, Measured)]) -> String {
    let mut table = String::new();
    let percent = |rate: f64| format!("{} %", significant(rate * 100.0));
    let mut line = |cells: [String; 5]| {
        let _ = writeln!(table, "| {} |", cells.join(" | "));
    };
    line(
        [
            "filter",
            "false positives at capacity",
            "bits per item",
            "false positives after growing 200 times",
            "bits per item then",
        ]
        .map(str::to_owned),
    );
    line(["---", "---", "---", "---", "---"].map(str::to_owned));
    for (rate, [full, grown]) in blooms {
        line([
            format!("Bloom, {}", percent(*rate)),
            percent(full.rate),
            format!("{:.1}", full.bits),
            percent(grown.rate),
            format!("{:.1}", grown.bits),
        ]);
    }
    for (bits, full) in cuckoos {
        line([
            format!("cuckoo, `BITS {bits}`"),
            percent(full.rate),
            format!("{:.1}", full.bits),
            String::new(),
            String::new(),
        ]);
    }
    table
}

/// A number with two significant digits.
fn significant(number: f64) -> String {
    if number == 0.0 {
        return "0".into();
    }
    let digits = (1 - number.log10().floor() as i32).max(0) as usize;
    let text = format!("{number:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Puts the table between its marks.
fn replace(path: &Path, table: &str) -> Result<(), Box<dyn Error>> {
    const BEGIN: &str = "<!-- measured by make filter-rates -->\n";
    const END: &str = "<!-- end -->";
    let text = std::fs::read_to_string(path)?;
    let (before, rest) = text
        .split_once(BEGIN)
        .ok_or("the page has no mark for the table")?;
    let (_, after) = rest
        .split_once(END)
        .ok_or("the page has no mark after the table")?;
    std::fs::write(path, format!("{before}{BEGIN}{table}{END}{after}"))?;
    Ok(())
}
