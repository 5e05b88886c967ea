//! The bytes of work in RDB files, AOFs, replication and `DUMP`: a letter, followed by numbers in LEB128 ([`crate::codec`]) and
//! the fingerprint with its length in front. The result follows as a string of its own, so that it is not copied.
//!
//! ```text
//! B until token fingerprint     busy; until: when the lease ends (Unix ms)
//! D until token fingerprint     done; until: when the result is forgotten (Unix ms)
//! ```
//!
//! An effect (`ONCE.APPLY key effect [result]`) is the work as it is now. The key expires at `until`. An effect without bytes
//! changes nothing: a repeated request sends it, so that `WAIT` waits for the first request.

use super::MAX_FINGERPRINT_BYTES;
use super::state::OnceWork;
use crate::codec::{Corrupt, Reader, put_bytes, put_uint};
use crate::request::MAX_SAFE;

/// The largest time and token.
const MAX: u64 = MAX_SAFE as u64;

/// Appends work without its result.
pub fn put_head(out: &mut Vec<u8>, work: &OnceWork) {
    out.push(if work.result.is_some() { b'D' } else { b'B' });
    put_uint(out, work.until);
    put_uint(out, work.token);
    put_bytes(out, &work.fingerprint);
}

/// Reads the bytes of [`put_head`]. The result of done work is empty and is to be filled in. Error: there are other bytes, or
/// more.
pub fn read_head(input: &[u8]) -> Result<OnceWork, Corrupt> {
    let mut reader = Reader::new(input);
    let result = match reader.byte()? {
        b'B' => None,
        b'D' => Some(Box::default()),
        _ => return Err(Corrupt),
    };
    let work = OnceWork {
        until: reader.uint(0, MAX)?,
        token: reader.uint(1, MAX)?,
        fingerprint: reader.bytes(0, MAX_FINGERPRINT_BYTES)?.into(),
        result,
    };
    reader.is_empty().then_some(work).ok_or(Corrupt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            until in 0..=MAX,
            token in 1..=MAX,
            fingerprint in proptest::collection::vec(any::<u8>(), 0..=MAX_FINGERPRINT_BYTES),
            is_done: bool,
        ) {
            let work = OnceWork {
                token,
                until,
                fingerprint: fingerprint.into(),
                result: is_done.then(Box::default),
            };
            let mut out = Vec::new();
            put_head(&mut out, &work);
            prop_assert_eq!(read_head(&out), Ok(work));
            for end in 0..out.len() {
                prop_assert_eq!(read_head(&out[..end]), Err(Corrupt));
            }
            out.push(0);
            prop_assert_eq!(read_head(&out), Err(Corrupt));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = read_head(&bytes);
        }
    }

    #[test]
    fn the_bytes_never_change() {
        let work = OnceWork {
            token: 1_700_000_000_000_000,
            until: 1_700_000_060_000,
            fingerprint: (*b"abc").into(),
            result: None,
        };
        let done = OnceWork {
            result: Some((*b"paid").into()),
            ..work.clone()
        };
        for (work, letter) in [(work, b'B'), (done, b'D')] {
            let mut out = Vec::new();
            put_head(&mut out, &work);
            let hex: String = out[1..].iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(out[0], letter);
            assert_eq!(hex, "e0a499ffbc318080f9c0c1c4820303616263");
        }
    }
}
