//! RedisBloom's Bloom filter: a chain of classic Bloom filters, its type `MBbloom--`. Layouts as in RedisBloom 1.0 to 8.8, files
//! `src/sb.c`, `src/rebloom.c` and `bloom.c`.
//!
//! ```text
//! RDB      = items count [options] [growth] link*   options from encoding 2 on, growth from encoding 4 on (before: 2)
//! link     = entries error hashes bits-per-entry [bits n2] array items          bits and n2 from encoding 1 on
//! header   = items(8) count(4) options(4) [growth(4)] dumped*      the first chunk of BF.SCANDUMP; growth from 2.2 on
//! dumped   = bytes(8) bits(8) items(8) error(8) bits-per-entry(8) hashes(4) entries(8) n2(1)     before 2.2.1: entries(4)
//! ```
//!
//! In RDB, numbers are the server's unsigned integers and doubles, and an array is one string. In the header, all numbers are
//! little-endian. The other chunks are the arrays one after the other; the iterator minus 1 is the position of a chunk's end.
//!
//! Versions 1.0 and 2.0 round the number of bits up to 2^n2 and write `bits` as 0. Version 1.0 hashes items by 32 bits.
//!
//! The numbers of a link depend on each other, and one that is damaged could make the filter deny its items. The checks accept
//! what the versions write, and refuse all that `bloom_validate_integrity` of RedisBloom 8.8 refuses in their own formats.

use super::murmur::{murmur32, murmur64};
use super::{ArrayBytes, FIXED_SHARE, get_f64, get_u32, get_u64};
use crate::codec::Corrupt;
use crate::filter::state::MAX_ITEMS;

/// The encoding version of the type in RDB files that this module writes: that of RedisBloom 2.2 to 8.8. The module reads all
/// older versions, too.
pub const ENCODING: i32 = 4;

/// The filter does not grow.
const NO_SCALING: u64 = 8;
/// Items are hashed by 64 bits instead of 32.
const FORCE_64: u64 = 4;
/// The number of bits is not rounded up to a power of two.
const NO_ROUNDING: u64 = 1;

/// The options of RedisBloom 1.0, of 2.0, and since 2.2.
const OPTIONS: [u64; 4] = [
    0,
    FORCE_64,
    FORCE_64 | NO_ROUNDING,
    FORCE_64 | NO_ROUNDING | NO_SCALING,
];

/// ln 2 and its square, as RedisBloom writes them: another digit could change a number of hashes.
#[allow(clippy::approx_constant)]
const LN_2: f64 = 0.693147180559945;
const LN_2_SQUARED: f64 = 0.480453013918201;

/// The greatest relative difference between the logarithms of two C libraries is far below this.
const LOGARITHM_TOLERANCE: f64 = 1e-12;

/// The ratio of the entries of two successive links before RedisBloom 2.2.
pub const FORMER_GROWTH: u64 = 2;

/// A layout of the first chunk of `BF.SCANDUMP`.
struct DumpLayout {
    has_growth: bool,
    has_wide_entries: bool,
}

/// The layouts: since RedisBloom 2.2.1, of 2.2.0, and before. The length of a chunk says which it has.
const DUMP_LAYOUTS: [DumpLayout; 3] = [
    DumpLayout {
        has_growth: true,
        has_wide_entries: true,
    },
    DumpLayout {
        has_growth: true,
        has_wide_entries: false,
    },
    DumpLayout {
        has_growth: false,
        has_wide_entries: false,
    },
];

impl DumpLayout {
    const fn fixed_size(&self) -> usize {
        if self.has_growth { 20 } else { 16 }
    }

    const fn link_size(&self) -> usize {
        if self.has_wide_entries { 53 } else { 49 }
    }
}

/// The most links of a chain. A query looks at all of them.
const MAX_LINKS: u64 = 4096;

/// The numbers of a chain.
#[derive(Debug, Clone, PartialEq)]
pub struct Chain {
    /// The options, a bit each.
    pub options: u64,
    /// The ratio of the entries of two successive links.
    pub growth: u64,
    /// The filters, the oldest first.
    pub links: Vec<Link>,
}

/// The numbers of one filter of a chain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// The capacity, in items.
    pub entries: u64,
    /// The false positive rate at this capacity.
    pub error: f64,
    /// The number of bits of an item.
    pub hashes: u64,
    /// The bits per entry.
    pub bits_per_entry: f64,
    /// The bits of the array. 0 with an `n2` above 0: 2^n2.
    pub bits: u64,
    /// Log2 of the number of bits that are in use; 0: all are.
    pub n2: u64,
    /// The bytes of the array.
    pub bytes: u64,
    /// The number of items.
    pub items: u64,
}

impl Link {
    /// Error: no filter of RedisBloom with these options has these numbers.
    fn check(&self, options: u64) -> Result<(), Corrupt> {
        let is_rate = self.error > 0.0 && self.error < 1.0;
        let bits_per_entry = -self.error.ln() / LN_2_SQUARED;
        let difference = (self.bits_per_entry - bits_per_entry).abs();
        let is_for_rate = is_rate && difference <= bits_per_entry * LOGARITHM_TOLERANCE;
        let has_hashes = self.hashes == (LN_2 * self.bits_per_entry).ceil() as u64;
        let fits = self.bytes <= 1 << 53 && self.entries <= MAX_ITEMS;
        let has_items = self.items <= self.entries;
        let is_valid = is_for_rate && has_hashes && fits && has_items && self.has_bits(options);
        is_valid.then_some(()).ok_or(Corrupt)
    }

    /// Whether the array has as many bits as RedisBloom computes with these options. The bytes are at most 2^53.
    fn has_bits(&self, options: u64) -> bool {
        let all = self.bytes * 8;
        let exact = ((self.entries as f64 * self.bits_per_entry) as u64).max(1);
        let (wanted, bits) = match self.n2 {
            0 if options & NO_ROUNDING != 0 => (exact, all), // since RedisBloom 2.2
            0 if options == 0 => (exact, exact),             // before RedisBloom 1.0
            1..=63 if options & NO_ROUNDING == 0 => {
                let is_of_2_0 = self.bits == 0;
                (1 << self.n2, if is_of_2_0 { 0 } else { all })
            }
            _ => return false,
        };
        let fills = |unit| wanted.checked_next_multiple_of(unit) == Some(all);
        // Since RedisBloom 2.2.5, an array has whole words.
        self.bits == bits && (fills(8) || bits == all && fills(64))
    }

    /// The number of bits that are in use.
    fn range(&self) -> u64 {
        match self.n2 {
            0 => self.bits,
            n2 => 1 << n2,
        }
    }

    fn holds(&self, array: ArrayBytes<'_>, (first, second): (u64, u64)) -> bool {
        let range = self.range();
        (0..self.hashes).all(|index| {
            let bit = first.wrapping_add(index.wrapping_mul(second)) % range;
            array.byte(bit / 8) & 1 << (bit % 8) != 0
        })
    }
}

impl Chain {
    /// Error: no chain of RedisBloom has these numbers.
    pub fn check(self) -> Result<Self, Corrupt> {
        let count = self.links.len() as u64;
        let is_valid = (1..=MAX_LINKS).contains(&count)
            && OPTIONS.contains(&self.options)
            && (count == 1 || !self.is_fixed())
            && self.growth <= u64::from(u32::MAX);
        let mut links = self.links.iter();
        links.try_for_each(|link| link.check(self.options))?;
        is_valid.then_some(self).ok_or(Corrupt)
    }

    /// Reads the first chunk of `BF.SCANDUMP`, of any version of RedisBloom.
    pub fn read_dump(header: &[u8]) -> Result<Self, Corrupt> {
        let items = get_u64(header, 0)?;
        let count = get_u32(header, 8)? as usize;
        let layout = DUMP_LAYOUTS.iter().find(|layout| {
            let links = count.checked_mul(layout.link_size());
            header.len().checked_sub(layout.fixed_size()) == links
        });
        let layout = layout.ok_or(Corrupt)?;
        let read = |link: &[u8]| {
            let entries = if layout.has_wide_entries {
                get_u64(link, 44)?
            } else {
                get_u32(link, 44)?.into()
            };
            Ok(Link {
                bytes: get_u64(link, 0)?,
                bits: get_u64(link, 8)?,
                items: get_u64(link, 16)?,
                error: get_f64(link, 24)?,
                bits_per_entry: get_f64(link, 32)?,
                hashes: get_u32(link, 40)?.into(),
                entries,
                n2: link[layout.link_size() - 1].into(),
            })
        };
        let growth = if layout.has_growth {
            get_u32(header, 16)?.into()
        } else {
            FORMER_GROWTH
        };
        let links = header[layout.fixed_size()..].chunks(layout.link_size());
        let chain = Self {
            options: get_u32(header, 12)?.into(),
            growth,
            links: links.map(read).collect::<Result<_, _>>()?,
        };
        let chain = chain.check()?;
        (chain.items() == items).then_some(chain).ok_or(Corrupt)
    }

    /// The first chunk of `BF.SCANDUMP`, in the newest layout.
    pub fn dump(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.items().to_le_bytes());
        for number in [self.links.len() as u64, self.options, self.growth] {
            out.extend((number as u32).to_le_bytes());
        }
        for link in &self.links {
            for number in [link.bytes, link.bits, link.items] {
                out.extend(number.to_le_bytes());
            }
            out.extend(link.error.to_le_bytes());
            out.extend(link.bits_per_entry.to_le_bytes());
            out.extend((link.hashes as u32).to_le_bytes());
            out.extend(link.entries.to_le_bytes());
            out.push(link.n2 as u8);
        }
        out
    }

    /// The number of items.
    pub fn items(&self) -> u64 {
        let items = self.links.iter().map(|link| link.items);
        items.fold(0, u64::saturating_add)
    }

    /// Whether the filter contains an item, or answers so.
    pub fn holds<'a>(&self, item: &[u8], arrays: impl Iterator<Item = ArrayBytes<'a>>) -> bool {
        let hashes = if self.options & FORCE_64 != 0 {
            let first = murmur64(item, 0xc6a4_a793_5bd1_e995);
            (first, murmur64(item, first))
        } else {
            let first = murmur32(item, 0x9747_b28c);
            (first.into(), murmur32(item, first).into())
        };
        let mut links = self.links.iter().zip(arrays);
        links.any(|(link, array)| link.holds(array, hashes))
    }

    /// Whether the filter never gets another link.
    pub fn is_fixed(&self) -> bool {
        self.options & NO_SCALING != 0
    }

    /// The false positive rate that is left for layers behind the chain, so that all together keep the declared one. A chain that
    /// grows gives half of the declared rate to its first link, a quarter to the second, and so on.
    pub fn error_left(&self) -> f64 {
        let first = self.links.first().map_or(0.5, |link| link.error);
        if self.is_fixed() {
            return first / FIXED_SHARE; // the links before are not full as long as items come
        }
        let links = self.links.len().min(10) as i32;
        first * 0.5_f64.powi(links - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::foreign::{ForeignHeader, ForeignShape};
    use crate::server::services::cache_lines::LINE_BYTES;

    /// A link as RedisBloom makes it with the option for exact numbers of bits, in the layout since 2.2.5.
    fn link(entries: u64, error: f64) -> Link {
        let bits_per_entry = -error.ln() / LN_2_SQUARED;
        let bits = (entries as f64 * bits_per_entry) as u64;
        let bits = bits.max(1).next_multiple_of(64);
        Link {
            entries,
            error,
            hashes: (LN_2 * bits_per_entry).ceil() as u64,
            bits_per_entry,
            bits,
            n2: 0,
            bytes: bits / 8,
            items: 1,
        }
    }

    fn chain(options: u64, link: Link) -> Chain {
        Chain {
            options,
            growth: 2,
            links: vec![link],
        }
    }

    /// The options since RedisBloom 2.2.
    const NEW: u64 = FORCE_64 | NO_ROUNDING;

    #[test]
    fn links_of_all_versions_are_valid() {
        let exact = link(1000, 0.01);
        assert_eq!((exact.hashes, exact.bits), (7, 9600));
        let of_2_2_0 = Link {
            bits: 9592,
            bytes: 1199,
            ..exact
        };
        let before_1_0 = Link {
            bits: 9585,
            ..of_2_2_0
        };
        let rounded = Link {
            entries: 1709,
            bits: 0,
            n2: 14,
            bytes: 2048,
            ..exact
        };
        let grown = Link {
            bits: 16_384,
            ..rounded
        };
        let small = |bits, n2, bytes| Link {
            entries: 1,
            bits,
            n2,
            bytes,
            ..link(1, 0.3)
        };
        for (options, link) in [
            (NEW, exact),
            (NEW | NO_SCALING, exact),
            (NEW, of_2_2_0),
            (0, before_1_0),
            (0, rounded),
            (FORCE_64, rounded),
            (FORCE_64, grown),
            (FORCE_64, small(0, 2, 1)),
            (FORCE_64, small(8, 2, 1)),
            (FORCE_64, small(64, 2, 8)),
            (NEW, link(1, 0.999)),
            (NEW, link(1, 5e-324)),
            (NEW, link(1 << 30, 1e-9)),
        ] {
            assert!(chain(options, link).check().is_ok(), "{options} {link:?}");
        }
    }

    #[test]
    fn numbers_that_disagree_are_corrupt() {
        let changes: [fn(&mut Chain); 24] = [
            |chain| chain.options = 0,
            |chain| chain.options = NO_ROUNDING,
            |chain| chain.options = FORCE_64,
            |chain| chain.options = NEW | 2,
            |chain| chain.options = 1 << 32 | NEW,
            |chain| chain.growth = 1 << 32,
            |chain| chain.links.clear(),
            |chain| chain.links[0].hashes = 6,
            |chain| chain.links[0].hashes = 8,
            |chain| chain.links[0].hashes = 0,
            |chain| chain.links[0].bits = 9599,
            |chain| chain.links[0].bits = 9592,
            |chain| chain.links[0].bits = 9608,
            |chain| chain.links[0].bits = 0,
            |chain| chain.links[0].n2 = 3,
            |chain| chain.links[0].n2 = 64,
            |chain| chain.links[0].bytes = 1199,
            |chain| chain.links[0].bits_per_entry = f64::NAN,
            |chain| chain.links[0].bits_per_entry = 1.0,
            |chain| chain.links[0].bits_per_entry += 1e-6,
            |chain| chain.links[0].error = 0.011,
            |chain| chain.links[0].error = f64::NAN,
            |chain| chain.links[0].entries = 1100,
            |chain| chain.links[0].items = 1001,
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut changed = chain(NEW, link(1000, 0.01));
            change(&mut changed);
            assert!(changed.check().is_err(), "{number}");
        }
        let mut fixed = chain(NEW | NO_SCALING, link(1000, 0.01));
        fixed.links.push(link(2000, 0.005));
        assert!(fixed.check().is_err());
    }

    /// The numbers of an array of a power of two, as RedisBloom 2.0 wrote them and as 2.2 writes them.
    #[test]
    fn rounded_numbers_that_disagree_are_corrupt() {
        for bits in [0, 16_384] {
            let rounded = Link {
                entries: 1709,
                bits,
                n2: 14,
                bytes: 2048,
                ..link(1000, 0.01)
            };
            let changes: [fn(&mut Link); 6] = [
                |link| link.n2 = 13,
                |link| link.n2 = 15,
                |link| link.n2 = 0,
                |link| link.bits = 16_383,
                |link| link.bits = 1 << 15,
                |link| link.bytes = 2049,
            ];
            for (number, change) in changes.iter().enumerate() {
                let mut changed = rounded;
                change(&mut changed);
                assert!(chain(FORCE_64, changed).check().is_err(), "{bits} {number}");
            }
            assert!(chain(NEW, rounded).check().is_err());
        }
    }

    /// A bit number is not cut to 32 bits. The array is never touched but in the cache lines of a few items.
    #[test]
    fn bits_above_2_to_the_32_are_found() {
        let chain = chain(NEW, link(600_000_000, 0.01));
        let chain = chain.check().expect("a chain");
        let range = chain.links[0].range();
        assert!(range > 1 << 32);
        let header = ForeignHeader {
            shape: ForeignShape::Chain(chain),
            is_original: true,
        };
        let mut filter = header.build().expect("memory");
        let mut high = 0;
        for item in [b"ann".as_slice(), b"bob", b"carol", b"dave"] {
            assert!(!filter.holds(item));
            let first = murmur64(item, 0xc6a4_a793_5bd1_e995);
            let second = murmur64(item, first);
            for index in 0..7u64 {
                // As a remainder of wider numbers, which cannot be cut.
                let hash = first.wrapping_add(index.wrapping_mul(second));
                let bit = u128::from(hash) % u128::from(range);
                high += u64::from(bit >> 32 > 0);
                let byte = usize::try_from(bit / 8).expect("an offset");
                assert!(!filter.holds(item));
                let array = filter.arrays_mut().next().expect("an array");
                array.line_mut(byte / LINE_BYTES)[byte % LINE_BYTES] |= 1 << (bit % 8);
            }
            assert!(filter.holds(item));
        }
        assert!(high > 0);
    }

    /// The first chunk of a filter with several links, as RedisBloom 2.2.19 made it.
    const DUMPED: &[u8] = include_bytes!("../../../tests/data/foreign/bf-default.chunks");

    /// The number of entries had 32 bits in RedisBloom 2.2.0, and there was no growth before.
    #[test]
    fn the_first_chunk_has_one_of_three_layouts() {
        let length = get_u64(DUMPED, 8).expect("a length") as usize;
        let newest = &DUMPED[16..16 + length];
        let chain = Chain::read_dump(newest).expect("a chain");
        assert!(chain.links.len() > 1 && chain.growth == FORMER_GROWTH);
        let (fixed, links) = newest.split_at(20);
        let narrow = links.chunks(53).flat_map(|link| {
            let (before, n2) = link.split_at(52);
            assert_eq!(before[48..], [0; 4]);
            [&before[..48], n2].concat()
        });
        let narrow: Vec<u8> = narrow.collect();
        let of_2_2_0 = [fixed, &narrow].concat();
        let older = [&fixed[..16], &narrow].concat();
        for header in [&of_2_2_0, &older] {
            assert_eq!(Chain::read_dump(header), Ok(chain.clone()));
            for length in 0..header.len() {
                assert_eq!(Chain::read_dump(&header[..length]), Err(Corrupt));
            }
        }
        // Only the newer of the two says how the filter grows.
        let mut other = of_2_2_0;
        other[16] = 3;
        assert_eq!(Chain::read_dump(&other).map(|chain| chain.growth), Ok(3));
    }
}
