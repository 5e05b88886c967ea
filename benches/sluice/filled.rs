//! Filters with millions of items, for rows that use them. The module's own code fills them here, which is faster than to send
//! all items. The server loads each once, into a database of its own, and rows use copies.

use std::collections::HashSet;

use crate::support::Raw;
use sluice::bloom::state::{Bloom, BloomParameters};
use sluice::cuckoo::state::{Cuckoo, CuckooParameters};
use sluice::filter::persist;
use sluice::filter::state::{Added, Filter, FilterHeader, FilterKind};

/// Part of the capacity that is filled: the rest is for rows that add.
const FILLED_PERCENT: u64 = 80;

const SEED: u64 = 1;

/// The filters that the server has loaded.
#[derive(Default)]
pub(crate) struct Filled(HashSet<String>);

impl Filled {
    /// Carries out `COPY filled:<bloom or cuckoo>:<capacity> <key>`, if the command is one. The items are
    /// `item:1` and so on.
    pub(crate) fn copy(&mut self, client: &mut Raw, command: &str) -> bool {
        let words: Vec<&str> = command.split(' ').collect();
        let ["COPY", source, key] = words[..] else {
            return false;
        };
        let Some((kind, capacity)) = source
            .strip_prefix("filled:")
            .and_then(|name| name.split_once(':'))
        else {
            return false;
        };
        assert_eq!(client.call(["SELECT", "1"]), "OK");
        if self.0.insert(source.to_owned()) {
            let capacity = capacity.parse().expect("a capacity");
            match kind {
                "bloom" => load(client, source, "BF.LOADCHUNK", &bloom(capacity)),
                "cuckoo" => load(client, source, "CF.LOADCHUNK", &cuckoo(capacity)),
                _ => panic!("there is no kind of filters like {source}"),
            }
        }
        assert_eq!(client.call(["COPY", source, key, "DB", "0"]), 1);
        assert_eq!(client.call(["SELECT", "0"]), "OK");
        true
    }
}

fn bloom(capacity: u64) -> Filter<Bloom> {
    let terms = BloomParameters {
        error: 0.01,
        capacity,
        expansion: 0,
    };
    filled(terms, capacity)
}

fn cuckoo(capacity: u64) -> Filter<Cuckoo> {
    filled(CuckooParameters::new(capacity, 4, 2, 20, 0), capacity)
}

fn filled<K: FilterKind>(terms: K::Parameters, capacity: u64) -> Filter<K> {
    let head = FilterHeader::<K>::new(SEED, terms).expect("a filter");
    let mut filter = head.build().expect("memory");
    for number in 1..=capacity * FILLED_PERCENT / 100 {
        let hash = filter.hash(format!("item:{number}").as_bytes());
        assert_ne!(K::add(&mut filter, hash, false), Added::Full);
    }
    filter
}

fn load<K: FilterKind>(client: &mut Raw, key: &str, command: &str, filter: &Filter<K>) {
    let mut chunk = Vec::new();
    persist::put_header(&mut chunk, &persist::header_of(filter));
    let mut next = Some((0, chunk));
    while let Some((end, chunk)) = next {
        let iterator = (end + 1).to_string();
        let loaded = client.call([
            command.as_bytes(),
            key.as_bytes(),
            iterator.as_bytes(),
            &chunk,
        ]);
        assert_eq!(loaded, "OK");
        next = persist::chunk(filter, end);
    }
}
