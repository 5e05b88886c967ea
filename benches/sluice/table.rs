//! What is printed.

use crate::measure::Cost;
use crate::rows::FIGURES;

/// A row that has been measured.
pub(crate) struct Measured {
    pub(crate) group: &'static str,
    pub(crate) name: &'static str,
    pub(crate) is_baseline: bool,
    pub(crate) cost: Cost,
}

/// All rows, each next to the baseline of its group.
pub(crate) fn print(rows: &[Measured], pipeline: u64) {
    println!("Server CPU of one cycle in microseconds, and as a multiple of the group's first row");
    let mut baseline = Cost::default();
    for row in rows {
        if row.is_baseline {
            baseline = row.cost;
            println!();
            print_header(row.group, pipeline);
        }
        print_row(row, baseline);
    }
}

fn print_header(group: &str, pipeline: u64) {
    let pipelined = format!("pipeline {pipeline}");
    println!(
        "{group:<44}{pipelined:>12}{:>8}{:>14}{:>8}",
        "ratio", "one by one", "ratio"
    );
}

fn print_row(row: &Measured, baseline: Cost) {
    println!(
        "  {:<42}{:>12}{:>8}{:>14}{:>8}",
        row.name,
        number(row.cost.pipelined),
        number(ratio(row.cost.pipelined, baseline.pipelined)),
        number(row.cost.one_by_one),
        number(ratio(row.cost.one_by_one, baseline.one_by_one)),
    );
}

/// The ratios that the project is asked about.
pub(crate) fn print_figures(rows: &[Measured], pipeline: u64) {
    let cost_of = |name| rows.iter().find(|row| row.name == name).map(|row| row.cost);
    let mut heading = Some("Figures");
    for figure in FIGURES {
        let (Some(row), Some(over)) = (cost_of(figure.row), cost_of(figure.over)) else {
            continue;
        };
        if let Some(heading) = heading.take() {
            let pipelined = format!("pipeline {pipeline}");
            println!("\n{heading:<86}{pipelined:>12}{:>14}", "one by one");
        }
        println!(
            "  {:<84}{:>12}{:>14}",
            format!("{} / {}", figure.row, figure.over),
            number(ratio(row.pipelined, over.pipelined)),
            number(ratio(row.one_by_one, over.one_by_one)),
        );
    }
}

fn ratio(cost: Option<f64>, baseline: Option<f64>) -> Option<f64> {
    Some(cost? / baseline?)
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.2}"))
}
