//! Positions of numbers along an axis.

/// An axis: numbers along a row of pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    low: f64,
    high: f64,
    /// The pixels of `low` and `high`.
    pixels: (i32, i32),
    is_log: bool,
}

impl Scale {
    /// From 0 to `most`, or to 1 if `most` is 0.
    pub(crate) fn linear(most: f64, pixels: (i32, i32)) -> Self {
        Self {
            low: 0.0,
            high: if most > 0.0 { most } else { 1.0 },
            pixels,
            is_log: false,
        }
    }

    /// Whole decades, around all numbers from `least` to `most`, which are positive.
    pub(crate) fn log(least: f64, most: f64, pixels: (i32, i32)) -> Self {
        let low = least.log10().floor();
        let high = most.log10().ceil().max(low + 1.0);
        Self {
            low,
            high,
            pixels,
            is_log: true,
        }
    }

    /// The pixel of a number. A number outside of the scale is put on its edge.
    pub(crate) fn place(&self, number: f64) -> i32 {
        let number = match self.is_log {
            true => number.max(f64::MIN_POSITIVE).log10(),
            false => number,
        };
        let share = ((number - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        let (from, to) = self.pixels;
        from + (share * f64::from(to - from)).round() as i32
    }

    /// The numbers with a line of the grid: every decade, or about five round numbers.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            let decades = self.low as i32..=self.high as i32;
            return decades.map(|decade| 10f64.powi(decade)).collect();
        }
        let step = round_step(self.high / 5.0);
        let count = (self.high / step).floor() as u32;
        (0..=count).map(|tick| f64::from(tick) * step).collect()
    }
}

/// 1, 2 or 5 times a power of ten, at least `step`.
fn round_step(step: f64) -> f64 {
    let decade = 10f64.powf(step.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0];
    let enough = times
        .into_iter()
        .find(|times| times * decade >= step * 0.999);
    enough.unwrap_or(10.0) * decade
}
