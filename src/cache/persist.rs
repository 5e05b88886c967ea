//! The bytes of an entry, in RDB files, AOFs, replication and `DUMP`: a letter for its kind, then numbers in LEB128
//! ([`crate::codec`]). A value stands behind them as a string of its own, so that it is not copied.
//!
//! ```text
//! V | N | G   fresh_until   version + 1   rebuild_us   grace_until [stale_until]
//! ```
//!
//! V is a value, N a null, G a tombstone. A `version + 1` of 0 means none, and so does a `grace_until`, behind which
//! there is no `stale_until` then. Times are Unix ms.
//!
//! An effect (`CACHE.APPLY key effect [value]`) has in front when the key expires (0: that stays as it is), and may have
//! K for its kind: kind and value stay as they are.

use super::state::{Entry, Grace, Kind, Version};
use crate::codec::{Corrupt, Reader, put_uint};
use crate::request::MAX_SAFE;

/// The largest time and version.
const MAX: u64 = MAX_SAFE as u64;

/// What an effect makes of an entry.
#[derive(Debug, PartialEq, Eq)]
pub struct Effect {
    /// When the key expires (Unix ms); 0: that stays as it is.
    pub expires: u64,
    /// The entry without its value.
    pub head: Entry,
    /// Does it keep the kind and the value that it has?
    pub keeps: bool,
}

/// Appends all of an entry but its value.
pub fn put_head(out: &mut Vec<u8>, entry: &Entry) {
    put_letter(out, letter(entry.kind), entry);
}

fn letter(kind: Kind) -> u8 {
    match kind {
        Kind::Value => b'V',
        Kind::Null => b'N',
        Kind::Gone => b'G',
    }
}

fn put_letter(out: &mut Vec<u8>, letter: u8, entry: &Entry) {
    out.push(letter);
    put_uint(out, entry.fresh_until);
    put_uint(out, entry.version.map_or(0, |version| version.number() + 1));
    put_uint(out, entry.rebuild_us.into());
    match &entry.grace {
        None => put_uint(out, 0),
        Some(grace) => {
            put_uint(out, grace.until);
            put_uint(out, grace.stale_until);
        }
    }
}

/// Reads what [`put_head`] wrote, and nothing else.
pub fn read_head(input: &[u8]) -> Result<Entry, Corrupt> {
    let mut reader = Reader::new(input);
    let (entry, keeps) = read_entry(&mut reader)?;
    (reader.is_empty() && !keeps)
        .then_some(entry)
        .ok_or(Corrupt)
}

/// Appends an effect: the entry as it is now, with the value that it had if it `keeps` that.
pub fn put_effect(out: &mut Vec<u8>, entry: &Entry, keeps: bool, expires: u64) {
    put_uint(out, expires);
    let letter = if keeps { b'K' } else { letter(entry.kind) };
    put_letter(out, letter, entry);
}

/// Reads what [`put_effect`] wrote.
pub fn read_effect(input: &[u8]) -> Result<Effect, Corrupt> {
    let mut reader = Reader::new(input);
    let expires = reader.uint(0, MAX)?;
    let (head, keeps) = read_entry(&mut reader)?;
    let effect = Effect {
        expires,
        head,
        keeps,
    };
    reader.is_empty().then_some(effect).ok_or(Corrupt)
}

fn read_entry(reader: &mut Reader<'_>) -> Result<(Entry, bool), Corrupt> {
    let (kind, keeps) = match reader.byte()? {
        b'V' => (Kind::Value, false),
        b'N' => (Kind::Null, false),
        b'G' => (Kind::Gone, false),
        b'K' => (Kind::Gone, true),
        _ => return Err(Corrupt),
    };
    let entry = Entry {
        kind,
        fresh_until: reader.uint(0, MAX)?,
        version: reader.uint(0, MAX + 1)?.checked_sub(1).map(Version::new),
        rebuild_us: reader.uint(0, u32::MAX.into())? as u32,
        grace: match reader.uint(0, MAX)? {
            0 => None,
            until => Some(Box::new(Grace {
                until,
                stale_until: reader.uint(0, MAX)?,
            })),
        },
        ..Entry::gone()
    };
    Ok((entry, keeps))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = Entry> {
        let kind = prop_oneof![Just(Kind::Value), Just(Kind::Null), Just(Kind::Gone)];
        let grace = proptest::option::of((1..=MAX, 0..=MAX));
        let version = proptest::option::of(prop_oneof![Just(MAX), 0..=MAX]);
        (kind, 0..=MAX, version, any::<u32>(), grace).prop_map(
            |(kind, fresh_until, version, rebuild_us, grace)| Entry {
                kind,
                fresh_until,
                version: version.map(Version::new),
                rebuild_us,
                grace: grace.map(|(until, stale_until)| Box::new(Grace { until, stale_until })),
                ..Entry::gone()
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(entry in entry(), keeps: bool, expires in 0..=MAX) {
            let mut out = Vec::new();
            put_head(&mut out, &entry);
            prop_assert_eq!(read_head(&out), Ok(entry.clone()));
            for end in 0..out.len() {
                prop_assert_eq!(read_head(&out[..end]), Err(Corrupt));
            }
            // What keeps something is no entry.
            out[0] = b'K';
            prop_assert_eq!(read_head(&out), Err(Corrupt));
            out.clear();
            put_effect(&mut out, &entry, keeps, expires);
            let head = Entry { kind: if keeps { Kind::Gone } else { entry.kind }, ..entry };
            prop_assert_eq!(read_effect(&out), Ok(Effect { expires, head, keeps }));
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
        let entry = Entry {
            kind: Kind::Value,
            fresh_until: 1_700_000_000_000,
            version: Some(Version::new(0)),
            rebuild_us: 300,
            ..Entry::gone()
        };
        let mut out = Vec::new();
        put_effect(&mut out, &entry, false, 1_700_000_060_000);
        let grace = Grace {
            until: 1_700_000_060_000,
            stale_until: 0,
        };
        let entry = Entry {
            kind: Kind::Gone,
            fresh_until: 0,
            version: None,
            grace: Some(Box::new(grace)),
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
