//! A white sheet with lines, bars and words on it, in pixels. It is white in dark surroundings, too.

use std::error::Error;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::row::Way;

pub(crate) const INK: RGBColor = RGBColor(36, 41, 47);
pub(crate) const FAINT: RGBColor = RGBColor(101, 109, 118);
pub(crate) const GRID: RGBColor = RGBColor(221, 225, 230);

const FONT: &str = "sans-serif";

/// Pixels that a character takes, as a part of the size of its font: an estimate on the safe side, since only the reader's
/// program knows its fonts.
const CHARACTER: f64 = 0.5;

pub(crate) type Drawn = Result<(), Box<dyn Error>>;

/// Which end of a text is at the given place.
#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    Left,
    Middle,
    Right,
}

pub(crate) struct Canvas<'a> {
    area: DrawingArea<SVGBackend<'a>, Shift>,
}

impl<'a> Canvas<'a> {
    pub(crate) fn new(path: &'a Path, size: (u32, u32)) -> Result<Self, Box<dyn Error>> {
        let area = SVGBackend::new(path, size).into_drawing_area();
        area.fill(&WHITE)?;
        Ok(Self { area })
    }

    /// Text whose middle is at the height of `at`.
    pub(crate) fn text(
        &self,
        text: &str,
        at: (i32, i32),
        size: u32,
        colour: RGBColor,
        anchor: Anchor,
    ) -> Drawn {
        let horizontal = match anchor {
            Anchor::Left => HPos::Left,
            Anchor::Middle => HPos::Center,
            Anchor::Right => HPos::Right,
        };
        let style = (FONT, size)
            .into_font()
            .color(&colour)
            .pos(Pos::new(horizontal, VPos::Center));
        self.area.draw(&Text::new(text.to_owned(), at, style))?;
        Ok(())
    }

    pub(crate) fn bar(&self, from: (i32, i32), to: (i32, i32), colour: RGBColor) -> Drawn {
        self.area
            .draw(&Rectangle::new([from, to], colour.filled()))?;
        Ok(())
    }

    pub(crate) fn line(&self, points: Vec<(i32, i32)>, colour: RGBColor, width: u32) -> Drawn {
        let style = colour.stroke_width(width);
        self.area.draw(&PathElement::new(points, style))?;
        Ok(())
    }

    pub(crate) fn dot(&self, at: (i32, i32), radius: i32, colour: RGBColor) -> Drawn {
        self.area.draw(&Circle::new(at, radius, colour.filled()))?;
        Ok(())
    }

    /// A dot with a hole.
    pub(crate) fn ring(&self, at: (i32, i32), radius: i32, colour: RGBColor) -> Drawn {
        self.area.draw(&Circle::new(at, radius, WHITE.filled()))?;
        self.area
            .draw(&Circle::new(at, radius, colour.stroke_width(2)))?;
        Ok(())
    }

    /// Title, what is shown, and which colour is which.
    pub(crate) fn head(&self, title: &str, subtitle: &str, ways: &[Way]) -> Drawn {
        self.text(title, (MARGIN, 26), 24, INK, Anchor::Left)?;
        self.text(subtitle, (MARGIN, 50), 16, FAINT, Anchor::Left)?;
        let mut left = MARGIN;
        for way in ways {
            self.bar((left, 68), (left + 14, 82), colour(*way))?;
            self.text(label(*way), (left + 20, 75), 16, INK, Anchor::Left)?;
            left += 20 + width(label(*way), 16) + 24;
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> Drawn {
        self.area.present()?;
        Ok(())
    }
}

/// The space around everything.
pub(crate) const MARGIN: i32 = 20;

/// Where the chart begins below its head.
pub(crate) const BELOW_HEAD: i32 = 100;

/// Pixels that a text takes, or a little fewer.
pub(crate) fn width(text: &str, size: u32) -> i32 {
    (text.chars().count() as f64 * f64::from(size) * CHARACTER).ceil() as i32
}

pub(crate) fn colour(way: Way) -> RGBColor {
    match way {
        Way::BuiltIn => RGBColor(150, 156, 163),
        Way::Floor => RGBColor(205, 211, 218),
        Way::Lua => RGBColor(217, 95, 45),
        Way::Sluice => RGBColor(31, 97, 168),
    }
}

pub(crate) fn label(way: Way) -> &'static str {
    match way {
        Way::BuiltIn => "built-in command",
        Way::Floor => "the server's part",
        Way::Lua => "Lua",
        Way::Sluice => "Sluice",
    }
}
