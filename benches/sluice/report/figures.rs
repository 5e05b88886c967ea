//! The ratios of a family and their design targets.

use super::code;
use super::table::Align::{Left, Right};
use super::table::Table;
use super::verdict::verdict;
use crate::cost::Measured;
use crate::row::Family;

/// The figures of a family whose rows have been measured.
pub(super) fn table(family: &Family, rows: &[&Measured]) -> Table {
    let mut table = Table::new([
        ("what", Left),
        ("over", Left),
        ("measured", Right),
        ("target", Right),
        ("", Left),
    ]);
    for figure in family.figures {
        if let Some(measured) = measured(rows, figure.row, figure.over) {
            table.row([
                code(figure.row),
                code(figure.over),
                format!("{measured:.2}"),
                figure.bar.map_or_else(String::new, |bar| bar.to_string()),
                verdict(measured, figure.bar, figure.reason),
            ]);
        }
    }
    table
}

/// The ratio of two rows: in pipelines, or one by one if a row has no pipelines.
pub(super) fn measured(rows: &[&Measured], row: &str, over: &str) -> Option<f64> {
    let cost = |name| {
        let found = rows.iter().find(|measured| measured.row.name == name)?;
        found.cost.pipelined.or(found.cost.one_by_one)
    };
    Some(cost(row)? / cost(over)?)
}
