//! The plots.

use std::error::Error;
use std::path::Path;

use plotters::prelude::*;

use crate::measure::Measured;

const SIZE: (u32, u32) = (760, 420);
const BLUE_LINE: RGBColor = RGBColor(31, 97, 168);
const RED_LINE: RGBColor = RGBColor(200, 64, 48);
const GREEN_LINE: RGBColor = RGBColor(46, 133, 64);
const GREY_LINE: RGBColor = RGBColor(140, 140, 140);

/// The least bits that a Bloom filter without blocks can have for each item, filled up: log2(1/e) / ln 2.
fn classic(rate: f64) -> f64 {
    -rate.log2() / std::f64::consts::LN_2
}

/// Bits for each item over the error rate.
pub(crate) fn bits(
    path: &Path,
    blooms: &[(f64, [Measured; 2])],
    cuckoos: &[(u64, Measured)],
) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(52)
        .caption("Bits per item of a filter that is full", ("sans-serif", 18))
        .build_cartesian_2d((0.2f64..0.000_005).log_scale(), 0f64..36.0)?;
    chart
        .configure_mesh()
        .x_desc("false positive rate, measured")
        .y_desc("bits per item")
        .x_label_formatter(&|rate| format!("{} %", rate * 100.0))
        .light_line_style(WHITE)
        .draw()?;
    let measured: Vec<_> = blooms
        .iter()
        .map(|(_, [full, _])| (full.rate, full.bits))
        .collect();
    let least: Vec<_> = measured
        .iter()
        .map(|(rate, _)| (*rate, classic(*rate)))
        .collect();
    chart
        .draw_series(LineSeries::new(least, GREY_LINE))?
        .label("Bloom filter without blocks, the least possible")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], GREY_LINE));
    chart
        .draw_series(LineSeries::new(measured.clone(), BLUE_LINE.stroke_width(2)))?
        .label("BF.*, one cache line per look")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], BLUE_LINE.stroke_width(2)));
    chart.draw_series(
        measured
            .iter()
            .map(|at| Circle::new(*at, 4, BLUE_LINE.filled())),
    )?;
    let cuckoos = cuckoos.iter().filter(|(_, full)| full.rate > 0.000_005);
    chart
        .draw_series(
            cuckoos.map(|(_, full)| Circle::new((full.rate, full.bits), 4, RED_LINE.filled())),
        )?
        .label("CF.* with BITS 8 and 16")
        .legend(|(x, y)| Circle::new((x + 9, y), 4, RED_LINE.filled()));
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(GREY_LINE)
        .background_style(WHITE)
        .draw()?;
    area.present()?;
    Ok(())
}

/// Errors over items while filters grow.
pub(crate) fn error(path: &Path, grown: &[(f64, Vec<Measured>)]) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let items = grown
        .iter()
        .flat_map(|(_, seen)| seen.iter().map(|at| at.items));
    let (first, last) = items.fold((u64::MAX, 0), |(low, high), at| (low.min(at), high.max(at)));
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .caption(
            "Errors of Bloom filters for 20 000 items that grow to 4 million",
            ("sans-serif", 18),
        )
        .build_cartesian_2d(
            (first as f64..last as f64 * 1.1).log_scale(),
            (0.000_001f64..0.03).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("items")
        .y_desc("false positive rate, measured")
        .y_label_formatter(&|rate| format!("{} %", rate * 100.0))
        .x_label_formatter(&|items| format!("{items}"))
        .light_line_style(WHITE)
        .draw()?;
    for ((rate, seen), colour) in grown.iter().zip([RED_LINE, BLUE_LINE, GREEN_LINE]) {
        let ends = [(first as f64, *rate), (last as f64, *rate)];
        chart.draw_series(DashedLineSeries::new(ends, 6, 4, colour.stroke_width(1)))?;
        let points = seen
            .iter()
            .map(|at| (at.items as f64, at.rate.max(0.000_001)));
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(format!("declared (dashed): {} %", rate * 100.0))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .border_style(GREY_LINE)
        .background_style(WHITE)
        .draw()?;
    area.present()?;
    Ok(())
}
