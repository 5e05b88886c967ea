//! Bars that lie, with a name before and a figure behind each.

use std::path::Path;

use super::canvas::{Anchor, BELOW_HEAD, Canvas, Drawn, FAINT, GRID, INK, MARGIN, colour, width};
use super::scale::Scale;
use crate::row::Way;

const WIDTH: i32 = 900;
const ROW: i32 = 26;
const BAR: i32 = 17;
const HEADING: i32 = 34;
const TEXT: u32 = 16;
const FIGURES: i32 = 70;

pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) way: Way,
    pub(crate) value: f64,
}

/// Bars under a heading.
pub(crate) struct Section {
    pub(crate) heading: String,
    pub(crate) bars: Vec<Bar>,
}

pub(crate) struct Bars<'a> {
    pub(crate) title: &'a str,
    pub(crate) subtitle: &'a str,
    pub(crate) sections: Vec<Section>,
    /// The figure behind a bar.
    pub(crate) figure: fn(f64) -> String,
    /// A line through all bars at this value, and what it is.
    pub(crate) mark: Option<(f64, &'a str)>,
}

impl Bars<'_> {
    pub(crate) fn draw(&self, path: &Path) -> Drawn {
        let canvas = Canvas::new(path, (WIDTH as u32, self.height() as u32))?;
        canvas.head(self.title, self.subtitle, &self.ways())?;
        let names = self.bars().map(|bar| width(&bar.name, TEXT)).max();
        let left = MARGIN + names.unwrap_or_default() + 12;
        let most = self.bars().map(|bar| bar.value).fold(0.0, f64::max);
        let scale = Scale::linear(most, (left, WIDTH - MARGIN - FIGURES));
        let mut top = BELOW_HEAD;
        for section in &self.sections {
            canvas.text(
                &section.heading,
                (MARGIN, top + HEADING / 2 + 4),
                TEXT,
                FAINT,
                Anchor::Left,
            )?;
            top += HEADING;
            let bottom = top + ROW * section.bars.len() as i32;
            canvas.line(vec![(left, top), (left, bottom)], GRID, 1)?;
            for bar in &section.bars {
                self.draw_bar(&canvas, bar, left, top, &scale)?;
                top += ROW;
            }
        }
        if let Some((value, text)) = self.mark {
            let place = scale.place(value);
            canvas.line(vec![(place, BELOW_HEAD + 6), (place, top + 6)], FAINT, 1)?;
            canvas.text(text, (place, top + 16), 14, FAINT, Anchor::Left)?;
        }
        canvas.finish()
    }

    fn draw_bar(
        &self,
        canvas: &Canvas<'_>,
        bar: &Bar,
        left: i32,
        top: i32,
        scale: &Scale,
    ) -> Drawn {
        let middle = top + ROW / 2;
        let end = scale.place(bar.value).max(left + 1);
        canvas.text(&bar.name, (left - 8, middle), TEXT, INK, Anchor::Right)?;
        let corners = ((left, middle - BAR / 2), (end, middle + BAR / 2));
        canvas.bar(corners.0, corners.1, colour(bar.way))?;
        canvas.text(
            &(self.figure)(bar.value),
            (end + 6, middle),
            TEXT,
            INK,
            Anchor::Left,
        )
    }

    fn height(&self) -> i32 {
        let rows: i32 = self.bars().map(|_| ROW).sum();
        let headings = HEADING * self.sections.len() as i32;
        let mark = if self.mark.is_some() { 24 } else { 0 };
        BELOW_HEAD + rows + headings + mark + MARGIN
    }

    fn bars(&self) -> impl Iterator<Item = &Bar> {
        self.sections.iter().flat_map(|section| &section.bars)
    }

    /// The colours that need an explanation.
    fn ways(&self) -> Vec<Way> {
        let all = [Way::BuiltIn, Way::Floor, Way::Lua, Way::Sluice];
        let seen = |way: &Way| self.bars().any(|bar| bar.way == *way);
        all.into_iter().filter(seen).collect()
    }
}
