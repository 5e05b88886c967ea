//! The encoding of filters for replicas, AOF, RDB and dumps.
//!
//! ```text
//! header   = letter version(1) [foreign] seed(8 bytes) parameters deleted layers (shape items)* check
//!                                              with foreign layers, the letter is a small one
//! foreign  = original(0 or 1) numbers          see [`ForeignShape::put`]
//! piece    = data check                        bytes of the filter from a position on
//! check    = XXH3-64 of all bytes before it, 8 bytes; for a piece, with the seed and the position
//!
//! effects  = effect*                           to the end of the input
//! effect   = 'H' header                        this filter, all of whose bytes are zero, replaces the value
//!          | 'P' position piece                bytes to add at this position
//!          | 'L' shape                         a layer is added
//!          | 'A' hash(16 bytes)                an item is added
//!          | 'O' seed(8 bytes) parameters      the foreign filter becomes one of Sluice
//!          | 'D' item                          an item of a foreign layer is deleted
//!
//! RDB      = header, then byte strings of position(8 bytes) piece, then an empty byte string
//! SCANDUMP = [1, header], then [end + 1, piece] for each piece, then [0, ""]
//! parameters of a Bloom filter: error(8 bytes) capacity expansion(0: the filter does not grow)
//!          of a cuckoo filter: capacity bucket-size width max-iterations expansion base
//! shape    of a Bloom filter: capacity blocks probes
//!          of a cuckoo filter: log2 of the size of the layer divided by the size of the first layer
//! ```
//!
//! The bytes of a filter are those of its layers, one after the other. A piece whose bytes are all zero is omitted.
//! [`crate::codec`] defines byte strings, and integers without a given length. Numbers of fixed length are little-endian.

use super::foreign::{ForeignHeader, ForeignShape};
use super::hash::Hash;
use super::state::{Filter, FilterHeader, FilterKind, MAX_ITEMS};
use crate::codec::{Corrupt, Reader, put_bytes, put_uint};
use crate::server::services::cache_lines::{CacheLines, LINE_BYTES, is_zero};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The version of the encoding.
pub const VERSION: u8 = 1;

const CHECK_BYTES: usize = 8;

/// The most bytes of a piece in RDB and AOF.
const PIECE_BYTES: usize = 256 * 1024;

/// The most bytes of a chunk in the reply of `SCANDUMP`, with the check.
pub const MAX_CHUNK_BYTES: usize = 16 << 20;

/// Appends the header of a filter.
pub fn put_header<K: FilterKind>(out: &mut Vec<u8>, header: &FilterHeader<K>) {
    let start = out.len();
    match &header.foreign {
        None => out.extend([K::LETTER, VERSION]),
        Some(foreign) => {
            out.extend([K::LETTER.to_ascii_lowercase(), VERSION]);
            out.push(foreign.is_original.into());
            foreign.shape.put(out);
        }
    }
    out.extend(header.seed.to_le_bytes());
    K::put_parameters(&header.parameters, out);
    put_uint(out, header.deleted);
    put_uint(out, header.layers.len() as u64);
    for (shape, items) in &header.layers {
        K::put_shape(shape, out);
        put_uint(out, *items);
    }
    let check = xxh3_64(&out[start..]);
    out.extend(check.to_le_bytes());
}

/// Reads a header. Error: the check is wrong, a value is out of range, or the values contradict each other.
pub fn read_header<K: FilterKind>(input: &[u8]) -> Result<FilterHeader<K>, Corrupt> {
    let (body, check) = input.split_last_chunk().ok_or(Corrupt)?;
    if xxh3_64(body) != u64::from_le_bytes(*check) {
        return Err(Corrupt);
    }
    let mut reader = Reader::new(body);
    let letter = reader.byte()?;
    if letter.to_ascii_uppercase() != K::LETTER || reader.byte()? != VERSION {
        return Err(Corrupt);
    }
    let foreign = if letter == K::LETTER {
        None
    } else {
        let is_original = reader.uint(0, 1)? == 1;
        let shape = ForeignShape::read(&mut reader)?;
        K::parameters_on(&shape).ok_or(Corrupt)?;
        Some(ForeignHeader { shape, is_original })
    };
    let seed = u64::from_le_bytes(reader.array()?);
    let parameters = K::read_parameters(&mut reader)?;
    let deleted = reader.uint(0, MAX_ITEMS)?;
    let least = foreign.is_none().into();
    let is_original = foreign.as_ref().is_some_and(|foreign| foreign.is_original);
    let most = if is_original { 0 } else { K::MAX_LAYERS };
    let count = reader.uint(least, most)?;
    let mut layers: Vec<(K::LayerShape, u64)> = Vec::new();
    let mut room = MAX_ITEMS;
    for _ in 0..count {
        let below = layers.last().map(|(shape, _)| shape);
        let shape = K::read_shape(&mut reader, &parameters, below)?;
        let items = reader.uint(0, K::most_items(&parameters, &shape).min(room))?;
        room -= items;
        layers.push((shape, items));
    }
    let header = FilterHeader {
        seed,
        parameters,
        layers,
        deleted,
        foreign,
    };
    if reader.is_empty() {
        Ok(header)
    } else {
        Err(Corrupt)
    }
}

/// The header of a filter. Numbers of items above the limits of [`read_header`] are reduced to them, so that every header can be
/// read.
pub fn header_of<K: FilterKind>(filter: &Filter<K>) -> FilterHeader<K> {
    let mut room = MAX_ITEMS;
    let layers = filter.layers.iter().map(|layer| {
        let most = K::most_items(&filter.parameters, &layer.shape).min(room);
        let items = layer.items.min(most);
        room -= items;
        (layer.shape, items)
    });
    FilterHeader {
        seed: filter.seed,
        parameters: filter.parameters.clone(),
        layers: layers.collect(),
        deleted: filter.deleted.min(MAX_ITEMS),
        foreign: filter.foreign.as_ref().map(|foreign| foreign.header()),
    }
}

/// The pieces of a filter that are not all zeros, each with its position.
pub fn used_pieces<K: FilterKind>(filter: &Filter<K>) -> impl Iterator<Item = (u64, &[u8])> {
    let mut position = 0;
    let segments = filter
        .arrays()
        .flat_map(|lines| (0..lines.segments()).map(|at| lines.segment(at)));
    let pieces = segments.flat_map(|segment| segment.chunks(PIECE_BYTES));
    let pieces = pieces.map(move |piece| {
        let start = position;
        position += piece.len() as u64;
        (start, piece)
    });
    pieces.filter(|(_, piece)| !is_zero(piece))
}

/// The next piece from a position on, of at most [`MAX_CHUNK_BYTES`] bytes, and its end. `None`: only zeros remain. A piece never spans
/// two layers, so a layer that was added after the header was read has pieces of its own.
pub fn chunk<K: FilterKind>(filter: &Filter<K>, from: u64) -> Option<(u64, Vec<u8>)> {
    let mut start = 0; // the position of the layer
    for lines in filter.arrays() {
        let size = size_of_lines(lines);
        if from < start + size
            && let Some(piece) = chunk_of(lines, from.saturating_sub(start))
        {
            let (at, mut bytes) = piece;
            let end = start + at + bytes.len() as u64;
            put_check(&mut bytes, 0, filter.seed, start + at);
            return Some((end, bytes));
        }
        start += size;
    }
    None
}

/// The next bytes of a layer that are not all zeros, from a position in the layer on.
fn chunk_of(lines: &CacheLines, from: u64) -> Option<(u64, Vec<u8>)> {
    let size = lines.segment_size() as u64;
    let first = (from / size) as usize;
    let pieces = (first..lines.segments()).flat_map(|at| {
        let skipped = if at == first {
            (from % size) as usize
        } else {
            0
        };
        let start = at as u64 * size + skipped as u64;
        let rest = lines.segment(at).get(skipped..).unwrap_or_default();
        let pieces = rest.chunks(PIECE_BYTES).enumerate();
        pieces.map(move |(index, piece)| (start + (index * PIECE_BYTES) as u64, piece))
    });
    let mut rest = pieces.skip_while(|(_, piece)| is_zero(piece));
    let (start, first) = rest.next()?;
    let mut bytes = first.to_vec();
    for (_, piece) in rest {
        if is_zero(piece) || bytes.len() + piece.len() + CHECK_BYTES > MAX_CHUNK_BYTES {
            break;
        }
        bytes.extend(piece);
    }
    Some((start, bytes))
}

fn size_of_lines(lines: &CacheLines) -> u64 {
    (lines.len() * LINE_BYTES) as u64
}

/// The position of a piece that ends at `end`. Error: the piece is too short or too long.
pub fn start_of(piece: &[u8], end: u64) -> Result<u64, Corrupt> {
    let length = piece.len().checked_sub(CHECK_BYTES).ok_or(Corrupt)?;
    end.checked_sub(length as u64).ok_or(Corrupt)
}

/// Appends a piece.
pub fn put_piece(out: &mut Vec<u8>, seed: u64, position: u64, data: &[u8]) {
    let start = out.len();
    out.extend_from_slice(data);
    put_check(out, start, seed, position);
}

fn put_check(out: &mut Vec<u8>, start: usize, seed: u64, position: u64) {
    let check = piece_check(&out[start..], seed, position);
    out.extend(check.to_le_bytes());
}

fn piece_check(data: &[u8], seed: u64, position: u64) -> u64 {
    let distinct = seed ^ position.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    xxh3_64_with_seed(data, distinct)
}

/// Adds a piece to a filter. False: nothing changed, because the filter contains the piece or has no such layer yet. Error: the
/// check shows that the piece is damaged or belongs to another filter.
pub fn load_piece<K: FilterKind>(
    filter: &mut Filter<K>,
    position: u64,
    piece: &[u8],
) -> Result<bool, Corrupt> {
    let (data, check) = piece.split_last_chunk().ok_or(Corrupt)?;
    if piece_check(data, filter.seed, position) != u64::from_le_bytes(*check) {
        return Err(Corrupt);
    }
    let size = filter.size();
    if position >= size {
        return Ok(false);
    }
    if data.len() as u64 > size - position {
        return Err(Corrupt);
    }
    let (mut fits, mut is_new) = (true, false);
    each_part(filter, position, data, |own, loaded| {
        fits &= K::can_overlay(own, loaded);
    });
    if !fits {
        return Err(Corrupt);
    }
    each_part(filter, position, data, |own, loaded| {
        is_new |= K::overlay(own, loaded);
    });
    Ok(is_new)
}

/// Calls `each` with the bytes of a filter from a position on and the bytes of `data`, once per segment of the filter.
fn each_part<K: FilterKind>(
    filter: &mut Filter<K>,
    position: u64,
    mut data: &[u8],
    mut each: impl FnMut(&mut [u8], &[u8]),
) {
    let mut start = 0; // the position of the layer
    for lines in filter.arrays_mut() {
        let size = size_of_lines(lines);
        let from = position.max(start) - start;
        if from < size && !data.is_empty() {
            let segment_size = lines.segment_size() as u64;
            let mut skipped = (from % segment_size) as usize;
            for segment in (from / segment_size) as usize..lines.segments() {
                let own = &mut lines.segment_mut(segment)[std::mem::take(&mut skipped)..];
                let (now, later) = data.split_at(data.len().min(own.len()));
                each(&mut own[..now.len()], now);
                data = later;
                if data.is_empty() {
                    return;
                }
            }
        }
        start += size;
    }
}

/// One change of a filter, as a replica or an AOF receives it.
#[derive(Debug, Clone, PartialEq)]
pub enum FilterEffect<'a, K: FilterKind> {
    /// A new filter replaces the value at the key.
    Header(FilterHeader<K>),
    /// A position in bytes, and a piece to add there.
    Piece(u64, &'a [u8]),
    /// The shape of a new layer.
    Layer(K::LayerShape),
    /// A new item.
    Item(Hash),
    /// The foreign filter becomes one of Sluice, with this seed and these parameters.
    Own(u64, K::Parameters),
    /// An item of a foreign layer is deleted.
    Delete(&'a [u8]),
}

/// Appends [`FilterEffect::Header`].
pub fn put_header_effect<K: FilterKind>(out: &mut Vec<u8>, header: &FilterHeader<K>) {
    let mut bytes = Vec::new();
    put_header(&mut bytes, header);
    out.push(b'H');
    put_bytes(out, &bytes);
}

/// Appends [`FilterEffect::Piece`].
pub fn put_piece_effect(out: &mut Vec<u8>, seed: u64, position: u64, data: &[u8]) {
    out.push(b'P');
    put_uint(out, position);
    put_uint(out, (data.len() + CHECK_BYTES) as u64);
    put_piece(out, seed, position, data);
}

/// Appends [`FilterEffect::Layer`].
pub fn put_layer_effect<K: FilterKind>(out: &mut Vec<u8>, shape: &K::LayerShape) {
    out.push(b'L');
    K::put_shape(shape, out);
}

/// Appends [`FilterEffect::Item`].
pub fn put_item_effect(out: &mut Vec<u8>, hash: Hash) {
    out.push(b'A');
    out.extend(hash.bits().to_le_bytes());
}

/// Appends [`FilterEffect::Own`].
pub fn put_own_effect<K: FilterKind>(out: &mut Vec<u8>, seed: u64, parameters: &K::Parameters) {
    out.push(b'O');
    out.extend(seed.to_le_bytes());
    K::put_parameters(parameters, out);
}

/// Appends [`FilterEffect::Delete`].
pub fn put_delete_effect(out: &mut Vec<u8>, item: &[u8]) {
    out.push(b'D');
    put_bytes(out, item);
}

/// Reads the effects of one command. `filter`: the filter at the key, because the parameters and the last layer of a filter
/// determine the possible shapes of a new layer. Error: any effect is invalid.
pub fn effects<'a, K: FilterKind>(
    input: &'a [u8],
    filter: Option<&Filter<K>>,
) -> Result<Vec<FilterEffect<'a, K>>, Corrupt> {
    let mut last = filter.map(|filter| {
        let layer = filter.layers.last();
        (filter.parameters.clone(), layer.map(|layer| layer.shape))
    });
    let mut layers = filter.map_or(0, |filter| filter.layers.len());
    let mut reader = Reader::new(input);
    let mut effects = Vec::new();
    while !reader.is_empty() {
        let effect = match reader.byte()? {
            b'H' if effects.is_empty() => {
                let header = read_header::<K>(reader.bytes(1, usize::MAX)?)?;
                let shape = header.layers.last().map(|(shape, _)| *shape);
                last = Some((header.parameters.clone(), shape));
                layers = header.layers.len();
                FilterEffect::Header(header)
            }
            b'P' => FilterEffect::Piece(reader.uint(0, u64::MAX)?, reader.bytes(1, usize::MAX)?),
            b'L' => {
                let (parameters, below) = last.as_mut().ok_or(Corrupt)?;
                let shape = K::read_shape(&mut reader, parameters, below.as_ref())?;
                *below = Some(shape);
                layers += 1;
                if layers as u64 > K::MAX_LAYERS {
                    return Err(Corrupt); // such a filter could not be loaded
                }
                FilterEffect::Layer(shape)
            }
            b'A' => FilterEffect::Item(Hash::from_bits(u128::from_le_bytes(reader.array()?))),
            b'O' => {
                let seed = u64::from_le_bytes(reader.array()?);
                let parameters = K::read_parameters(&mut reader)?;
                last = Some((parameters.clone(), None));
                layers = 0;
                FilterEffect::Own(seed, parameters)
            }
            b'D' => FilterEffect::Delete(reader.bytes(0, usize::MAX)?),
            _ => return Err(Corrupt),
        };
        effects.push(effect);
    }
    Ok(effects)
}

/// Passes a whole filter to `write` as byte strings of effects, each of at most about 256 KiB.
pub fn pieces<K: FilterKind>(filter: &Filter<K>, write: &mut dyn FnMut(&[u8])) {
    let mut effect = Vec::new();
    put_header_effect(&mut effect, &header_of(filter));
    write(&effect);
    for (position, piece) in used_pieces(filter) {
        effect.clear();
        put_piece_effect(&mut effect, filter.seed, position, piece);
        write(&effect);
    }
}
