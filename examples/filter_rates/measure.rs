//! Fills and queries filters.

use sluice::bloom::state::{Bloom, BloomParameters};
use sluice::cuckoo::state::{Cuckoo, CuckooParameters};
use sluice::filter::state::{Added, Filter, FilterHeader, FilterKind};

/// The capacity of filters that are filled up, and of those that grow.
const CAPACITY: u64 = 1_000_000;
const SMALL: u64 = 20_000;

/// With so many false positives, the measured rate is accurate to a few percent.
const ERRORS: f64 = 1_000.0;
const MOST_PROBES: f64 = 20_000_000.0;

const SEED: u64 = 20_070_601;

/// The measurements of a filter.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    /// The false positive rate: the share of items that were never added and are found.
    pub(crate) rate: f64,
    /// Bits per added item.
    pub(crate) bits: f64,
    /// The number of added items.
    pub(crate) items: u64,
}

/// A Bloom filter filled to its reserved capacity, and one that has grown.
pub(crate) fn bloom(error: f64) -> [Measured; 2] {
    let full = bloom_of(error, CAPACITY, CAPACITY);
    let grown = bloom_of(error, SMALL, 200 * SMALL);
    [look(&full, error), look(&grown, error)]
}

/// A Bloom filter while it grows to `times` its capacity.
pub(crate) fn growth(error: f64, times: u64) -> Vec<Measured> {
    let mut filter = new::<Bloom>(bloom_terms(error, SMALL));
    let mut seen = Vec::new();
    let mut next = SMALL / 4;
    for number in 0..times * SMALL {
        add(&mut filter, number);
        if number + 1 == next {
            seen.push(look(&filter, error));
            next += next.div_ceil(4);
        }
    }
    seen.push(look(&filter, error));
    seen
}

/// A cuckoo filter filled to its reserved capacity.
pub(crate) fn cuckoo(bits: u64) -> Measured {
    let mut filter = new::<Cuckoo>(CuckooParameters::new(CAPACITY, 4, bits / 8, 20, 0));
    (0..CAPACITY).for_each(|number| add(&mut filter, number));
    look(&filter, 8.0 / 2f64.powi(bits as i32))
}

fn bloom_terms(error: f64, capacity: u64) -> BloomParameters {
    BloomParameters {
        error,
        capacity,
        expansion: 2,
    }
}

fn bloom_of(error: f64, capacity: u64, items: u64) -> Filter<Bloom> {
    let mut filter = new::<Bloom>(bloom_terms(error, capacity));
    (0..items).for_each(|number| add(&mut filter, number));
    filter
}

fn new<K: FilterKind>(terms: K::Parameters) -> Filter<K> {
    let head = FilterHeader::<K>::new(SEED, terms).expect("a filter");
    head.build().expect("memory")
}

fn add<K: FilterKind>(filter: &mut Filter<K>, number: u64) {
    let hash = filter.hash(&number.to_le_bytes());
    if K::add(filter, hash, false) == Added::Full {
        let shape = K::next_shape(filter, hash).expect("it grows");
        filter.grow(shape).expect("memory");
        K::add(filter, hash, false);
    }
}

/// Queries items that were never added.
fn look<K: FilterKind>(filter: &Filter<K>, expected: f64) -> Measured {
    let probes = (ERRORS / expected).min(MOST_PROBES) as u64;
    let held = (0..probes).filter(|probe| {
        let absent = (u64::MAX - probe).to_le_bytes();
        K::holds(filter, filter.hash(&absent))
    });
    Measured {
        rate: held.count() as f64 / probes as f64,
        bits: (filter.size() * 8) as f64 / filter.items() as f64,
        items: filter.items(),
    }
}
