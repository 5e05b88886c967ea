//! The growth: a small chart for each series.

use std::error::Error;
use std::path::Path;

use super::canvas::{Anchor, BELOW_HEAD, Canvas, Drawn, FAINT, GRID, INK, MARGIN, colour};
use super::number;
use super::scale::Scale;
use crate::growth::Line;
use crate::row::Way;

const WIDTH: i32 = 900;
const COLUMNS: i32 = 2;
const GAP: i32 = 40;
const PANEL_WIDTH: i32 = (WIDTH - 2 * MARGIN - GAP) / COLUMNS;
const PANEL_HEIGHT: i32 = 236;
const TEXT: u32 = 16;
const SMALL: u32 = 14;

/// Space within a panel, around its curves.
const ABOVE: i32 = 50;
const BELOW: i32 = 48;
const BEFORE: i32 = 34;
const BEHIND: i32 = 50;

/// Figures at the ends of two curves are at least so far apart.
const APART: i32 = 15;

pub(crate) fn draw(path: &Path, lines: &[Line]) -> Drawn {
    let panels: Vec<_> = lines
        .chunk_by(|one, other| one.series.name == other.series.name)
        .collect();
    let rows = (panels.len() as i32 + COLUMNS - 1) / COLUMNS;
    let height = BELOW_HEAD + rows * PANEL_HEIGHT + MARGIN;
    let canvas = Canvas::new(path, (WIDTH as u32, height as u32))?;
    canvas.head(
        "How costs grow",
        "microseconds of server CPU, over the number of what is there",
        &[Way::BuiltIn, Way::Sluice],
    )?;
    for (number, panel) in panels.iter().enumerate() {
        let (row, column) = (number as i32 / COLUMNS, number as i32 % COLUMNS);
        let corner = (
            MARGIN + column * (PANEL_WIDTH + GAP),
            BELOW_HEAD + row * PANEL_HEIGHT,
        );
        draw_panel(&canvas, panel, corner)?;
    }
    canvas.finish()
}

fn draw_panel(canvas: &Canvas<'_>, lines: &[Line], (left, top): (i32, i32)) -> Drawn {
    let series = lines[0].series;
    canvas.text(series.name, (left, top + 12), TEXT, INK, Anchor::Left)?;
    let names: Vec<_> = lines.iter().map(|line| line.name).collect();
    canvas.text(
        &names.join(" / "),
        (left, top + 32),
        SMALL,
        FAINT,
        Anchor::Left,
    )?;
    let points = || lines.iter().flat_map(|line| &line.costs);
    let sizes: Vec<_> = lines[0].costs.iter().map(|(size, _)| *size).collect();
    let most = points().map(|(_, cost)| *cost).fold(0.0, f64::max);
    let largest = sizes.last().copied().unwrap_or(1) as f64;
    let right = left + PANEL_WIDTH - BEHIND;
    let bottom = top + PANEL_HEIGHT - BELOW;
    let across = Scale::log(1.0, largest, (left + BEFORE, right));
    let up = Scale::linear(most * 1.1, (bottom, top + ABOVE));
    for tick in up.ticks() {
        let place = up.place(tick);
        canvas.line(vec![(left + BEFORE, place), (right, place)], GRID, 1)?;
        let text = format!("{tick:.*}", usize::from(most < 4.0));
        canvas.text(
            &text,
            (left + BEFORE - 6, place),
            SMALL,
            FAINT,
            Anchor::Right,
        )?;
    }
    for size in sizes {
        let place = across.place(size as f64);
        canvas.text(
            &number(size),
            (place, bottom + 13),
            SMALL,
            FAINT,
            Anchor::Middle,
        )?;
    }
    let middle = (left + BEFORE + right) / 2;
    canvas.text(
        series.of,
        (middle, bottom + 31),
        SMALL,
        FAINT,
        Anchor::Middle,
    )?;
    let ends = draw_curves(canvas, lines, &across, &up)?;
    label_ends(canvas, ends)
}

/// Where a curve ends, and with what.
struct End {
    at: (i32, i32),
    way: Way,
    cost: f64,
}

fn draw_curves(
    canvas: &Canvas<'_>,
    lines: &[Line],
    across: &Scale,
    up: &Scale,
) -> Result<Vec<End>, Box<dyn Error>> {
    let mut ends = Vec::new();
    for line in lines {
        let way = line.way;
        let place = |(size, cost): &(u64, f64)| (across.place(*size as f64), up.place(*cost));
        let points: Vec<_> = line.costs.iter().map(place).collect();
        canvas.line(points.clone(), colour(way), 2)?;
        for point in &points {
            canvas.dot(*point, 4, colour(way))?;
        }
        if let (Some(at), Some((_, cost))) = (points.last().copied(), line.costs.last().copied()) {
            ends.push(End { at, way, cost });
        }
    }
    Ok(ends)
}

/// Writes the figures behind the curves, one above the other.
fn label_ends(canvas: &Canvas<'_>, mut ends: Vec<End>) -> Drawn {
    ends.sort_by_key(|end| end.at.1);
    if let [upper, lower] = &mut ends[..]
        && lower.at.1 - upper.at.1 < APART
    {
        let middle = i32::midpoint(upper.at.1, lower.at.1);
        upper.at.1 = middle - APART / 2;
        lower.at.1 = upper.at.1 + APART;
    }
    for End { at, way, cost } in ends {
        let text = format!("{cost:.2}");
        canvas.text(&text, (at.0 + 9, at.1), SMALL, colour(way), Anchor::Left)?;
    }
    Ok(())
}
