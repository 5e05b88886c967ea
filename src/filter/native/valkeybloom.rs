//! The data type of valkey-bloom: Bloom filters in its own format. An AOF of commands has Sluice's own, because valkey-bloom's
//! `BF.LOAD` is not one of Sluice's commands.

use super::foreign::{ForeignFormat, ForeignParts};
use super::key_name;
use crate::bloom;
use crate::bloom::state::{Bloom, BloomFilter};
use crate::filter::foreign::sip_chain::{self, BITMAP_HEADER_BYTES, SipChain, SipLink};
use crate::filter::foreign::{ForeignLayers, ForeignShape};
use crate::server::handles::io::{RdbReader, RdbWriter};
use crate::server::services::native::NativeType;
use std::ffi::c_int;

/// The format of Bloom filters.
pub(super) struct ValkeyBloomChains;

impl ForeignFormat for ValkeyBloomChains {
    type Kind = Bloom;
    const ENCODING: c_int = sip_chain::ENCODING;

    fn native() -> &'static NativeType<BloomFilter> {
        &bloom::VALKEY_BLOOM
    }

    fn save(layers: &ForeignLayers, out: &mut RdbWriter<'_>) {
        let ForeignShape::SipChain(chain) = &layers.shape else {
            return;
        };
        out.uint(chain.links.len() as u64);
        out.uint(chain.expansion);
        out.double(chain.error);
        out.double(chain.tightening);
        out.uint(chain.is_seed_random.into());
        for (index, link) in chain.links.iter().enumerate() {
            let mut bitmap = chain.bitmap_header(link);
            bitmap.extend(layers.array(index));
            out.bytes(&bitmap);
            out.uint(link.capacity);
        }
        out.uint(chain.last_items);
    }

    fn load(input: &mut RdbReader<'_>, encoding: c_int) -> Option<ForeignParts> {
        if encoding < sip_chain::ENCODING {
            let key = key_name(input);
            input.warn(&format!(
                "cannot load the Bloom filter at key {key}: its valkey-bloom is older than 1.0"
            ));
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
        Some((ForeignShape::SipChain(chain.check().ok()?), arrays))
    }
}
