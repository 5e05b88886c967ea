//! Lines over two axes.

use svg::node::element::Polyline;

use super::{LINE_HEIGHT, MARGIN, Scale, Sheet, Tone, WIDTH, class, short};

/// The widest text at a tick is `0.0001 %`.
const LABELS: i32 = 70;
const FIGURES: i32 = 52;
/// Half of the text at the last tick of the x axis.
const LAST_TICK: i32 = 12;

/// Figures at the ends of two lines are at least this far apart.
const APART: i32 = 17;

/// One pair of axes with its lines.
pub(crate) struct Lines {
    pub(crate) heading: String,
    /// The length of the y axis in pixels.
    pub(crate) height: i32,
    pub(crate) x_label: String,
    pub(crate) y_label: String,
    pub(crate) x_axis: Axis,
    pub(crate) y_axis: Axis,
    pub(crate) lines: Vec<Line>,
    /// The text at a tick of the x axis and of the y axis.
    pub(crate) ticks: [fn(f64) -> String; 2],
    /// The text at the end of a line.
    pub(crate) figure: Option<fn(f64) -> String>,
}

/// The numbers of an axis.
#[derive(Clone, Copy)]
pub(crate) enum Axis {
    /// From zero to this number.
    Linear(f64),
    /// Decades around these two numbers, which are positive.
    Log(f64, f64),
}

impl Axis {
    fn scale(self, pixels: (i32, i32)) -> Scale {
        match self {
            Self::Linear(most) => Scale::linear(most, pixels),
            Self::Log(least, most) => Scale::log(least, most, pixels),
        }
    }
}

pub(crate) struct Line {
    pub(crate) tone: Tone,
    pub(crate) stroke: Stroke,
    /// Ascending in x.
    pub(crate) points: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stroke {
    /// A line through a dot for each point.
    Solid,
    /// A thin line without dots, for comparison.
    Dashed,
    Dots,
}

impl Lines {
    /// Draws from `top` on; returns the end.
    pub(super) fn draw(&self, sheet: &mut Sheet, top: i32) -> i32 {
        let beside = match self.figure {
            Some(_) => FIGURES,
            None => LAST_TICK,
        };
        let (left, right) = (MARGIN + LABELS, WIDTH - MARGIN - beside);
        sheet.text((MARGIN, top + LINE_HEIGHT / 2), "", &self.heading);
        sheet.text((MARGIN, top + LINE_HEIGHT * 3 / 2), "faint", &self.y_label);
        let upper = top + 2 * LINE_HEIGHT + 14;
        let lower = upper + self.height;
        let across = self.x_axis.scale((left, right));
        let up = self.y_axis.scale((lower, upper));
        for tick in up.ticks() {
            let y = up.place(tick);
            sheet.line((left, y), (right, y), "grid");
            sheet.text((left - 6, y), "faint end", &(self.ticks[1])(tick));
        }
        for tick in across.ticks() {
            let text = (self.ticks[0])(tick);
            sheet.text((across.place(tick), lower + 14), "faint middle", &text);
        }
        let middle = i32::midpoint(left, right);
        sheet.text(
            (middle, lower + 14 + LINE_HEIGHT),
            "faint middle",
            &self.x_label,
        );
        for line in &self.lines {
            line.draw(sheet, &across, &up);
        }
        if let Some(figure) = self.figure {
            self.draw_figures(sheet, right, &up, figure);
        }
        lower + 14 + 2 * LINE_HEIGHT + 8
    }

    /// The last value of each line, one below the other.
    fn draw_figures(&self, sheet: &mut Sheet, right: i32, up: &Scale, figure: fn(f64) -> String) {
        let ends = self
            .lines
            .iter()
            .filter_map(|line| Some((line.tone, line.points.last()?.1)));
        let mut ends: Vec<_> = ends
            .map(|(tone, value)| (up.place(value), tone, value))
            .collect();
        ends.sort_by_key(|(y, ..)| *y);
        let mut free = i32::MIN;
        for (y, tone, value) in ends {
            let y = y.max(free);
            free = y + APART;
            sheet.text((right + 8, y), &class(tone, "fill"), &figure(value));
        }
    }
}

impl Line {
    fn draw(&self, sheet: &mut Sheet, across: &Scale, up: &Scale) {
        let places = self
            .points
            .iter()
            .map(|(x, y)| (across.place(*x), up.place(*y)));
        let places: Vec<_> = places.collect();
        if self.stroke != Stroke::Dots {
            let points: Vec<_> = places.iter().map(|(x, y)| format!("{x},{y}")).collect();
            let kind = if self.stroke == Stroke::Dashed {
                "line dashed"
            } else {
                "line"
            };
            let line = Polyline::new().set("points", points.join(" "));
            sheet.add(line.set("class", class(self.tone, kind)));
        }
        if self.stroke != Stroke::Dashed {
            for place in places {
                sheet.circle(place, class(self.tone, "fill"));
            }
        }
    }
}

/// A tick as a share in percent.
pub(crate) fn percent(share: f64) -> String {
    short(share * 100.0) + " %"
}
