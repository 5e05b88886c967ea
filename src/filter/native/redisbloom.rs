//! The data types of RedisBloom: Bloom and cuckoo filters in its own format, and the names of its other types.

use super::foreign::{ForeignFormat, ForeignParts};
use crate::bloom;
use crate::bloom::state::{Bloom, BloomFilter};
use crate::cuckoo;
use crate::cuckoo::state::{Cuckoo, CuckooFilter};
use crate::filter::foreign::chain::{self, Chain, Link};
use crate::filter::foreign::tables::{self, Hashing, Tables};
use crate::filter::foreign::{ForeignLayers, ForeignShape};
use crate::filter::persist;
use crate::server::handles::io::{AofWriter, Digest, RdbReader, RdbWriter};
use crate::server::services::native::{Native, NativeType, Relocate};
use std::ffi::{CStr, c_int};

/// Writes the chunks of `SCANDUMP`, as RedisBloom does.
fn rewrite(foreign: &ForeignLayers, command: &CStr, out: &mut AofWriter<'_>) {
    let Some(header) = foreign.dump() else {
        return;
    };
    out.command_with(command, b"1", &header);
    let mut from = 0;
    while let Some((end, piece)) = foreign.chunk(from, persist::MAX_CHUNK) {
        out.command_with(command, (end + 1).to_string().as_bytes(), &piece);
        from = end;
    }
}

/// The format of Bloom filters.
pub(super) struct RedisBloomChains;

impl ForeignFormat for RedisBloomChains {
    type Kind = Bloom;
    const ENCODING: c_int = chain::ENCODING;

    fn native() -> &'static NativeType<BloomFilter> {
        &bloom::REDISBLOOM
    }

    fn save(layers: &ForeignLayers, out: &mut RdbWriter<'_>) {
        let ForeignShape::Chain(chain) = &layers.shape else {
            return;
        };
        out.uint(chain.items());
        out.uint(chain.links.len() as u64);
        out.uint(chain.options);
        out.uint(chain.growth);
        for (index, link) in chain.links.iter().enumerate() {
            out.uint(link.entries);
            out.double(link.error);
            out.uint(link.hashes);
            out.double(link.bits_per_entry);
            out.uint(link.bits);
            out.uint(link.n2);
            out.bytes(&layers.array(index));
            out.uint(link.items);
        }
    }

    fn load(input: &mut RdbReader<'_>, encoding: c_int) -> Option<ForeignParts> {
        let items = input.uint()?;
        let count = input.uint()?;
        let options = if encoding >= 2 { input.uint()? } else { 0 };
        let growth = if encoding >= 4 {
            input.uint()?
        } else {
            chain::FORMER_GROWTH
        };
        let (mut links, mut arrays) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let (entries, error) = (input.uint()?, input.double()?);
            let (hashes, bits_per_entry) = (input.uint()?, input.double()?);
            let (bits, n2) = if encoding >= 1 {
                (input.uint()?, input.uint()?)
            } else {
                ((entries as f64 * bits_per_entry) as u64, 0)
            };
            let array = input.bytes(<[u8]>::to_vec)?;
            links.push(Link {
                entries,
                error,
                hashes,
                bits_per_entry,
                bits,
                n2,
                bytes: array.len() as u64,
                items: input.uint()?,
            });
            arrays.push(array);
        }
        let chain = Chain {
            options,
            growth,
            links,
        };
        let chain = chain.check().ok().filter(|chain| chain.items() == items)?;
        Some((ForeignShape::Chain(chain), arrays))
    }

    fn rewrite(filter: &BloomFilter, out: &mut AofWriter<'_>) {
        if let Some(foreign) = &filter.foreign {
            rewrite(foreign, c"BF.LOADCHUNK", out);
        }
    }
}

/// The format of cuckoo filters.
pub(super) struct RedisBloomTables;

impl ForeignFormat for RedisBloomTables {
    type Kind = Cuckoo;
    const ENCODING: c_int = tables::ENCODING;

    fn native() -> &'static NativeType<CuckooFilter> {
        &cuckoo::REDISBLOOM
    }

    fn save(layers: &ForeignLayers, out: &mut RdbWriter<'_>) {
        let ForeignShape::Tables(tables) = &layers.shape else {
            return;
        };
        if tables.hashing == Hashing::Bits32 {
            out.uint(0);
        }
        out.uint(tables.tables.len() as u64);
        for number in [tables.buckets, tables.items, tables.deleted] {
            out.uint(number);
        }
        if tables.hashing == Hashing::Bits32 {
            for index in 0..tables.tables.len() {
                out.bytes(&layers.array(index));
            }
            return;
        }
        for number in [tables.bucket_size, tables.max_iterations, tables.expansion] {
            out.uint(number);
        }
        for (index, buckets) in tables.tables.iter().enumerate() {
            out.uint(*buckets);
            out.bytes(&layers.array(index));
        }
    }

    fn load(input: &mut RdbReader<'_>, encoding: c_int) -> Option<ForeignParts> {
        if encoding < tables::ENCODING_32 {
            return None;
        }
        let count = input.uint()?;
        let is_marked = encoding == tables::ENCODING && count == 0;
        if encoding == tables::ENCODING_32 || is_marked {
            let count = if is_marked { input.uint()? } else { count };
            let (buckets, items) = (input.uint()?, input.uint()?);
            let deleted = if is_marked { input.uint()? } else { 0 };
            let tables = Tables::of_32_bits(count, buckets, items, deleted).ok()?;
            let arrays = (0..count).map(|_| input.bytes(<[u8]>::to_vec));
            let arrays = arrays.collect::<Option<Vec<_>>>()?;
            return Some((ForeignShape::Tables(tables), arrays));
        }
        let (buckets, items, deleted) = (input.uint()?, input.uint()?, input.uint()?);
        let (bucket_size, max_iterations) = (input.uint()?, input.uint()?);
        let expansion = input.uint()?;
        let (mut each, mut arrays) = (Vec::new(), Vec::new());
        for _ in 0..count {
            each.push(input.uint()?);
            arrays.push(input.bytes(<[u8]>::to_vec)?);
        }
        let tables = Tables {
            buckets,
            items,
            deleted,
            bucket_size,
            max_iterations,
            expansion,
            tables: each,
            hashing: Hashing::Bits64,
        };
        Some((ForeignShape::Tables(tables.check().ok()?), arrays))
    }

    fn rewrite(filter: &CuckooFilter, out: &mut AofWriter<'_>) {
        if let Some(foreign) = &filter.foreign {
            rewrite(foreign, c"CF.LOADCHUNK", out);
        }
    }
}

/// The other types of RedisBloom. They are registered so that the log can name a key that cannot be loaded.
static SKETCHES: [NativeType<()>; 3] = [
    NativeType::new("TopK-TYPE"),
    NativeType::new("CMSk-TYPE"),
    NativeType::new("TDIS-TYPE"),
];

/// What they are.
const SKETCH_NAMES: [&str; 3] = ["top-k list", "count-min sketch", "t-digest"];

/// The callbacks of one of them.
pub(super) struct Sketch<const INDEX: usize>;

impl<const INDEX: usize> Native for Sketch<INDEX> {
    type Value = ();
    const ENCODING: c_int = 1023; // the highest: any version is named in the log

    fn native() -> &'static NativeType<()> {
        &SKETCHES[INDEX]
    }

    fn save(_value: &(), _out: &mut RdbWriter<'_>) {}

    fn load(input: &mut RdbReader<'_>, _encoding: c_int) -> Option<()> {
        let key = input.key().map(|(_, key)| key.escape_ascii().to_string());
        let line = format!(
            "cannot load the {} of RedisBloom at key \"{}\": Sluice has Bloom and cuckoo filters only",
            SKETCH_NAMES[INDEX],
            key.unwrap_or_default()
        );
        input.warn(&line);
        None
    }

    fn rewrite(_value: &(), _out: &mut AofWriter<'_>) {}
    fn digest(_value: &(), _digest: &mut Digest<'_>) {}
    fn memory(_value: &()) -> usize {
        0
    }
    fn free_effort(_value: &()) -> usize {
        1
    }
    fn copy(_value: &()) -> Option<()> {
        None
    }
    fn unlinked(_value: &(), _db: i32, _key: &[u8]) {}
    fn defrag(_value: &mut (), _relocate: &mut Relocate<'_>, _from: usize) -> Option<usize> {
        None
    }
}
