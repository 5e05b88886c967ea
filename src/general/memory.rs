//! The memory of the families that do not count it themselves: the number of their keys, which is exact, and an estimate of their
//! bytes. The server's cron visits some keys at a time, and the average of the visited keys counts for all. The commands of the
//! families do nothing for it.

use crate::server::base::clock::Now;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use crate::server::handles::scan::KeyScan;
use crate::server::services::native::{TypeUsage, key_usage};
use std::collections::BTreeMap;

/// The fields of a family in the section `memory` of `INFO`. Their names begin with `memory` and the name of the family.
pub struct FamilyMemory {
    /// The field with the number of keys.
    pub keys: &'static str,
    /// The field with the bytes.
    pub bytes: &'static str,
    /// The data types of the family.
    pub types: &'static [TypeUsage],
}

/// The sizes of visited keys.
#[derive(Debug, Clone, Copy, Default)]
struct Sizes {
    keys: u64,
    bytes: u64,
}

/// The average size of the keys of a family: of the last pass over all keys, and of the present pass.
#[derive(Debug, Default)]
struct AverageSize {
    last: Sizes,
    present: Sizes,
}

impl AverageSize {
    fn add(&mut self, bytes: u64) {
        self.present.keys += 1;
        self.present.bytes += bytes;
    }

    fn end_pass(&mut self) {
        self.last = std::mem::take(&mut self.present);
    }

    /// An estimate of the bytes of so many keys; `None`: no key was visited.
    fn estimate(&self, keys: u64) -> Option<u64> {
        let visited = self.last.keys + self.present.keys;
        let bytes = u128::from(self.last.bytes + self.present.bytes) * u128::from(keys);
        let estimate = bytes.checked_div(u128::from(visited))?;
        Some(u64::try_from(estimate).unwrap_or(u64::MAX))
    }
}

/// The passes over all keys.
#[derive(Default)]
struct Passes {
    scan: Option<KeyScan>,
    db: i32,
    /// When the next pass begins (Unix ms).
    next: u64,
    averages: BTreeMap<&'static str, AverageSize>,
}

static PASSES: MainThread<Passes> = MainThread::new();

/// The time for visits in a call of the cron, ten times a second.
const SLICE_US: u64 = 100;

/// A pass begins at the earliest so long after the end of the last one.
const BETWEEN_PASSES_MS: u64 = 5000;

fn families() -> impl Iterator<Item = &'static FamilyMemory> {
    crate::enabled_families().filter_map(|family| family.memory.as_ref())
}

fn count_keys(memory: &FamilyMemory) -> u64 {
    memory.types.iter().map(|types| (types.live)() as u64).sum()
}

/// Visits some keys.
pub(super) fn cron(ctx: Ctx<'_>) {
    if ctx.is_loading() || families().all(|memory| count_keys(memory) == 0) {
        return;
    }
    let begin = Now::read();
    let passes = &mut *PASSES.get();
    if begin.ms() < passes.next {
        return;
    }
    while Now::read().micros().saturating_sub(begin.micros()) < SLICE_US {
        let Passes {
            scan, db, averages, ..
        } = passes;
        let scan = scan.get_or_insert_with(KeyScan::new);
        let is_left = ctx.in_db(*db, || {
            scan.visit(ctx, &mut |name, key| {
                for memory in families() {
                    let sizes = memory.types.iter();
                    if let Some(bytes) = sizes.filter_map(|types| (types.bytes)(key)).next() {
                        let size = bytes + key_usage(name.len());
                        averages.entry(memory.keys).or_default().add(size as u64);
                    }
                }
            })
        });
        match is_left {
            Some(true) => {}
            Some(false) => {
                passes.scan = None;
                passes.db += 1;
            }
            None => {
                passes.averages.values_mut().for_each(AverageSize::end_pass);
                passes.scan = None;
                passes.db = 0;
                passes.next = begin.ms() + BETWEEN_PASSES_MS;
                return;
            }
        }
    }
}

/// The section `memory` of `INFO`. `None`: the state is in use.
pub fn info() -> Option<Vec<(&'static str, u64)>> {
    let passes = PASSES.try_get()?;
    let fields = families().flat_map(|memory| {
        let keys = count_keys(memory);
        let average = passes.averages.get(memory.keys);
        let estimate = average.and_then(|average| average.estimate(keys));
        let least = memory
            .types
            .iter()
            .map(|types| (types.least)() * (types.live)());
        let bytes = estimate.unwrap_or_else(|| least.sum::<usize>() as u64);
        [(memory.keys, keys), (memory.bytes, bytes)]
    });
    Some(fields.collect())
}

#[cfg(test)]
mod tests {
    use super::AverageSize;

    #[test]
    fn the_average_of_the_last_and_the_present_pass_counts_for_all_keys() {
        let mut average = AverageSize::default();
        assert_eq!(average.estimate(5), None);
        average.add(100);
        average.add(200);
        assert_eq!(average.estimate(10), Some(1500));
        average.end_pass();
        assert_eq!(average.estimate(2), Some(300));
        average.add(600);
        assert_eq!(average.estimate(3), Some(900));
        average.end_pass();
        assert_eq!(average.estimate(1), Some(600));
        average.end_pass();
        assert_eq!(average.estimate(1), None);
    }
}
