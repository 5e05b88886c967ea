//! The latencies: a line from the median to the 999th of a thousand, on a scale of powers of ten.

use std::path::Path;

use super::canvas::{Anchor, BELOW_HEAD, Canvas, Drawn, FAINT, GRID, INK, MARGIN, colour, width};
use super::scale::Scale;
use crate::latency::{Contestant, LOADS, Percentiles};
use crate::row::Way;

const WIDTH: i32 = 900;
const ROW: i32 = 24;
const HEADING: i32 = 32;
const TEXT: u32 = 16;
const SMALL: u32 = 14;
const LABELS: i32 = 24;
const GAP: i32 = 44;

/// Behind the last panel, for half of its last label.
const EDGE: i32 = 12;
const FOOT: i32 = 76;

pub(crate) fn draw(path: &Path, contestants: &[Contestant]) -> Drawn {
    let contests = by_contest(contestants);
    let rows = ROW * contestants.len() as i32 + HEADING * contests.len() as i32;
    let height = BELOW_HEAD + LABELS + rows + FOOT + MARGIN;
    let canvas = Canvas::new(path, (WIDTH as u32, height as u32))?;
    canvas.head(
        "How long requests take",
        "milliseconds from the moment when a request is due to its reply, on a scale of powers of ten",
        &[Way::BuiltIn, Way::Lua, Way::Sluice],
    )?;
    let names = contestants.iter().map(|one| width(one.name, TEXT)).max();
    let left = MARGIN + names.unwrap_or_default() + 12;
    let panel = (WIDTH - MARGIN - EDGE - left - GAP) / LOADS.len() as i32;
    let top = BELOW_HEAD + LABELS;
    for (number, load) in LOADS.iter().enumerate() {
        let start = left + number as i32 * (panel + GAP);
        let scale = scale_of(contestants, (start, start + panel));
        let title = format!("{:.0} % of what Lua gets through", load * 100.0);
        canvas.text(&title, (start, BELOW_HEAD + 6), TEXT, INK, Anchor::Left)?;
        grid(&canvas, &scale, (top, top + rows))?;
        let mut row = top;
        for contest in &contests {
            row += HEADING;
            for one in *contest {
                let latency = one.under[number].latency;
                spread(&canvas, &scale, row + ROW / 2, latency, one.way)?;
                row += ROW;
            }
        }
    }
    let mut row = top;
    for contest in &contests {
        canvas.text(
            contest[0].contest,
            (MARGIN, row + HEADING / 2 + 2),
            TEXT,
            FAINT,
            Anchor::Left,
        )?;
        row += HEADING;
        for one in *contest {
            canvas.text(
                one.name,
                (left - 12, row + ROW / 2),
                TEXT,
                INK,
                Anchor::Right,
            )?;
            row += ROW;
        }
    }
    explain(&canvas, (left, row + FOOT - 10))?;
    canvas.finish()
}

fn by_contest(contestants: &[Contestant]) -> Vec<&[Contestant]> {
    contestants
        .chunk_by(|one, other| one.contest == other.contest)
        .collect()
}

/// One scale for all that is shown.
fn scale_of(contestants: &[Contestant], pixels: (i32, i32)) -> Scale {
    let all = || contestants.iter().flat_map(|one| &one.under);
    let least = all().map(|under| under.latency.p50);
    let most = all().map(|under| under.latency.p999);
    Scale::log(
        least.fold(f64::INFINITY, f64::min).max(0.001),
        most.fold(0.001, f64::max),
        pixels,
    )
}

fn grid(canvas: &Canvas<'_>, scale: &Scale, (top, bottom): (i32, i32)) -> Drawn {
    for tick in scale.ticks() {
        let place = scale.place(tick);
        canvas.line(vec![(place, top), (place, bottom)], GRID, 1)?;
        canvas.text(
            &time(tick),
            (place, bottom + 14),
            SMALL,
            FAINT,
            Anchor::Middle,
        )?;
    }
    Ok(())
}

/// Milliseconds, as short as the chart needs it.
fn time(milliseconds: f64) -> String {
    match milliseconds {
        1000.0.. => format!("{} s", milliseconds / 1000.0),
        _ => milliseconds.to_string(),
    }
}

fn spread(
    canvas: &Canvas<'_>,
    scale: &Scale,
    height: i32,
    latency: Percentiles,
    way: Way,
) -> Drawn {
    let [p50, p99, p999] = [latency.p50, latency.p99, latency.p999].map(|at| scale.place(at));
    marks(canvas, [p50, p99, p999], height, way)
}

fn marks(canvas: &Canvas<'_>, [p50, p99, p999]: [i32; 3], height: i32, way: Way) -> Drawn {
    let colour = colour(way);
    canvas.line(vec![(p50, height), (p999, height)], colour, 3)?;
    canvas.line(vec![(p999, height - 6), (p999, height + 6)], colour, 3)?;
    canvas.dot((p99, height), 5, colour)?;
    canvas.ring((p50, height), 5, colour)
}

/// Which mark is which.
fn explain(canvas: &Canvas<'_>, (left, height): (i32, i32)) -> Drawn {
    let places = [left + 8, left + 108, left + 208];
    marks(canvas, places, height, Way::BuiltIn)?;
    for (place, text) in places.into_iter().zip(["p50", "p99", "p99.9"]) {
        canvas.text(text, (place, height - 16), SMALL, FAINT, Anchor::Middle)?;
    }
    Ok(())
}
