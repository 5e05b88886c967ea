//! The bytes of a limit in RDB files, AOFs, replication and `DUMP`: a letter for the kind, followed by numbers in LEB128
//! ([`crate::codec`]).
//!
//! ```text
//! G period count spent parts at            a GCRA
//! T n (period count spent parts at) * n    tiers
//! W start length used                      a fixed window
//! S start length used previous             a sliding one
//! E length n (time cost) * n               an exact one, the oldest call first; each time is the one since the time before
//! O                                        RATE.ONCE
//! ```
//!
//! An effect (`RATE.APPLY key effect`) is the time at which the key expires (Unix ms; 0: the expiry stays as it is),
//! followed by a limit, or by a change of the log of an exact window:
//!
//! ```text
//! R time cost length                       a call
//! B cost                                   a refund
//! ```

use super::exact::ExactWindow;
use super::gcra::{Bucket, LeakRate};
use super::state::{Limit, WindowCall};
use super::window::Window;
use super::{MAX_PERIOD_US, MAX_TIERS};
use crate::codec::{Corrupt, Reader, put_uint};
use crate::request::{MAX_SAFE, TEN_YEARS_MS};

/// The largest quantity and time.
const MAX: u64 = MAX_SAFE as u64;

/// Appends a limit.
pub fn put(out: &mut Vec<u8>, limit: &Limit) {
    match limit {
        Limit::Gcra(bucket) => {
            out.push(b'G');
            put_bucket(out, bucket);
        }
        Limit::Tiers(buckets) => {
            out.push(b'T');
            put_uint(out, buckets.len() as u64);
            for bucket in buckets {
                put_bucket(out, bucket);
            }
        }
        Limit::Window(window) => {
            out.push(if window.is_sliding { b'S' } else { b'W' });
            put_uint(out, window.start);
            put_uint(out, window.length);
            put_uint(out, window.used);
            if window.is_sliding {
                put_uint(out, window.previous);
            }
        }
        Limit::Exact(log) => {
            out.push(b'E');
            put_uint(out, log.length());
            put_uint(out, log.len() as u64);
            let mut before = 0;
            for (time, cost) in log.entries() {
                put_uint(out, time - before);
                put_uint(out, cost);
                before = time;
            }
        }
        Limit::Once => out.push(b'O'),
    }
}

fn put_bucket(out: &mut Vec<u8>, bucket: &Bucket) {
    put_uint(out, bucket.rate.period);
    put_uint(out, bucket.rate.count);
    put_uint(out, bucket.spent);
    put_uint(out, bucket.parts);
    put_uint(out, bucket.at);
}

/// Reads the bytes of [`put`]. Error: there are other bytes, or more.
pub fn read(input: &[u8]) -> Result<Limit, Corrupt> {
    let mut reader = Reader::new(input);
    let limit = read_limit(&mut reader)?;
    reader.is_empty().then_some(limit).ok_or(Corrupt)
}

/// Appends an effect.
pub fn put_effect(out: &mut Vec<u8>, limit: &Limit, expires: u64) {
    put_uint(out, expires);
    put(out, limit);
}

/// Appends an effect that adds a call to the log of an exact window.
pub fn put_record(out: &mut Vec<u8>, call: WindowCall, expires: u64) {
    put_uint(out, expires);
    out.push(b'R');
    put_uint(out, call.at);
    put_uint(out, call.cost);
    put_uint(out, call.length);
}

/// Appends an effect that gives a cost back to the log of an exact window.
pub fn put_give_back(out: &mut Vec<u8>, count: u64, expires: u64) {
    put_uint(out, expires);
    out.push(b'B');
    put_uint(out, count);
}

/// The change of an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RateEffect {
    /// The limit is this one.
    Limit(Limit),
    /// The log of an exact window gets a call.
    Record(WindowCall),
    /// The log of an exact window gives a cost back.
    GiveBack(u64),
}

/// Reads an effect, and when the key expires (Unix ms).
pub fn read_effect(input: &[u8]) -> Result<(RateEffect, u64), Corrupt> {
    let mut reader = Reader::new(input);
    let expires = reader.uint(0, MAX)?;
    let mut rest = reader.clone();
    let effect = match rest.byte()? {
        b'R' => {
            reader = rest;
            RateEffect::Record(WindowCall {
                at: reader.uint(0, MAX)?,
                cost: reader.uint(1, MAX)?,
                length: reader.uint(1, MAX_PERIOD_US)?,
            })
        }
        b'B' => {
            reader = rest;
            RateEffect::GiveBack(reader.uint(0, MAX)?)
        }
        _ => RateEffect::Limit(read_limit(&mut reader)?),
    };
    reader
        .is_empty()
        .then_some((effect, expires))
        .ok_or(Corrupt)
}

fn read_limit(reader: &mut Reader<'_>) -> Result<Limit, Corrupt> {
    match reader.byte()? {
        b'G' => Ok(Limit::Gcra(read_bucket(reader)?)),
        b'T' => {
            let count = reader.uint(1, MAX_TIERS as u64)?;
            let buckets = (0..count).map(|_| read_bucket(reader));
            Ok(Limit::Tiers(buckets.collect::<Result<_, _>>()?))
        }
        b'W' => Ok(Limit::Window(read_window(reader, false)?)),
        b'S' => Ok(Limit::Window(read_window(reader, true)?)),
        b'E' => read_log(reader),
        b'O' => Ok(Limit::Once),
        _ => Err(Corrupt),
    }
}

fn read_log(reader: &mut Reader<'_>) -> Result<Limit, Corrupt> {
    let length = reader.uint(1, MAX_PERIOD_US)?;
    let count = reader.uint(0, MAX)?;
    let mut log = ExactWindow::new(length);
    let mut time = 0u64;
    for _ in 0..count {
        time = time.checked_add(reader.uint(0, MAX)?).ok_or(Corrupt)?;
        let cost = reader.uint(1, MAX)?;
        log.load(time, cost).ok_or(Corrupt)?;
    }
    Ok(Limit::Exact(Box::new(log)))
}

fn read_bucket(reader: &mut Reader<'_>) -> Result<Bucket, Corrupt> {
    let period = reader.uint(1, MAX_PERIOD_US)?;
    Ok(Bucket {
        rate: LeakRate {
            period,
            count: reader.uint(1, MAX)?,
        },
        spent: reader.uint(0, MAX)?,
        parts: reader.uint(0, period - 1)?,
        at: reader.uint(0, MAX)?,
    })
}

fn read_window(reader: &mut Reader<'_>, is_sliding: bool) -> Result<Window, Corrupt> {
    Ok(Window {
        is_sliding,
        start: reader.uint(0, MAX)?,
        length: reader.uint(1, TEN_YEARS_MS as u64)?,
        used: reader.uint(0, MAX)?,
        previous: if is_sliding { reader.uint(0, MAX)? } else { 0 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bucket() -> impl Strategy<Value = Bucket> {
        (1..=MAX_PERIOD_US, 1..=MAX, 0..=MAX, 0..=MAX, any::<u64>()).prop_map(
            |(period, count, spent, at, parts)| Bucket {
                rate: LeakRate { count, period },
                spent,
                parts: parts % period,
                at,
            },
        )
    }

    fn log() -> impl Strategy<Value = ExactWindow> {
        let calls = proptest::collection::vec((1..=MAX / 1000, 1..=MAX / 1000), 0..300);
        (1..=MAX_PERIOD_US, calls).prop_map(|(length, calls)| {
            let mut log = ExactWindow::new(length);
            let mut now = 0;
            for (pause, cost) in calls {
                now += pause % (1 + pause % 1_000_000);
                log.record(now, cost, length);
            }
            log
        })
    }

    fn limit() -> impl Strategy<Value = Limit> {
        let window = (
            0..=MAX,
            1..=TEN_YEARS_MS as u64,
            0..=MAX,
            0..=MAX,
            any::<bool>(),
        );
        prop_oneof![
            bucket().prop_map(Limit::Gcra),
            proptest::collection::vec(bucket(), 1..=MAX_TIERS)
                .prop_map(|buckets| Limit::Tiers(buckets.into())),
            window.prop_map(|(start, length, used, previous, is_sliding)| {
                Limit::Window(Window {
                    is_sliding,
                    start,
                    length,
                    used,
                    previous: if is_sliding { previous } else { 0 },
                })
            }),
            log().prop_map(|log| Limit::Exact(Box::new(log))),
            Just(Limit::Once),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(limit in limit(), expires in 0..=MAX) {
            let mut out = Vec::new();
            put(&mut out, &limit);
            prop_assert_eq!(read(&out), Ok(limit.clone()));
            for end in 0..out.len() {
                prop_assert_eq!(read(&out[..end]), Err(Corrupt));
            }
            out.push(0);
            prop_assert_eq!(read(&out), Err(Corrupt));
            out.clear();
            put_effect(&mut out, &limit, expires);
            prop_assert_eq!(read_effect(&out), Ok((RateEffect::Limit(limit), expires)));
            out.push(0);
            prop_assert_eq!(read_effect(&out), Err(Corrupt));
        }

        #[test]
        fn whatever_can_be_read_can_be_asked(mut bytes: Vec<u8>, kind in 0usize..6, now in 0..=MAX, cost in 0..=MAX) {
            use crate::rate::decision::RequestCost;
            use crate::rate::state::{LimitChange, LimitRequest, ask, charge, refund};
            use crate::rate::gcra::Tier;
            bytes.insert(0, b"GTWSOE"[kind]);
            if let Ok(limit) = read(&bytes) {
                let tier = Tier { limit: cost.max(1), rate: LeakRate { count: 1, period: MAX_PERIOD_US } };
                let requests = [
                    LimitRequest::Gcra(tier),
                    LimitRequest::Tiers(&[tier, tier]),
                    LimitRequest::Window { limit: cost, length: 1, is_sliding: false },
                    LimitRequest::Window { limit: cost, length: TEN_YEARS_MS as u64, is_sliding: true },
                    LimitRequest::Exact { limit: cost, length: 1 },
                    LimitRequest::Exact { limit: cost, length: TEN_YEARS_MS as u64 },
                ];
                for request in requests {
                    if let Ok((_, LimitChange::Replace(after))) = ask(Some(&limit), request, RequestCost::counted(cost), now) {
                        after.end();
                    }
                }
                let _ = refund(&limit, cost);
                let _ = charge(&limit, cost, now);
                let mut limit = limit;
                limit.give_back(cost / 2);
                limit.add(cost);
                limit.end();
                bytes.clear();
                put(&mut bytes, &limit);
                prop_assert_eq!(read(&bytes), Ok(limit));
            }
        }
    }

    #[test]
    fn the_bytes_never_change() {
        let bucket = Bucket {
            rate: LeakRate {
                count: 5,
                period: 1000,
            },
            spent: 2,
            parts: 300,
            at: 1_700_000_000_000_000,
        };
        let window = Window {
            is_sliding: true,
            start: 1_700_000_000_000,
            length: 60_000,
            used: 3,
            previous: 4,
        };
        let mut log = ExactWindow::new(1000);
        log.record(1_700_000_000_000_099, 2, 1000);
        log.record(1_700_000_000_000_298, 3, 1000);
        for (limit, bytes) in [
            (Limit::Gcra(bucket), "47e8070502ac028080f9c0c1c48203"),
            (
                Limit::Tiers([bucket, bucket].into()),
                "5402e8070502ac028080f9c0c1c48203e8070502ac028080f9c0c1c48203",
            ),
            (
                Limit::Window(Window {
                    is_sliding: false,
                    previous: 0,
                    ..window
                }),
                "5780d095ffbc31e0d40303",
            ),
            (Limit::Window(window), "5380d095ffbc31e0d4030304"),
            (
                Limit::Exact(Box::new(log)),
                "45e80702e380f9c0c1c4820302c70103",
            ),
            (Limit::Once, "4f"),
        ] {
            let mut out = Vec::new();
            put(&mut out, &limit);
            let hex: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, bytes, "{limit:?}");
        }
    }
}
