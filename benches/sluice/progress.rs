//! The progress bar of a part of the benchmark.

use indicatif::{ProgressBar, ProgressStyle};

/// On standard error, and only if that is a terminal.
pub(crate) fn bar(part: &str, steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:8} {bar:30} {pos}/{len} {eta:>4} {msg}")
        .expect("the template is well-formed");
    ProgressBar::new(steps)
        .with_style(style)
        .with_prefix(part.to_owned())
}
