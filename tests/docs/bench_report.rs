//! What the benchmark's page consists of: tables, charts and verdicts, without the measuring.

#[path = "../../benches/chart/mod.rs"]
mod chart;
#[path = "../../benches/sluice/report/table.rs"]
mod table;
#[path = "../../benches/sluice/report/verdict.rs"]
mod verdict;

use chart::{Axis, Chart, Line, Lines, Mark, Panel, Row, Rows, Scale, Section, Stroke, Tone};
use table::{Align, Table};
use verdict::verdict;

#[test]
fn a_table_is_markdown_whose_columns_are_aligned() {
    let mut table = Table::new([("", Align::Left), ("us", Align::Right)]);
    assert!(table.is_empty());
    table.row(["a × b", "12.00"]);
    table.row(["short"]);
    let expected = "\
|       |    us |
| ----- | ----: |
| a × b | 12.00 |
| short |       |
";
    assert_eq!(table.render(), expected);
    assert!(!table.is_empty());
}

#[test]
fn a_target_is_compared_with_the_digits_that_the_reader_sees() {
    assert_eq!(verdict(1.504, Some(1.5), "slow"), "met");
    assert_eq!(verdict(1.506, Some(1.5), "slow"), "**not met**: slow");
    assert_eq!(verdict(2.0, Some(1.5), ""), "**not met**");
    assert_eq!(verdict(2.0, None, "look there"), "look there");
}

#[test]
fn a_linear_scale_begins_at_nothing_and_has_round_ticks() {
    let scale = Scale::linear(9.68, (100, 200));
    assert_eq!(scale.place(0.0), 100);
    assert_eq!(scale.place(4.84), 150);
    assert_eq!(scale.place(9.68), 200);
    assert_eq!(scale.ticks(), [0.0, 2.0, 4.0, 6.0, 8.0]);
}

#[test]
fn a_scale_upwards_has_its_greatest_number_on_top() {
    let scale = Scale::linear(2.0, (200, 100));
    assert_eq!(scale.place(2.0), 100);
    assert_eq!(scale.place(1.0), 150);
}

#[test]
fn a_logarithmic_scale_has_whole_decades_around_its_numbers() {
    let scale = Scale::log(0.03, 40.0, (0, 400));
    assert_eq!(scale.ticks(), [0.01, 0.1, 1.0, 10.0, 100.0]);
    assert_eq!(scale.place(1.0), 200);
    assert_eq!(scale.place(10.0), 300);
    // Even if they are all the same.
    assert_eq!(Scale::log(1.0, 1.0, (0, 400)).place(10.0), 400);
}

#[test]
fn what_is_outside_of_a_scale_is_put_on_its_edge() {
    let scale = Scale::log(1.0, 100.0, (0, 200));
    assert_eq!(scale.place(0.0), 0);
    assert_eq!(scale.place(1e9), 200);
}

fn row(name: &str, tone: Tone, mark: Mark) -> Row {
    let name = name.to_owned();
    Row { name, tone, mark }
}

fn rows(rows: Vec<Row>) -> Panel {
    let heading = "<lock> & release".to_owned();
    Panel::Rows(Rows {
        heading: String::new(),
        sections: vec![Section { heading, rows }],
        figure: |value| format!("{value:.2}"),
        reference: Some((1.0, "1 is the built-in command".to_owned())),
    })
}

fn lines() -> Panel {
    let line = |tone, stroke, points: &[(f64, f64)]| Line {
        tone,
        stroke,
        points: points.to_vec(),
    };
    Panel::Lines(Lines {
        heading: "keys".to_owned(),
        height: 110,
        x_label: "number of keys".to_owned(),
        y_label: "microseconds".to_owned(),
        x_axis: Axis::Log(1.0, 1e6),
        y_axis: Axis::Linear(4.0),
        lines: vec![
            line(Tone::Gray, Stroke::Dashed, &[(1.0, 1.0), (1e6, 2.0)]),
            line(Tone::Blue, Stroke::Solid, &[(1.0, 1.5), (1e6, 2.01)]),
        ],
        ticks: [chart::short, chart::percent],
        figure: Some(|value| format!("{value:.1}")),
    })
}

fn chart(panels: Vec<Panel>) -> String {
    let chart = Chart {
        title: "Locks".to_owned(),
        subtitle: "microseconds; shorter is better".to_owned(),
        description: "A lock takes 2 microseconds.".to_owned(),
        legend: vec![
            (Tone::Gray, "built-in command".to_owned()),
            (Tone::Blue, "Sluice".to_owned()),
        ],
        panels,
    };
    chart.document().to_string()
}

/// The numbers of an attribute, in the order of the elements that have it.
fn attributes(svg: &str, name: &str) -> Vec<i32> {
    let start = format!(" {name}=\"");
    let values = svg.split(&start).skip(1);
    let number = |value: &str| value.split('"').next()?.parse().ok();
    values
        .map(|value| number(value).expect("a number"))
        .collect()
}

#[test]
fn a_chart_has_a_title_a_description_and_both_color_schemes() {
    let svg = chart(vec![rows(vec![row("SET", Tone::Gray, Mark::Bar(1.0))])]);
    assert!(svg.contains("<title>Locks</title>"), "{svg}");
    assert!(
        svg.contains("<desc>A lock takes 2 microseconds.</desc>"),
        "{svg}"
    );
    assert!(svg.contains("prefers-color-scheme: dark"), "{svg}");
    assert!(svg.contains("&lt;lock&gt; &amp; release"), "{svg}");
}

#[test]
fn the_length_of_a_bar_is_proportional_to_its_value() {
    let marks = [
        row("SET", Tone::Gray, Mark::Bar(1.0)),
        row("lock", Tone::Blue, Mark::Bar(4.0)),
    ];
    let svg = chart(vec![rows(marks.into())]);
    let bars: Vec<_> = svg
        .split("<rect ")
        .filter(|node| node.contains("height=\"14\""))
        .collect();
    let widths: Vec<_> = bars
        .iter()
        .map(|node| attributes(&format!(" {node}"), "width")[0])
        .collect();
    let [short, long] = widths[..] else {
        panic!("{svg}")
    };
    assert!((long - 4 * short).abs() <= 4, "{short} {long}");
}

#[test]
fn everything_in_a_chart_lies_within_its_sheet() {
    let name = "a name of a row that is so long that it takes several lines of the column of names";
    let svg = chart(vec![
        rows(vec![row(
            name,
            Tone::Orange,
            Mark::Percentiles([0.05, 3.0, 1477.0]),
        )]),
        rows(vec![
            row("SET", Tone::Gray, Mark::Bar(0.0)),
            row(name, Tone::Blue, Mark::Bar(9.9)),
        ]),
        lines(),
    ]);
    let height = attributes(&svg, "height").last().copied();
    let height = height.expect("the document's height");
    let sheet = svg
        .split("viewBox=\"0 0 ")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let (width, of_sheet) = sheet
        .and_then(|size| size.split_once(' '))
        .expect("a viewBox");
    let (width, of_sheet): (i32, i32) = (width.parse().unwrap(), of_sheet.parse().unwrap());
    assert!(height <= of_sheet);
    for (name, most) in [
        ("x", width),
        ("x1", width),
        ("x2", width),
        ("cx", width),
        ("y", of_sheet),
        ("y1", of_sheet),
        ("y2", of_sheet),
        ("cy", of_sheet),
    ] {
        let places = attributes(&svg, name);
        assert!(
            places.iter().all(|place| (0..=most).contains(place)),
            "{name}: {places:?}"
        );
    }
}

#[test]
fn figures_at_the_ends_of_lines_do_not_overlap() {
    let svg = chart(vec![lines()]);
    let figures: Vec<_> = svg
        .split("<text ")
        .filter(|node| node.contains("2.0"))
        .collect();
    let places: Vec<_> = figures
        .iter()
        .map(|node| attributes(&format!(" {node}"), "y")[0])
        .collect();
    let [upper, lower] = places[..] else {
        panic!("{figures:?}")
    };
    assert!(lower - upper >= 15, "{places:?}");
}
