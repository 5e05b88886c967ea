//! The native types: how filters are saved, copied, measured and moved.

use super::FOREIGN;
use super::edit::{MemoryLimits, build};
use super::persist;
use super::state::{Filter, FilterKind};
use crate::error::Error;
use crate::server::handles::context::Ctx;
use crate::server::handles::io::{AofWriter, Digest, RdbReader, RdbWriter};
use crate::server::handles::log;
use crate::server::services::memory;
use crate::server::services::native::{self, Native, NativeType, Relocate};
use std::ffi::c_int;
use std::marker::PhantomData;
use xxhash_rust::xxh3::xxh3_128;

mod foreign;
mod redisbloom;
mod valkeybloom;

use foreign::ForeignFilters;
use redisbloom::{RedisBloomChains, RedisBloomTables, Sketch};
use valkeybloom::ValkeyBloomChains;

/// The name of the key whose value is loaded, quoted for the log.
fn key_name(input: &RdbReader<'_>) -> String {
    input
        .key()
        .map_or_else(String::new, |(_, key)| log::quoted(key))
}

/// Writes to the log why a valid filter was not loaded.
fn warn_of_refusal(input: &RdbReader<'_>, error: &Error) {
    let key = key_name(input);
    input.warn(&format!(
        "the filter at key {key} was not restored: {error}"
    ));
}

/// Registers a kind of filter.
pub fn register<K: FilterKind>(ctx: Ctx<'_>) -> bool {
    native::register::<Filters<K>>(ctx)
}

/// Registers the types of RedisBloom and valkey-bloom, unless another module has them.
pub fn register_foreign(ctx: Ctx<'_>) -> bool {
    if FOREIGN.get() {
        native::try_register::<ForeignFilters<RedisBloomChains>>(ctx);
        native::try_register::<ForeignFilters<RedisBloomTables>>(ctx);
        native::try_register::<ForeignFilters<ValkeyBloomChains>>(ctx);
        native::try_register::<Sketch<0>>(ctx);
        native::try_register::<Sketch<1>>(ctx);
        native::try_register::<Sketch<2>>(ctx);
    }
    true
}

struct Filters<K>(PhantomData<K>);

/// Freeing this many bytes costs as much as freeing one element of a built-in type.
const BYTES_PER_EFFORT: u64 = 16 * 1024;

impl<K: FilterKind> Native for Filters<K> {
    type Value = Filter<K>;
    const ENCODING: c_int = 0;

    fn native() -> &'static NativeType<Filter<K>> {
        K::native()
    }

    fn save(filter: &Filter<K>, out: &mut RdbWriter<'_>) {
        let mut bytes = Vec::new();
        persist::put_header(&mut bytes, &persist::header_of(filter));
        out.bytes(&bytes);
        for (position, piece) in persist::used_pieces(filter) {
            bytes.clear();
            bytes.extend(position.to_le_bytes());
            persist::put_piece(&mut bytes, filter.seed, position, piece);
            out.bytes(&bytes);
        }
        out.bytes(b"");
    }

    fn load(input: &mut RdbReader<'_>, _encoding: c_int) -> Option<Filter<K>> {
        let limits = if input.is_for_client() {
            MemoryLimits::Hold
        } else {
            MemoryLimits::Waived
        };
        let header = input.bytes(persist::read_header)?.ok()?;
        let refused = |error: &Error| warn_of_refusal(input, error);
        let mut filter = build(header, limits).inspect_err(refused).ok()?;
        loop {
            let loaded = input.bytes(|piece| match piece.split_first_chunk() {
                Some((position, piece)) => {
                    let position = u64::from_le_bytes(*position);
                    persist::load_piece(&mut filter, position, piece).map(|_| true)
                }
                None if piece.is_empty() => Ok(false),
                None => Err(crate::codec::Corrupt),
            });
            if !loaded?.ok()? {
                return Some(filter);
            }
        }
    }

    fn rewrite(filter: &Filter<K>, out: &mut AofWriter<'_>) {
        persist::pieces(filter, &mut |piece| out.command(K::APPLY, piece));
    }

    fn digest(filter: &Filter<K>, digest: &mut Digest<'_>) {
        let mut element = Vec::new();
        persist::put_header(&mut element, &persist::header_of(filter));
        digest.element(&element);
        for (position, piece) in persist::used_pieces(filter) {
            element.clear();
            element.extend(position.to_le_bytes());
            element.extend(xxh3_128(piece).to_le_bytes());
            digest.element(&element);
        }
    }

    fn memory(filter: &Filter<K>) -> usize {
        filter.memory()
    }

    fn free_effort(filter: &Filter<K>) -> usize {
        (filter.size() / BYTES_PER_EFFORT) as usize
    }

    fn copy(filter: &Filter<K>) -> Option<Filter<K>> {
        let follows = memory::is_following();
        let room = if follows {
            Ok(())
        } else {
            memory::check_room(filter.size() as usize)
        };
        room.ok()?;
        filter.try_clone()
    }

    fn unlinked(_filter: &Filter<K>, _db: i32, _key: &[u8]) {}

    fn defrag(filter: &mut Filter<K>, relocate: &mut Relocate<'_>, from: usize) -> Option<usize> {
        let mut part = 0;
        for lines in filter.arrays_mut() {
            for segment in 0..lines.segments() {
                part += 1;
                if part <= from {
                    continue;
                }
                lines.relocate(segment, relocate);
                if relocate.should_stop() {
                    return Some(part);
                }
            }
        }
        None
    }
}
