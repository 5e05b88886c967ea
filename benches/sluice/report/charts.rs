//! The charts of the page.

use std::path::Path;

use super::{Results, figures, number, percent, ratio};
use crate::chart::{
    Axis, Chart, Line, Lines, Mark, Panel, Row, Rows, Section, Stroke, Tone, short,
};
use crate::cost::{Measured, is_baseline};
use crate::families::FAMILIES;
use crate::latency::{Contestant, LOADS};
use crate::options::Options;
use crate::row::{Family, Way};

type Drawn = std::io::Result<()>;

/// Draws each chart whose figures have been measured.
pub(super) fn draw(folder: &Path, results: &Results, options: &Options) -> Drawn {
    for family in FAMILIES {
        let rows = results.rows_of(family);
        if has_chart(family, &rows) {
            of_family(family, &rows).save(&folder.join(format!("{}.svg", family.file)))?;
        }
    }
    if has_pairs(results) {
        of_pairs(results, options).save(&folder.join("lua-against-sluice.svg"))?;
    }
    if !results.contestants.is_empty() {
        of_latencies(&results.contestants).save(&folder.join("latency.svg"))?;
    }
    if let Some(growth) = &results.growth {
        of_growth(&growth.lines).save(&folder.join("growth.svg"))?;
    }
    Ok(())
}

/// Whether all rows of the chart have been measured.
pub(super) fn has_chart(family: &Family, rows: &[&Measured]) -> bool {
    let is_measured = |name: &&str| rows.iter().any(|row| row.row.name == *name);
    family.chart.iter().all(is_measured)
}

/// Whether the rows of all families have been measured.
pub(super) fn has_pairs(results: &Results) -> bool {
    let is_complete = |family: &&Family| has_chart(family, &results.rows_of(family));
    FAMILIES.iter().all(is_complete)
}

fn of_family(family: &Family, rows: &[&Measured]) -> Chart {
    let mut sections = Vec::new();
    for group in family.groups {
        let of_group = |row: &&&Measured| std::ptr::eq(row.group, group);
        let is_shown = |row: &&&Measured| family.chart.contains(&row.row.name);
        if !rows.iter().filter(of_group).any(|row| is_shown(&row)) {
            continue;
        }
        let rows = rows.iter().filter(of_group);
        let rows = rows.filter(|row| is_shown(row) || is_baseline(row.group, row.row));
        let heading = group.name.split_once(": ");
        sections.push(Section {
            heading: heading
                .map_or(group.name, |(_, heading)| heading)
                .to_owned(),
            rows: rows.filter_map(|row| cost_row(row)).collect(),
        });
    }
    let most = rows
        .iter()
        .filter(|row| family.chart.contains(&row.row.name));
    let most = most.max_by(|one, other| {
        one.cost
            .pipelined
            .unwrap_or(0.0)
            .total_cmp(&other.cost.pipelined.unwrap_or(0.0))
    });
    let description = most.map_or_else(String::new, |row| {
        format!(
            "The most expensive row is {} with {:.2} microseconds.",
            row.row.name,
            row.cost.pipelined.unwrap_or(0.0)
        )
    });
    rows_chart(
        family.title,
        "server CPU in microseconds per operation, pipelined; shorter is better",
        description,
        sections,
        |cost| format!("{cost:.2}"),
        None,
    )
}

fn cost_row(row: &Measured) -> Option<Row> {
    let mark = Mark::Bar(row.cost.pipelined?);
    Some(named_row(row.row.name, row.row.way(), mark))
}

fn named_row(name: &str, way: Way, mark: Mark) -> Row {
    Row {
        name: name.replace(" (Lua)", ""),
        tone: tone(way),
        mark,
    }
}

fn of_pairs(results: &Results, options: &Options) -> Chart {
    let mut sections = Vec::new();
    let mut shares = Vec::new();
    for family in FAMILIES {
        let rows = results.rows_of(family);
        for pair in family.pairs {
            let measured = |name| figures::measured(&rows, name, pair.built_in);
            let (Some(lua), Some(sluice)) = (measured(pair.lua), measured(pair.sluice)) else {
                continue;
            };
            shares.push(lua / sluice);
            sections.push(Section {
                heading: format!("{} (1 × = {})", pair.title, pair.built_in),
                rows: vec![
                    named_row(pair.lua, Way::Lua, Mark::Bar(lua)),
                    named_row(pair.sluice, Way::Sluice, Mark::Bar(sluice)),
                ],
            });
        }
    }
    let [least, most] = ends(shares.into_iter());
    rows_chart(
        "Lua scripts and Sluice",
        &format!(
            "server CPU as a multiple of a built-in command, pipelines of {}; shorter is better",
            options.pipeline
        ),
        format!(
            "The Lua scripts take {least:.1} to {most:.1} times the server CPU of the commands of Sluice."
        ),
        sections,
        |ratio| format!("{ratio:.1} ×"),
        Some((1.0, "1 × is the built-in command".to_owned())),
    )
}

fn of_latencies(contestants: &[Contestant]) -> Chart {
    let panels = LOADS.iter().enumerate().map(|(load, share)| {
        let sections = contestants.chunk_by(|one, other| one.contest == other.contest);
        let sections = sections.map(|contest| Section {
            heading: contest[0].contest.to_owned(),
            rows: contest
                .iter()
                .map(|one| {
                    let latency = one.under[load].latency;
                    let mark = Mark::Percentiles([latency.p50, latency.p99, latency.p999]);
                    named_row(one.name, one.way, mark)
                })
                .collect(),
        });
        Panel::Rows(Rows {
            heading: format!("At {} of the capacity of Lua", percent(*share)),
            sections: sections.collect(),
            figure: |milliseconds| match milliseconds {
                100.0.. => format!("{milliseconds:.0} ms"),
                _ => format!("{milliseconds:.1} ms"),
            },
            reference: None,
        })
    });
    Chart {
        title: "Latency under load".to_owned(),
        subtitle: "milliseconds from the moment when a request is due to its reply, on a scale of powers of ten: \
                   p50 (ring), p99 (dot and figure), p99.9 (end)"
            .to_owned(),
        description: latencies_in_words(contestants),
        legend: legend(contestants.iter().map(|one| one.way)),
        panels: panels.collect(),
    }
}

/// The smallest and the largest p99 of each way under each load.
fn latencies_in_words(contestants: &[Contestant]) -> String {
    let under_load = |(load, share): (usize, &f64)| {
        let of_way = |way: Way| {
            let own = contestants.iter().filter(|one| one.way == way);
            let [least, most] = ends(own.map(|one| one.under[load].latency.p99));
            format!("{} {least:.1} to {most:.1} ms", label(way))
        };
        let ways = [Way::BuiltIn, Way::Lua, Way::Sluice].map(of_way).join(", ");
        format!("p99 at {} of the capacity of Lua: {ways}.", percent(*share))
    };
    let loads: Vec<_> = LOADS.iter().enumerate().map(under_load).collect();
    loads.join(" ")
}

fn of_growth(lines: &[crate::growth::Line]) -> Chart {
    let panels = lines.chunk_by(|one, other| one.series.name == other.series.name);
    let panels = panels.map(|panel| {
        let names: Vec<_> = panel.iter().map(|line| line.name).collect();
        let costs = || panel.iter().flat_map(|line| &line.costs);
        let most = costs().map(|(_, cost)| *cost).fold(0.0, f64::max);
        let largest = costs().map(|(size, _)| *size).max().unwrap_or(1) as f64;
        Panel::Lines(Lines {
            heading: panel[0].series.name.to_owned(),
            height: 110,
            x_label: panel[0].series.of.to_owned(),
            y_label: format!("microseconds of {}", names.join(", ")),
            x_axis: Axis::Log(1.0, largest),
            y_axis: Axis::Linear(most * 1.1),
            lines: panel.iter().map(growth_line).collect(),
            ticks: [|size| number(size as u64), short],
            figure: Some(|cost| format!("{cost:.2}")),
        })
    });
    Chart {
        title: "Growth of costs".to_owned(),
        subtitle: "server CPU in microseconds per operation, over the number of keys, orders, clients or items; \
                   flat is better"
            .to_owned(),
        description: growth_in_words(lines),
        legend: legend(lines.iter().map(|line| line.way)),
        panels: panels.collect(),
    }
}

/// The smallest and the largest growth of each way.
fn growth_in_words(lines: &[crate::growth::Line]) -> String {
    let of_way = |way: Way| {
        let own = lines.iter().filter(|line| line.way == way);
        let cost = |end: Option<&(u64, f64)>| end.map(|(_, cost)| *cost);
        let growth =
            own.filter_map(|line| ratio(cost(line.costs.last()), cost(line.costs.first())));
        let [least, most] = ends(growth);
        format!("{} {least:.1} to {most:.1}", label(way))
    };
    format!(
        "The cost with the largest number as a multiple of the cost with the smallest: {}.",
        [Way::BuiltIn, Way::Sluice].map(of_way).join(", ")
    )
}

fn growth_line(line: &crate::growth::Line) -> Line {
    Line {
        tone: tone(line.way),
        stroke: Stroke::Solid,
        points: line
            .costs
            .iter()
            .map(|(size, cost)| (*size as f64, *cost))
            .collect(),
    }
}

fn rows_chart(
    title: &str,
    subtitle: &str,
    description: String,
    sections: Vec<Section>,
    figure: fn(f64) -> String,
    reference: Option<(f64, String)>,
) -> Chart {
    let tones: Vec<_> = sections
        .iter()
        .flat_map(|section| section.rows.iter().map(|row| row.tone))
        .collect();
    let ways = [Way::BuiltIn, Way::Floor, Way::Lua, Way::Sluice];
    Chart {
        title: title.to_owned(),
        subtitle: subtitle.to_owned(),
        description,
        legend: legend(ways.into_iter().filter(|way| tones.contains(&tone(*way)))),
        panels: vec![Panel::Rows(Rows {
            heading: String::new(),
            sections,
            figure,
            reference,
        })],
    }
}

/// The smallest and the largest of these numbers, which are not negative.
fn ends(numbers: impl Iterator<Item = f64>) -> [f64; 2] {
    numbers.fold([f64::INFINITY, 0.0], |[least, most], number| {
        [least.min(number), most.max(number)]
    })
}

/// Each way once, in the order of the enumeration.
fn legend(ways: impl Iterator<Item = Way>) -> Vec<(Tone, String)> {
    let ways: Vec<_> = ways.collect();
    let all = [Way::BuiltIn, Way::Floor, Way::Lua, Way::Sluice];
    let shown = all.into_iter().filter(|way| ways.contains(way));
    shown
        .map(|way| (tone(way), label(way).to_owned()))
        .collect()
}

const fn tone(way: Way) -> Tone {
    match way {
        Way::BuiltIn => Tone::Gray,
        Way::Floor => Tone::Pale,
        Way::Lua => Tone::Orange,
        Way::Sluice => Tone::Blue,
    }
}

const fn label(way: Way) -> &'static str {
    match way {
        Way::BuiltIn => "built-in command",
        Way::Floor => "module command that does nothing",
        Way::Lua => "Lua script",
        Way::Sluice => "Sluice",
    }
}
