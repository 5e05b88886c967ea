//! How filters of another module are saved and loaded in its format. Everything else is the same as for Sluice's own filters.

use super::{Filters, warn_of_refusal};
use crate::error::Error;
use crate::filter::edit::{MemoryLimits, build};
use crate::filter::foreign::{ForeignLayers, ForeignShape};
use crate::filter::state::{Filter, FilterHeader, FilterKind};
use crate::server::handles::io::{AofWriter, Digest, RdbReader, RdbWriter};
use crate::server::services::native::{Native, NativeType, Relocate};
use std::ffi::c_int;
use std::marker::PhantomData;

/// The numbers of a filter, and its arrays.
pub(super) type ForeignParts = (ForeignShape, Vec<Vec<u8>>);

/// A format of another module.
pub(super) trait ForeignFormat: 'static {
    /// The kind of filter.
    type Kind: FilterKind;

    /// The encoding version in RDB files.
    const ENCODING: c_int;

    /// The registration of the type.
    fn native() -> &'static NativeType<Filter<Self::Kind>>;

    /// Writes a filter to RDB or `DUMP`.
    fn save(layers: &ForeignLayers, out: &mut RdbWriter<'_>);

    /// Reads a filter from RDB or `RESTORE`. `None`: the input is invalid.
    fn load(input: &mut RdbReader<'_>, encoding: c_int) -> Option<ForeignParts>;

    /// Writes the commands that rebuild a filter.
    fn rewrite(filter: &Filter<Self::Kind>, out: &mut AofWriter<'_>) {
        Filters::<Self::Kind>::rewrite(filter, out);
    }
}

/// The callbacks of filters in a format of another module.
pub(super) struct ForeignFilters<F>(PhantomData<F>);

impl<F: ForeignFormat> Native for ForeignFilters<F> {
    type Value = Filter<F::Kind>;
    const ENCODING: c_int = F::ENCODING;

    fn native() -> &'static NativeType<Self::Value> {
        F::native()
    }

    fn save(filter: &Self::Value, out: &mut RdbWriter<'_>) {
        if let Some(layers) = &filter.foreign {
            F::save(layers, out);
        }
    }

    fn load(input: &mut RdbReader<'_>, encoding: c_int) -> Option<Self::Value> {
        let (shape, arrays) = F::load(input, encoding)?;
        build_from(input, shape, &arrays)
    }

    fn rewrite(filter: &Self::Value, out: &mut AofWriter<'_>) {
        F::rewrite(filter, out);
    }

    fn digest(filter: &Self::Value, digest: &mut Digest<'_>) {
        Filters::<F::Kind>::digest(filter, digest);
    }

    fn memory(filter: &Self::Value) -> usize {
        Filters::<F::Kind>::memory(filter)
    }

    fn free_effort(filter: &Self::Value) -> usize {
        Filters::<F::Kind>::free_effort(filter)
    }

    fn copy(filter: &Self::Value) -> Option<Self::Value> {
        Filters::<F::Kind>::copy(filter)
    }

    fn unlinked(filter: &Self::Value, db: i32, key: &[u8]) {
        Filters::<F::Kind>::unlinked(filter, db, key);
    }

    fn defrag(filter: &mut Self::Value, relocate: &mut Relocate<'_>, from: usize) -> Option<usize> {
        Filters::<F::Kind>::defrag(filter, relocate, from)
    }
}

/// Allocates the filter with these numbers and arrays. `None`: it is invalid, or there is no memory.
fn build_from<K: FilterKind>(
    input: &RdbReader<'_>,
    shape: ForeignShape,
    arrays: &[Vec<u8>],
) -> Option<Filter<K>> {
    let limits = if input.is_for_client() {
        MemoryLimits::Hold
    } else {
        MemoryLimits::Waived
    };
    let sizes = arrays.iter().map(|array| array.len() as u64);
    let may_be_inconsistent = limits == MemoryLimits::Waived;
    if !sizes.eq(shape.sizes()) || !(may_be_inconsistent || shape.is_consistent()) {
        return None;
    }
    let refused = |error: &Error| warn_of_refusal(input, error);
    let header = FilterHeader::of_foreign(shape).ok()?;
    let mut filter = build(header, limits).inspect_err(refused).ok()?;
    let foreign = filter.foreign.as_mut()?;
    for (index, array) in arrays.iter().enumerate() {
        foreign.set_array(index, array).ok()?;
    }
    Some(filter)
}
