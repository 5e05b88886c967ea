//! The native type: how limits are saved, copied and measured.

use super::gcra::Bucket;
use super::persist;
use super::state::Limit;
use crate::memory::block_size;
use crate::server::context::Ctx;
use crate::server::io::{AofWriter, Digest, RdbReader, RdbWriter};
use crate::server::native::{Native, NativeType, Relocate, register};
use std::ffi::c_int;

/// A limit at a key.
#[derive(Debug)]
pub struct Kept {
    /// The limit.
    pub limit: Limit,
    /// The expiry of the key (Unix ms), as far as it was set here. 0: it was not. Not part of the dataset.
    pub expires: u64,
}

impl From<Limit> for Kept {
    fn from(limit: Limit) -> Self {
        Self { limit, expires: 0 }
    }
}

/// Limits in the keyspace.
pub static RATE: NativeType<Kept> = NativeType::new("sluice-ra");

/// What registers it.
pub const TYPES: &[fn(Ctx<'_>) -> bool] = &[register::<Limits>];

struct Limits;

impl Native for Limits {
    type Value = Kept;
    const ENCODING: c_int = 0;

    fn native() -> &'static NativeType<Kept> {
        &RATE
    }

    fn save(kept: &Kept, out: &mut RdbWriter<'_>) {
        let mut bytes = Vec::new();
        persist::put(&mut bytes, &kept.limit);
        out.bytes(&bytes);
    }

    fn load(input: &mut RdbReader<'_>, _encoding: c_int) -> Option<Kept> {
        Some(input.bytes(persist::read)?.ok()?.into())
    }

    fn rewrite(kept: &Kept, out: &mut AofWriter<'_>) {
        let mut effect = Vec::new();
        persist::put_effect(&mut effect, &kept.limit, 0); // the server writes the expiry
        out.command(c"RATE.APPLY", &effect);
    }

    fn digest(kept: &Kept, digest: &mut Digest<'_>) {
        let mut element = Vec::new();
        persist::put(&mut element, &kept.limit);
        digest.element(&element);
    }

    fn memory(kept: &Kept) -> usize {
        match &kept.limit {
            Limit::Tiers(buckets) => block_size(size_of::<Bucket>() * buckets.len()),
            _ => 0,
        }
    }

    fn free_effort(_kept: &Kept) -> usize {
        1
    }

    fn copy(kept: &Kept) -> Option<Kept> {
        Some(kept.limit.clone().into())
    }

    fn unlinked(_kept: &Kept, _db: i32, _key: &[u8]) {}

    fn defrag(_kept: &mut Kept, _relocate: &mut Relocate<'_>, _from: usize) -> Option<usize> {
        None // the tiers are small, and few have any
    }
}
