//! What clients saw of locks: who held them when, and whether that can be.

use std::time::Instant;

/// A grant as its client saw it.
#[derive(Debug, Clone)]
pub struct Grant {
    /// Which of several locks.
    pub lock: usize,
    /// Whether others may hold it too.
    pub shared: bool,
    /// Its fence.
    pub fence: i64,
    /// When the request was sent.
    pub asked: Instant,
    /// It certainly holds from here ...
    pub from: Instant,
    /// ... to here: the release was not sent, and the lease, which started after the request was
    /// sent, was not over.
    pub to: Instant,
}

/// What is wrong with a history, if anything is.
pub fn check(grants: &[Grant]) -> Result<(), String> {
    for (index, first) in grants.iter().enumerate() {
        for second in &grants[index + 1..] {
            if first.lock != second.lock {
                continue;
            }
            let overlap = first.from < second.to && second.from < first.to;
            if overlap && !(first.shared && second.shared) {
                return Err(format!("two holders at a time: {first:?} and {second:?}"));
            }
            let (earlier, later) = if first.from <= second.asked {
                (first, second)
            } else if second.from <= first.asked {
                (second, first)
            } else {
                continue; // they ran at the same time, so either may have been first
            };
            if earlier.fence >= later.fence {
                return Err(format!("a fence did not rise: {earlier:?} then {later:?}"));
            }
        }
    }
    Ok(())
}
