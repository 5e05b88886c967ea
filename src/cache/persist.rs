//! The bytes of an entry in RDB files, AOFs, replication and `DUMP`: a letter for the kind, followed by numbers in LEB128
//! ([`crate::codec`]). The value follows as a string of its own, so that it is not copied.
//!
//! ```text
//! V | N | G   fresh_until   version + 1   rebuild_us   grace_until [stale_until]
//! ```
//!
//! V is a value, N a negative entry, G a tombstone. If `version + 1` is 0, there is no version. If `grace_until` is 0, there
//! is no grace period, and no `stale_until` follows. Times are Unix ms.
//!
//! An effect (`CACHE.APPLY key effect [value]`) begins with the time at which the key expires (0: the expiry stays as it is).
//! Its kind may be K: kind and value of the entry stay as they are.

use super::state::{CacheEntry, EntryKind, EntryTag, EntryVersion, GracePeriod};
use crate::codec::{Corrupt, Reader, put_uint, put_uints};
use crate::request::MAX_SAFE;

/// The largest time and version.
const MAX: u64 = MAX_SAFE as u64;

/// A change of an entry.
#[derive(Debug, PartialEq, Eq)]
pub struct EntryEffect {
    /// When the key expires (Unix ms); 0: the expiry stays as it is.
    pub expires: u64,
    /// The entry without its value.
    pub head: CacheEntry,
    /// Whether kind and value stay as they are.
    pub keeps_value: bool,
}

/// Appends an entry without its value.
pub fn put_head(out: &mut Vec<u8>, entry: &CacheEntry) {
    put_letter(out, letter(entry.kind()), entry);
}

fn letter(kind: EntryKind) -> u8 {
    match kind {
        EntryKind::Value => b'V',
        EntryKind::Negative => b'N',
        EntryKind::Tombstone => b'G',
    }
}

fn put_letter(out: &mut Vec<u8>, letter: u8, entry: &CacheEntry) {
    out.push(letter);
    let version = entry.version.map_or(0, |version| version.number() + 1);
    let grace_until = entry.grace.as_ref().map_or(0, |grace| grace.until);
    let rebuild_us = entry.rebuild_us.into();
    put_uints(out, [entry.fresh_until, version, rebuild_us, grace_until]);
    if let Some(grace) = &entry.grace {
        put_uint(out, grace.stale_until);
    }
}

/// Reads the bytes of [`put_head`]. Error: there are other bytes, or more.
pub fn read_head(input: &[u8]) -> Result<CacheEntry, Corrupt> {
    let mut reader = Reader::new(input);
    let (entry, keeps_value) = read_entry(&mut reader)?;
    (reader.is_empty() && !keeps_value)
        .then_some(entry)
        .ok_or(Corrupt)
}

/// Appends an effect: the entry as it is now, without its value. `keeps_value`: kind and value have not changed.
pub fn put_effect(out: &mut Vec<u8>, entry: &CacheEntry, keeps_value: bool, expires: u64) {
    put_uint(out, expires);
    let letter = if keeps_value {
        b'K'
    } else {
        letter(entry.kind())
    };
    put_letter(out, letter, entry);
}

/// Reads the bytes of [`put_effect`].
pub fn read_effect(input: &[u8]) -> Result<EntryEffect, Corrupt> {
    let mut reader = Reader::new(input);
    let expires = reader.uint(0, MAX)?;
    let (head, keeps_value) = read_entry(&mut reader)?;
    let effect = EntryEffect {
        expires,
        head,
        keeps_value,
    };
    reader.is_empty().then_some(effect).ok_or(Corrupt)
}

fn read_entry(reader: &mut Reader<'_>) -> Result<(CacheEntry, bool), Corrupt> {
    let (kind, keeps_value) = match reader.byte()? {
        b'V' => (EntryKind::Value, false),
        b'N' => (EntryKind::Negative, false),
        b'G' => (EntryKind::Tombstone, false),
        b'K' => (EntryKind::Tombstone, true),
        _ => return Err(Corrupt),
    };
    let entry = CacheEntry {
        tag: EntryTag::new(kind),
        fresh_until: reader.uint(0, MAX)?,
        version: reader
            .uint(0, MAX + 1)?
            .checked_sub(1)
            .map(EntryVersion::new),
        rebuild_us: reader.uint(0, u32::MAX.into())? as u32,
        grace: match reader.uint(0, MAX)? {
            0 => None,
            until => {
                let stale_until = reader.uint(0, MAX)?;
                Some(GracePeriod { until, stale_until }.into())
            }
        },
        ..CacheEntry::tombstone()
    };
    Ok((entry, keeps_value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = CacheEntry> {
        let kind = prop_oneof![
            Just(EntryKind::Value),
            Just(EntryKind::Negative),
            Just(EntryKind::Tombstone)
        ];
        let grace = proptest::option::of((1..=MAX, 0..=MAX));
        let version = proptest::option::of(prop_oneof![Just(MAX), 0..=MAX]);
        (kind, 0..=MAX, version, any::<u32>(), grace).prop_map(
            |(kind, fresh_until, version, rebuild_us, grace)| CacheEntry {
                tag: EntryTag::new(kind),
                fresh_until,
                version: version.map(EntryVersion::new),
                rebuild_us,
                grace: grace.map(|(until, stale_until)| GracePeriod { until, stale_until }.into()),
                ..CacheEntry::tombstone()
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(entry in entry(), keeps_value: bool, expires in 0..=MAX) {
            let mut out = Vec::new();
            put_head(&mut out, &entry);
            prop_assert_eq!(read_head(&out), Ok(entry.clone()));
            for end in 0..out.len() {
                prop_assert_eq!(read_head(&out[..end]), Err(Corrupt));
            }
            // An effect that keeps the value is no entry.
            out[0] = b'K';
            prop_assert_eq!(read_head(&out), Err(Corrupt));
            out.clear();
            put_effect(&mut out, &entry, keeps_value, expires);
            let head = CacheEntry { tag: EntryTag::new(if keeps_value { EntryKind::Tombstone } else { entry.kind() }), ..entry };
            prop_assert_eq!(read_effect(&out), Ok(EntryEffect { expires, head, keeps_value }));
            out.push(0);
            prop_assert_eq!(read_effect(&out), Err(Corrupt));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, kind in 0usize..4) {
            let _ = (read_head(&bytes), read_effect(&bytes));
            let forged = [&[b"VNGK"[kind]], &bytes[..]].concat();
            let _ = (read_head(&forged), read_effect(&[b"\0", &forged[..]].concat()));
        }
    }

    #[test]
    fn the_bytes_never_change() {
        let entry = CacheEntry {
            tag: EntryTag::new(EntryKind::Value),
            fresh_until: 1_700_000_000_000,
            version: Some(EntryVersion::new(0)),
            rebuild_us: 300,
            ..CacheEntry::tombstone()
        };
        let mut out = Vec::new();
        put_effect(&mut out, &entry, false, 1_700_000_060_000);
        let grace = GracePeriod {
            until: 1_700_000_060_000,
            stale_until: 0,
        };
        let entry = CacheEntry {
            tag: EntryTag::new(EntryKind::Tombstone),
            fresh_until: 0,
            version: None,
            grace: Some(grace.into()),
            ..entry
        };
        put_head(&mut out, &entry);
        let hex: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "e0a499ffbc31\
             56\
             80d095ffbc31\
             01\
             ac02\
             00\
             47\
             00\
             00\
             ac02\
             e0a499ffbc31\
             00"
        );
    }
}
