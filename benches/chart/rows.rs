//! Rows with a name, a bar or a range of percentiles, and a figure.

use super::{LINE_HEIGHT, MARGIN, Scale, Sheet, Tone, WIDTH, bar, class, short, text_width, wrap};

/// Names longer than this are wrapped.
const MOST_OF_NAMES: i32 = 236;
const FIGURES: i32 = 68;
const MOST_TICKS: usize = 5;
const HEADING: i32 = 28;
const PADDING: i32 = 5;
const BAR: i32 = 14;

/// Rows over one scale.
pub(crate) struct Rows {
    /// Empty where the chart has one panel.
    pub(crate) heading: String,
    pub(crate) sections: Vec<Section>,
    /// The text at the end of a row.
    pub(crate) figure: fn(f64) -> String,
    /// A vertical line through all rows at this value, and its label.
    pub(crate) reference: Option<(f64, String)>,
}

/// Rows that a reader compares with each other.
pub(crate) struct Section {
    pub(crate) heading: String,
    pub(crate) rows: Vec<Row>,
}

pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) tone: Tone,
    pub(crate) mark: Mark,
}

#[derive(Clone, Copy)]
pub(crate) enum Mark {
    /// From zero to this value.
    Bar(f64),
    /// The median, the 99th percentile, which is the figure, and the 99.9th, on a scale of powers of ten.
    Percentiles([f64; 3]),
}

impl Mark {
    const fn figure(self) -> f64 {
        match self {
            Self::Bar(value) | Self::Percentiles([_, value, _]) => value,
        }
    }

    const fn ends(self) -> [f64; 2] {
        match self {
            Self::Bar(value) => [value, value],
            Self::Percentiles([least, _, most]) => [least, most],
        }
    }
}

impl Rows {
    /// Draws from `top` on; returns the end.
    pub(super) fn draw(&self, sheet: &mut Sheet, mut top: i32) -> i32 {
        let left = MARGIN + self.width_of_names();
        let scale = self.scale((left, WIDTH - MARGIN - FIGURES));
        if !self.heading.is_empty() {
            sheet.text((MARGIN, top + HEADING / 2), "title", &self.heading);
            top += HEADING;
        }
        let start = top;
        let end = start
            + self
                .sections
                .iter()
                .map(|section| section.height(left))
                .sum::<i32>();
        if self.is_logarithmic() {
            let ticks = scale.ticks();
            let every = ticks.len().div_ceil(MOST_TICKS);
            for tick in ticks.into_iter().step_by(every) {
                let x = scale.place(tick);
                sheet.line((x, start), (x, end), "grid");
                sheet.text((x, end + LINE_HEIGHT / 2 + 2), "faint middle", &short(tick));
            }
        }
        for section in &self.sections {
            let rows = top + HEADING;
            top = section.draw(sheet, top, left, &scale, self.figure);
            if let Some((value, _)) = &self.reference {
                let x = scale.place(*value);
                sheet.line((x, rows), (x, top), "reference");
            }
        }
        if self.is_logarithmic() {
            top += LINE_HEIGHT + 4;
        }
        if let Some((value, text)) = &self.reference {
            let x = scale.place(*value);
            sheet.text((x + 4, top + LINE_HEIGHT / 2), "faint", text);
            top += LINE_HEIGHT;
        }
        top
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.sections.iter().flat_map(|section| &section.rows)
    }

    fn width_of_names(&self) -> i32 {
        let widest = self.rows().map(|row| text_width(&row.name)).max();
        widest.unwrap_or_default().min(MOST_OF_NAMES) + 10
    }

    fn is_logarithmic(&self) -> bool {
        self.rows()
            .any(|row| matches!(row.mark, Mark::Percentiles(_)))
    }

    fn scale(&self, pixels: (i32, i32)) -> Scale {
        let ends = || self.rows().flat_map(|row| row.mark.ends());
        let most = ends().fold(0.0, f64::max);
        match self.is_logarithmic() {
            true => Scale::log(
                ends().fold(most, f64::min).max(0.001),
                most.max(0.001),
                pixels,
            ),
            false => Scale::linear(most, pixels),
        }
    }
}

impl Section {
    fn height(&self, left: i32) -> i32 {
        HEADING + self.rows.iter().map(|row| row.height(left)).sum::<i32>()
    }

    fn draw(
        &self,
        sheet: &mut Sheet,
        mut top: i32,
        left: i32,
        scale: &Scale,
        figure: fn(f64) -> String,
    ) -> i32 {
        sheet.text((MARGIN, top + HEADING / 2 + 2), "faint", &self.heading);
        top += HEADING;
        for row in &self.rows {
            row.draw(sheet, top, left, scale, figure);
            top += row.height(left);
        }
        top
    }
}

impl Row {
    fn lines(&self, left: i32) -> Vec<String> {
        wrap(&self.name, left - MARGIN - 10)
    }

    fn height(&self, left: i32) -> i32 {
        self.lines(left).len() as i32 * LINE_HEIGHT + PADDING
    }

    fn draw(
        &self,
        sheet: &mut Sheet,
        top: i32,
        left: i32,
        scale: &Scale,
        figure: fn(f64) -> String,
    ) {
        let height = self.height(left);
        let middle = top + height / 2;
        for (number, line) in self.lines(left).iter().enumerate() {
            let y = top + (PADDING + LINE_HEIGHT) / 2 + number as i32 * LINE_HEIGHT;
            sheet.text((left - 8, y), "end", line);
        }
        let end = match self.mark {
            Mark::Bar(value) => {
                let end = scale.place(value).max(left + 1);
                sheet.add(
                    bar((left, middle - BAR / 2), (end, middle + BAR / 2))
                        .set("class", class(self.tone, "fill")),
                );
                end
            }
            Mark::Percentiles(values) => {
                let [median, high, highest] = values.map(|value| scale.place(value));
                sheet.line(
                    (median, middle),
                    (highest, middle),
                    &class(self.tone, "line"),
                );
                sheet.line(
                    (highest, middle - 5),
                    (highest, middle + 5),
                    &class(self.tone, "line"),
                );
                sheet.circle((high, middle), class(self.tone, "fill"));
                sheet.circle((median, middle), class(self.tone, "ring"));
                highest
            }
        };
        sheet.text((end + 7, middle), "", &figure(self.mark.figure()));
    }
}
