//! The plots.

use std::path::Path;

use crate::chart::{Axis, Chart, Line, Lines, Panel, Stroke, Tone, percent, short};
use crate::measure::Measured;

/// The least bits per item of a full Bloom filter without blocks: log2(1/e) / ln 2 (Bloom, CACM 1970).
fn classic(rate: f64) -> f64 {
    -rate.log2() / std::f64::consts::LN_2
}

/// Bits per item over the false positive rate.
pub(crate) fn bits(
    path: &Path,
    blooms: &[(f64, [Measured; 2])],
    cuckoos: &[(u64, Measured)],
) -> std::io::Result<()> {
    let mut measured: Vec<_> = blooms
        .iter()
        .map(|(_, [full, _])| (full.rate, full.bits))
        .collect();
    measured.sort_by(|one, other| one.0.total_cmp(&other.0));
    let least: Vec<_> = measured
        .iter()
        .map(|(rate, _)| (*rate, classic(*rate)))
        .collect();
    let cuckoos = cuckoos.iter().map(|(_, full)| (full.rate, full.bits));
    let cuckoos: Vec<_> = cuckoos.filter(|(rate, _)| *rate > 0.000_005).collect();
    let rates = || measured.iter().chain(&cuckoos).map(|(rate, _)| *rate);
    let chart = Chart {
        title: "Bits per item of a full filter".to_owned(),
        subtitle: "memory over the measured false positive rate; lower is better".to_owned(),
        description: "A filter of BF.* takes a few bits per item more than the least possible Bloom filter, and an \
                      item costs one cache line. The table below has the figures."
            .to_owned(),
        legend: vec![
            (Tone::Gray, "Bloom filter without blocks, the least possible".to_owned()),
            (Tone::Blue, "BF.*, one cache line per item".to_owned()),
            (Tone::Orange, "CF.* with BITS 8 and 16".to_owned()),
        ],
        panels: vec![Panel::Lines(Lines {
            heading: String::new(),
            height: 220,
            x_label: "false positive rate, measured".to_owned(),
            y_label: "bits per item".to_owned(),
            x_axis: Axis::Log(rates().fold(1.0, f64::min), rates().fold(0.0, f64::max)),
            y_axis: Axis::Linear(36.0),
            lines: vec![
                line(Tone::Gray, Stroke::Dashed, least),
                line(Tone::Blue, Stroke::Solid, measured.clone()),
                line(Tone::Orange, Stroke::Dots, cuckoos.clone()),
            ],
            ticks: [percent, short],
            figure: None,
        })],
    };
    chart.save(path)
}

/// False positive rates over the number of items while filters grow.
pub(crate) fn error(path: &Path, grown: &[(f64, Vec<Measured>)]) -> std::io::Result<()> {
    let items = grown
        .iter()
        .flat_map(|(_, seen)| seen.iter().map(|at| at.items));
    let (first, last) = items.fold((u64::MAX, 0), |(low, high), at| (low.min(at), high.max(at)));
    let tones = [Tone::Orange, Tone::Blue, Tone::Gray];
    let mut lines = Vec::new();
    let mut legend = Vec::new();
    for ((rate, seen), tone) in grown.iter().zip(tones) {
        let ends = [first, last].map(|items| (items as f64, *rate));
        lines.push(line(tone, Stroke::Dashed, ends.into()));
        let measured = seen
            .iter()
            .map(|at| (at.items as f64, at.rate.max(0.000_001)));
        lines.push(line(tone, Stroke::Solid, measured.collect()));
        legend.push((tone, format!("declared (dashed): {}", percent(*rate))));
    }
    let chart = Chart {
        title: "False positive rate of growing Bloom filters".to_owned(),
        subtitle: "filters reserved for 20 000 items that grow to 4 million".to_owned(),
        description: "The measured rate stays below the declared one however far a filter grows."
            .to_owned(),
        legend,
        panels: vec![Panel::Lines(Lines {
            heading: String::new(),
            height: 220,
            x_label: "items".to_owned(),
            y_label: "false positive rate, measured".to_owned(),
            x_axis: Axis::Log(first as f64, last as f64),
            y_axis: Axis::Log(0.000_001, 0.03),
            lines,
            ticks: [short, percent],
            figure: None,
        })],
    };
    chart.save(path)
}

fn line(tone: Tone, stroke: Stroke, points: Vec<(f64, f64)>) -> Line {
    Line {
        tone,
        stroke,
        points,
    }
}
