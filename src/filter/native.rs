//! The native types: how filters are saved, copied, measured and moved.

use super::edit::{Limits, build};
use super::persist;
use super::state::{Filter, Kind};
use crate::server::context::Ctx;
use crate::server::io::{AofWriter, Digest, RdbReader, RdbWriter};
use crate::server::lines::is_zero;
use crate::server::native::{self, Native, NativeType, Relocate};
use std::ffi::c_int;
use std::marker::PhantomData;
use xxhash_rust::xxh3::xxh3_128;

/// Registers a kind of filter.
pub fn register<K: Kind>(ctx: Ctx<'_>) -> bool {
    native::register::<Filters<K>>(ctx)
}

struct Filters<K>(PhantomData<K>);

/// Filters of so many segments are freed in the background: as the server counts elements.
const EFFORT: usize = 64;

impl<K: Kind> Native for Filters<K> {
    type Value = Filter<K>;
    const ENCODING: c_int = 0;

    fn native() -> &'static NativeType<Filter<K>> {
        K::native()
    }

    fn save(filter: &Filter<K>, out: &mut RdbWriter<'_>) {
        let mut bytes = Vec::new();
        persist::put_head(&mut bytes, &persist::head_of(filter));
        out.bytes(&bytes);
        for (position, segment) in persist::used_segments(filter) {
            bytes.clear();
            bytes.extend(position.to_le_bytes());
            persist::put_piece(&mut bytes, filter.seed, position, segment);
            out.bytes(&bytes);
        }
        out.bytes(b"");
    }

    fn load(input: &mut RdbReader<'_>, _encoding: c_int) -> Option<Filter<K>> {
        let limits = if input.is_for_client() {
            Limits::Hold
        } else {
            Limits::Waived
        };
        let head = input.bytes(persist::read_head)?.ok()?;
        let mut filter = build(head, limits).ok()?;
        loop {
            let loaded = input.bytes(|piece| match piece.split_first_chunk() {
                Some((position, piece)) => {
                    let position = u64::from_le_bytes(*position);
                    persist::load_piece(&mut filter, position, piece).map(|()| true)
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
        persist::put_head(&mut element, &persist::head_of(filter));
        digest.element(&element);
        for (position, segment) in persist::segments(filter) {
            if !is_zero(segment) {
                element.clear();
                element.extend(position.to_le_bytes());
                element.extend(xxh3_128(segment).to_le_bytes());
                digest.element(&element);
            }
        }
    }

    fn memory(filter: &Filter<K>) -> usize {
        filter.memory()
    }

    fn free_effort(filter: &Filter<K>) -> usize {
        let segments = filter.layers.iter().map(|layer| layer.lines.segments());
        segments.sum::<usize>() * EFFORT
    }

    fn copy(filter: &Filter<K>) -> Option<Filter<K>> {
        filter.try_clone()
    }

    fn unlinked(_filter: &Filter<K>, _db: i32, _key: &[u8]) {}

    fn defrag(filter: &mut Filter<K>, relocate: &mut Relocate<'_>, from: usize) -> Option<usize> {
        let mut part = 0;
        for layer in &mut filter.layers {
            for segment in 0..layer.lines.segments() {
                part += 1;
                if part <= from {
                    continue;
                }
                layer.lines.relocate(segment, relocate);
                if relocate.should_stop() {
                    return Some(part);
                }
            }
        }
        None
    }
}
