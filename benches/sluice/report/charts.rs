//! Which charts there are.

use std::path::Path;

use super::bars::{Bar, Bars, Section};
use super::canvas::Drawn;
use super::{Results, curves, figures, spreads};
use crate::cost::Measured;
use crate::families::FAMILIES;
use crate::row::{Family, Way};

/// All charts that have something to show.
pub(super) fn draw(folder: &Path, results: &Results) -> Drawn {
    for family in FAMILIES {
        let rows = results.rows_of(family);
        if has_chart(family, &rows) {
            draw_family(&folder.join(format!("{}.svg", family.file)), family, &rows)?;
        }
    }
    if has_pairs(results) {
        draw_pairs(&folder.join("lua-against-sluice.svg"), results)?;
    }
    if !results.contestants.is_empty() {
        spreads::draw(&folder.join("latency.svg"), &results.contestants)?;
    }
    if let Some(growth) = &results.growth {
        curves::draw(&folder.join("growth.svg"), &growth.lines)?;
    }
    Ok(())
}

/// Whether all rows of the chart have been measured.
pub(super) fn has_chart(family: &Family, rows: &[&Measured]) -> bool {
    let is_measured = |name: &&str| rows.iter().any(|row| row.row.name == *name);
    family.chart.iter().all(is_measured)
}

/// Whether all families have been measured.
pub(super) fn has_pairs(results: &Results) -> bool {
    let is_complete = |family: &&Family| has_chart(family, &results.rows_of(family));
    FAMILIES.iter().all(is_complete)
}

fn draw_family(path: &Path, family: &Family, rows: &[&Measured]) -> Drawn {
    let mut sections: Vec<Section> = Vec::new();
    for group in family.groups {
        let bars: Vec<_> = rows
            .iter()
            .filter(|row| std::ptr::eq(row.group, group) && family.chart.contains(&row.row.name))
            .filter_map(|row| bar(row))
            .collect();
        if !bars.is_empty() {
            let heading = group
                .name
                .split_once(": ")
                .map_or(group.name, |(_, rest)| rest);
            sections.push(Section {
                heading: heading.to_owned(),
                bars,
            });
        }
    }
    let bars = Bars {
        title: family.title,
        subtitle: "microseconds of server CPU, commands in pipelines; less is better",
        sections,
        figure: |cost| format!("{cost:.2}"),
        mark: None,
    };
    bars.draw(path)
}

fn bar(row: &Measured) -> Option<Bar> {
    Some(Bar {
        name: row.row.name.replace(" (Lua)", ""),
        way: row.row.way(),
        value: row.cost.pipelined?,
    })
}

fn draw_pairs(path: &Path, results: &Results) -> Drawn {
    let mut sections = Vec::new();
    for family in FAMILIES {
        let rows = results.rows_of(family);
        for pair in family.pairs {
            let bar = |name: &str, way| {
                let value = figures::measured(&rows, name, pair.built_in)?;
                let name = name.replace(" (Lua)", "");
                Some(Bar { name, way, value })
            };
            sections.push(Section {
                heading: pair.title.to_owned(),
                bars: [(pair.lua, Way::Lua), (pair.sluice, Way::Sluice)]
                    .into_iter()
                    .filter_map(|(name, way)| bar(name, way))
                    .collect(),
            });
        }
    }
    let bars = Bars {
        title: "Lua against Sluice",
        subtitle: "server CPU as a multiple of a built-in command (SET + DEL, INCR or GET); less is better",
        sections,
        figure: |ratio| format!("{ratio:.1} ×"),
        mark: Some((1.0, "1 × is the built-in command")),
    };
    bars.draw(path)
}
