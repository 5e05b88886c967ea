//! The data types of RedisBloom: Bloom and cuckoo filters in its own format, and the names of its other types.

use super::foreign::{ForeignFormat, ForeignParts};
use super::{Filters, key_name};
use crate::bloom;
use crate::bloom::state::{Bloom, BloomFilter};
use crate::cuckoo;
use crate::cuckoo::state::{Cuckoo, CuckooFilter};
use crate::filter::foreign::chain::{self, Chain, Link};
use crate::filter::foreign::tables::{self, Hashing, Tables};
use crate::filter::foreign::{ForeignLayers, ForeignShape};
use crate::filter::persist;
use crate::filter::state::{Filter, FilterKind};
use crate::server::handles::io::{AofWriter, Digest, RdbReader, RdbWriter};
use crate::server::services::native::{Native, NativeType, Relocate};
use std::ffi::{CStr, c_int};

/// Writes the chunks of `SCANDUMP`, as RedisBloom does, or the commands of Sluice for a filter without such chunks.
fn rewrite<K: FilterKind>(filter: &Filter<K>, command: &CStr, out: &mut AofWriter<'_>) {
    let foreign = filter.foreign.as_ref();
    let foreign = foreign.and_then(|foreign| Some((foreign, foreign.dump()?)));
    let Some((foreign, header)) = foreign else {
        return Filters::<K>::rewrite(filter, out);
    };
    out.command_with(command, b"1", &header);
    for (end, piece) in foreign.chunks(persist::MAX_CHUNK_BYTES) {
        out.command_with(command, (end + 1).to_string().as_bytes(), &piece);
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
        rewrite(filter, c"BF.LOADCHUNK", out);
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
        let is_marked = tables.hashing == Hashing::Bits32;
        let count = tables.tables.len() as u64;
        out.uint(if is_marked { 0 } else { count });
        for number in [tables.buckets, tables.items, tables.deleted] {
            out.uint(number);
        }
        for number in [tables.bucket_size, tables.max_iterations, tables.expansion] {
            out.uint(number);
        }
        if is_marked {
            out.uint(count);
        }
        for (index, buckets) in tables.tables.iter().enumerate() {
            if !is_marked {
                out.uint(*buckets);
            }
            out.bytes(&layers.array(index));
        }
    }

    fn load(input: &mut RdbReader<'_>, encoding: c_int) -> Option<ForeignParts> {
        if encoding < tables::ENCODING_32 {
            return None;
        }
        let count = input.uint()?;
        let (buckets, items) = (input.uint()?, input.uint()?);
        if encoding == tables::ENCODING_32 {
            return load_tables_of_32_bits(input, count, buckets, items, 0);
        }
        let deleted = input.uint()?;
        let (bucket_size, max_iterations) = (input.uint()?, input.uint()?);
        let expansion = input.uint()?;
        if count == 0 {
            let count = input.uint()?;
            return load_tables_of_32_bits(input, count, buckets, items, deleted);
        }
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
        rewrite(filter, c"CF.LOADCHUNK", out);
    }
}

/// Reads the arrays of a filter of RedisBloom 1.1 or 2.0. `None`: the input is invalid.
fn load_tables_of_32_bits(
    input: &mut RdbReader<'_>,
    count: u64,
    buckets: u64,
    items: u64,
    deleted: u64,
) -> Option<ForeignParts> {
    let tables = Tables::of_32_bits(count, buckets, items, deleted).ok()?;
    let arrays = (0..count).map(|_| input.bytes(<[u8]>::to_vec));
    let arrays = arrays.collect::<Option<_>>()?;
    Some((ForeignShape::Tables(tables), arrays))
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
        let line = format!(
            "cannot load the {} of RedisBloom at key {}: Sluice has Bloom and cuckoo filters only",
            SKETCH_NAMES[INDEX],
            key_name(input)
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
