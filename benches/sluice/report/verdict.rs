//! Whether a ratio is what was asked for.

/// What the last column of the figures says: nothing was asked for, it is reached, or why it is not. What is compared is what
/// the reader sees, two digits.
pub(crate) fn verdict(measured: f64, bar: Option<f64>, reason: &str) -> String {
    let hundredths = |number: f64| (number * 100.0).round();
    match bar {
        None => reason.to_owned(),
        Some(bar) if hundredths(measured) <= hundredths(bar) => "met".to_owned(),
        Some(_) if reason.is_empty() => "**not met**".to_owned(),
        Some(_) => format!("**not met**: {reason}"),
    }
}
