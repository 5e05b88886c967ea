//! The data type of valkey-bloom: Bloom filters in its own format.

use super::{Filters, build_foreign};
use crate::bloom;
use crate::bloom::state::{Bloom, BloomFilter};
use crate::filter::foreign::ForeignShape;
use crate::filter::foreign::sip_chain::{self, BITMAP_HEADER_BYTES, SipChain, SipLink};
use crate::server::handles::io::{AofWriter, Digest, RdbReader, RdbWriter};
use crate::server::services::native::{Native, NativeType, Relocate};
use std::ffi::c_int;

/// The callbacks of Bloom filters.
pub(super) struct ValkeyBloomChains;

impl Native for ValkeyBloomChains {
    type Value = BloomFilter;
    const ENCODING: c_int = sip_chain::ENCODING;

    fn native() -> &'static NativeType<BloomFilter> {
        &bloom::VALKEY_BLOOM
    }

    fn save(filter: &BloomFilter, out: &mut RdbWriter<'_>) {
        let Some(foreign) = &filter.foreign else {
            return;
        };
        let ForeignShape::SipChain(chain) = &foreign.shape else {
            return;
        };
        out.uint(chain.links.len() as u64);
        out.uint(chain.expansion);
        out.double(chain.error);
        out.double(chain.tightening);
        out.uint(chain.is_seed_random.into());
        for (index, link) in chain.links.iter().enumerate() {
            let mut bitmap = chain.bitmap_header(link);
            bitmap.extend(foreign.array(index));
            out.bytes(&bitmap);
            out.uint(link.capacity);
        }
        out.uint(chain.last_items);
    }

    fn load(input: &mut RdbReader<'_>, encoding: c_int) -> Option<BloomFilter> {
        if encoding < sip_chain::ENCODING {
            input.warn("a Bloom filter of a valkey-bloom before 1.0 was not loaded");
            return None;
        }
        let (count, expansion) = (input.uint()?, input.uint()?);
        let (error, tightening) = (input.double()?, input.double()?);
        let is_seed_random = input.uint()? == 1;
        let (mut links, mut arrays, mut seeds) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..count {
            let mut bitmap = input.bytes(<[u8]>::to_vec)?;
            let (link, seed) = SipLink::read(&bitmap, input.uint()?).ok()?;
            links.push(link);
            seeds.push(seed);
            arrays.push(bitmap.split_off(BITMAP_HEADER_BYTES));
        }
        let last_items = input.uint()?;
        let seed = *seeds
            .first()
            .filter(|first| seeds.iter().all(|seed| seed == *first))?;
        let chain = SipChain {
            expansion,
            error,
            tightening,
            is_seed_random,
            seed,
            links,
            last_items,
        };
        build_foreign::<Bloom>(input, ForeignShape::SipChain(chain.check().ok()?), &arrays)
    }

    /// valkey-bloom's own command for this, `BF.LOAD`, is not one of Sluice.
    fn rewrite(filter: &BloomFilter, out: &mut AofWriter<'_>) {
        Filters::<Bloom>::rewrite(filter, out);
    }

    fn digest(filter: &BloomFilter, digest: &mut Digest<'_>) {
        Filters::<Bloom>::digest(filter, digest);
    }

    fn memory(filter: &BloomFilter) -> usize {
        filter.memory()
    }

    fn free_effort(filter: &BloomFilter) -> usize {
        Filters::<Bloom>::free_effort(filter)
    }

    fn copy(filter: &BloomFilter) -> Option<BloomFilter> {
        Filters::<Bloom>::copy(filter)
    }

    fn unlinked(_filter: &BloomFilter, _db: i32, _key: &[u8]) {}

    fn defrag(filter: &mut BloomFilter, relocate: &mut Relocate<'_>, from: usize) -> Option<usize> {
        Filters::<Bloom>::defrag(filter, relocate, from)
    }
}
