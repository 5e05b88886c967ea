//! What the environment says of how much a test does.

/// The number in an environment variable, or else `default`.
pub fn number_from(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable} is {text}")),
        Err(_) => default,
    }
}
