//! Whether a ratio meets its design target.

/// The last column of the ratios: that the design target is met, or the reason why it is not. The comparison uses the two
/// digits that the reader sees.
pub(crate) fn verdict(measured: f64, bar: Option<f64>, reason: &str) -> String {
    let hundredths = |number: f64| (number * 100.0).round();
    match bar {
        None => reason.to_owned(),
        Some(bar) if hundredths(measured) <= hundredths(bar) => "met".to_owned(),
        Some(_) if reason.is_empty() => "**not met**".to_owned(),
        Some(_) => format!("**not met**: {reason}"),
    }
}
