//! Measures the hit ratio of a full cache: `cache-max-bytes` compared with `allkeys-lru` and `allkeys-lfu` of the server, in the
//! same memory. Writes the table and the plot of `docs/cache.md`.
//!
//! `make hit-rates` runs it. It starts `SERVER` (default: `redis-server`) with the module `SLUICE_MODULE`.

#[path = "../../benches/chart/mod.rs"]
mod chart;
mod measure;

use std::error::Error;
use std::fmt::Write;
use std::path::Path;

use chart::{Axis, Chart, Line, Lines, Panel, Stroke, Tone, percent};
use measure::{CAPACITIES, Load, Ratios, measure};

fn main() -> Result<(), Box<dyn Error>> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let mut all = Vec::new();
    for load in Load::ALL {
        for capacity in CAPACITIES {
            let ratios = measure(load, capacity)?;
            println!("{load:?} {capacity} {ratios:?}");
            all.push((load, capacity, ratios));
        }
    }
    plot(&docs.join("cache-hit-ratio.svg"), &all)?;
    replace(&docs.join("cache.md"), &table(&all))
}

fn plot(path: &Path, all: &[(Load, f64, Ratios)]) -> std::io::Result<()> {
    let line = |load, tone, stroke, of: fn(&Ratios) -> f64| Line {
        tone,
        stroke,
        points: all
            .iter()
            .filter(|(own, ..)| *own == load)
            .map(|(_, capacity, ratios)| (*capacity, of(ratios)))
            .collect(),
    };
    let panel = |load: Load| {
        Panel::Lines(Lines {
            heading: load.title().to_owned(),
            height: 180,
            x_label: "memory as a share of all values".to_owned(),
            y_label: "hits".to_owned(),
            x_axis: Axis::Log(CAPACITIES[0], CAPACITIES[CAPACITIES.len() - 1]),
            y_axis: Axis::Linear(1.0),
            lines: vec![
                line(load, Tone::Gray, Stroke::Solid, |ratios| ratios.lru),
                line(load, Tone::Blue, Stroke::Solid, |ratios| ratios.lfu),
                line(load, Tone::Orange, Stroke::Solid, |ratios| ratios.sieve),
            ],
            ticks: [percent, percent],
            figure: None,
        })
    };
    let chart = Chart {
        title: "Hit ratio of a full cache".to_owned(),
        subtitle: "share of reads that are hits, in the same memory; higher is better".to_owned(),
        description: description(all),
        legend: vec![
            (Tone::Orange, "cache-max-bytes (SIEVE)".to_owned()),
            (Tone::Gray, "allkeys-lru".to_owned()),
            (Tone::Blue, "allkeys-lfu".to_owned()),
        ],
        panels: Load::ALL.map(panel).into(),
    };
    chart.save(path)
}

/// The smallest and the largest difference from `allkeys-lru` for each load.
fn description(all: &[(Load, f64, Ratios)]) -> String {
    let of_load = |load: Load| {
        let own = all.iter().filter(|(own, ..)| *own == load);
        let points = own.map(|(.., ratios)| (ratios.sieve - ratios.lru) * 100.0);
        let (least, most) = points
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), own| {
                (least.min(own), most.max(own))
            });
        format!("{}: {least:+.1} to {most:+.1}.", load.title())
    };
    format!(
        "Hit ratio of cache-max-bytes minus that of allkeys-lru, in percentage points. {}",
        Load::ALL.map(of_load).join(" ")
    )
}

fn table(all: &[(Load, f64, Ratios)]) -> String {
    let mut table = "| requests | memory | `cache-max-bytes` | `allkeys-lru` | `allkeys-lfu` |\n|---|---|---|---|---|\n".to_owned();
    for (load, capacity, ratios) in all {
        let [sieve, lru, lfu] = [ratios.sieve, ratios.lru, ratios.lfu].map(|share| share * 100.0);
        let (title, capacity) = (load.title(), percent(*capacity));
        let _ = writeln!(
            table,
            "| {title} | {capacity} | {sieve:.1} % | {lru:.1} % | {lfu:.1} % |"
        );
    }
    table
}

/// Puts the table between its marks.
fn replace(path: &Path, table: &str) -> Result<(), Box<dyn Error>> {
    const BEGIN: &str = "<!-- measured by make hit-rates -->\n";
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
