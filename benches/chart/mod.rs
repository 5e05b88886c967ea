//! Charts of the documentation as SVG: bars, ranges of percentiles and lines, drawn in one way.
//!
//! A chart follows the reader's light or dark color scheme (`prefers-color-scheme`), has a title and a description for screen
//! readers, and is narrow enough that its text stays legible on a screen of 400 pixels. All lengths are pixels of the viewBox.

#![allow(dead_code, unused_imports)] // each program that draws uses a part of it

mod lines;
mod rows;
mod scale;

use std::path::Path;

pub(crate) use lines::{Axis, Line, Lines, Stroke, percent};
pub(crate) use rows::{Mark, Row, Rows, Section};
pub(crate) use scale::Scale;
use svg::Document;
use svg::node::element::{Description, Rectangle, Style, Text, Title};

const WIDTH: i32 = 560;
const MARGIN: i32 = 16;
const FONT: i32 = 15;
const LINE_HEIGHT: i32 = 19;

/// Average widths of characters as shares of the font size: upper estimates, because only the reader's program knows its fonts.
const CHARACTER_WIDTH: f64 = 0.52;
const CAPITAL_WIDTH: f64 = 0.66;

const STYLE: &str = "
svg { --paper: #ffffff; --ink: #24292f; --faint: #59636e; --grid: #d8dee4; --gray: #8c959f; --pale: #c4cbd3; --orange: #d95f2d; --blue: #1f61a8; }
@media (prefers-color-scheme: dark) {
svg { --paper: #0d1117; --ink: #e6edf3; --faint: #9198a1; --grid: #30363d; --gray: #818b98; --pale: #4a535d; --orange: #f0804f; --blue: #58a6ff; }
}
text { font: 15px system-ui, sans-serif; fill: var(--ink); dominant-baseline: central; }
.title { font-size: 19px; font-weight: 600; } .faint { fill: var(--faint); }
.middle { text-anchor: middle; } .end { text-anchor: end; }
.paper { fill: var(--paper); } .grid { stroke: var(--grid); } .reference { stroke: var(--faint); stroke-dasharray: 4 3; }
.gray { --tone: var(--gray); } .pale { --tone: var(--pale); } .orange { --tone: var(--orange); } .blue { --tone: var(--blue); }
.fill { fill: var(--tone); } .line { stroke: var(--tone); stroke-width: 3; fill: none; } .dashed { stroke-width: 1; stroke-dasharray: 6 4; }
.ring { fill: var(--paper); stroke: var(--tone); stroke-width: 2; }
";

/// A color of the legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Gray,
    Pale,
    Orange,
    Blue,
}

impl Tone {
    /// The name of its class in [`STYLE`].
    const fn class(self) -> &'static str {
        match self {
            Self::Gray => "gray",
            Self::Pale => "pale",
            Self::Orange => "orange",
            Self::Blue => "blue",
        }
    }
}

pub(crate) struct Chart {
    pub(crate) title: String,
    /// The quantity, its unit, and which direction is better.
    pub(crate) subtitle: String,
    /// The main result, for people who cannot see the chart.
    pub(crate) description: String,
    pub(crate) legend: Vec<(Tone, String)>,
    /// From top to bottom.
    pub(crate) panels: Vec<Panel>,
}

pub(crate) enum Panel {
    Rows(Rows),
    Lines(Lines),
}

impl Chart {
    pub(crate) fn save(&self, path: &Path) -> std::io::Result<()> {
        svg::save(path, &self.document())
    }

    pub(crate) fn document(&self) -> Document {
        let mut sheet = Sheet::default();
        let mut top = self.draw_head(&mut sheet);
        for panel in &self.panels {
            top = match panel {
                Panel::Rows(rows) => rows.draw(&mut sheet, top),
                Panel::Lines(lines) => lines.draw(&mut sheet, top),
            };
        }
        let height = top + MARGIN;
        let mut document = Document::new()
            .set("viewBox", (0, 0, WIDTH, height))
            .set("width", WIDTH)
            .set("height", height)
            .set("role", "img")
            .add(Title::new(&self.title))
            .add(Description::new().add(svg::node::Text::new(&self.description)))
            .add(Style::new(STYLE))
            .add(bar((0, 0), (WIDTH, height)).set("class", "paper"));
        for node in sheet.nodes {
            document = document.add(node);
        }
        document
    }

    /// Title, subtitle and legend; returns where the panels begin.
    fn draw_head(&self, sheet: &mut Sheet) -> i32 {
        let mut top = MARGIN + LINE_HEIGHT / 2;
        sheet.text((MARGIN, top), "title", &self.title);
        top += 4;
        for line in wrap(&self.subtitle, WIDTH - 2 * MARGIN) {
            top += LINE_HEIGHT;
            sheet.text((MARGIN, top), "faint", &line);
        }
        let mut left = MARGIN;
        top += LINE_HEIGHT + 6;
        for (tone, label) in &self.legend {
            let width = 18 + text_width(label) + 14;
            if left + width > WIDTH && left > MARGIN {
                left = MARGIN;
                top += LINE_HEIGHT;
            }
            sheet
                .add(bar((left, top - 6), (left + 12, top + 6)).set("class", class(*tone, "fill")));
            sheet.text((left + 18, top), "", label);
            left += width;
        }
        top + LINE_HEIGHT
    }
}

/// The elements of a document, in the order of drawing.
#[derive(Default)]
struct Sheet {
    nodes: Vec<svg::node::element::Element>,
}

impl Sheet {
    fn add(&mut self, node: impl Into<svg::node::element::Element>) {
        self.nodes.push(node.into());
    }

    /// Text whose vertical center is at the second coordinate.
    fn text(&mut self, (x, y): (i32, i32), class: &str, text: &str) {
        self.add(Text::new(text).set("x", x).set("y", y).set("class", class));
    }

    fn line(&mut self, from: (i32, i32), to: (i32, i32), class: &str) {
        let line = svg::node::element::Line::new();
        let line = line.set("x1", from.0).set("y1", from.1);
        self.add(line.set("x2", to.0).set("y2", to.1).set("class", class));
    }

    fn circle(&mut self, (x, y): (i32, i32), class: String) {
        let circle = svg::node::element::Circle::new().set("cx", x).set("cy", y);
        self.add(circle.set("r", 4).set("class", class));
    }
}

fn bar(from: (i32, i32), to: (i32, i32)) -> Rectangle {
    Rectangle::new()
        .set("x", from.0)
        .set("y", from.1)
        .set("width", to.0 - from.0)
        .set("height", to.1 - from.1)
}

fn class(tone: Tone, kind: &str) -> String {
    format!("{} {kind}", tone.class())
}

fn text_width(text: &str) -> i32 {
    let width = |c: char| match c.is_ascii_uppercase() {
        true => CAPITAL_WIDTH,
        false => CHARACTER_WIDTH,
    };
    (text.chars().map(width).sum::<f64>() * f64::from(FONT)).ceil() as i32
}

/// Lines of at most `width` pixels, broken at spaces; a longer word has a line of its own.
fn wrap(text: &str, width: i32) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if text_width(line) + text_width(word) + 8 <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A number in a short form for an axis.
pub(crate) fn short(number: f64) -> String {
    match number.abs() {
        1e6.. => format!("{} M", number / 1e6),
        1e4.. => format!("{} k", number / 1e3),
        _ => format!("{}", (number * 1e9).round() / 1e9),
    }
}
