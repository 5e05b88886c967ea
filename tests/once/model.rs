//! The state machine against a naive model, without a server: random calls, whose every outcome must be the model's.

use crate::support::Random;
use sluice::once::state::{
    BeginDecision, DoneDecision, DoneWork, OnceWork, decide_begin, decide_done, decide_fail,
    decide_outcome,
};

const CALLS: u64 = if cfg!(miri) { 2000 } else { 200_000 };

/// What somebody who reads the contract would write down.
#[derive(Debug, Clone)]
struct Note {
    token: u64,
    fingerprint: Option<u8>,
    result: Option<u8>,
    ends: u64,
}

#[test]
fn every_decision_is_that_of_the_model() {
    let mut random = Random(0x0ce_0001);
    let mut outcomes = [0; 9];
    let (mut work, mut note): (Option<OnceWork>, Option<Note>) = (None, None);
    let (mut now, mut fence) = (1_750_000_000_000, 0);
    for _ in 0..CALLS {
        now += random.below(40);
        note = note.filter(|note| note.ends > now);
        let token = match random.below(4) {
            0 => fence - random.below(fence + 1),
            _ => fence,
        };
        match random.below(3) {
            0 => {
                let fingerprint = match random.below(3) {
                    0 => None,
                    name => Some(name as u8),
                };
                let bytes = fingerprint.map_or(vec![], |name| vec![name]);
                let lease = 1 + random.below(100);
                let decision = decide_begin(work.as_ref(), &bytes, now);
                let expected = match &note {
                    None => BeginDecision::Begin,
                    Some(note) => match (note.fingerprint, fingerprint, note.result) {
                        (Some(kept), Some(named), _) if kept != named => BeginDecision::Conflict,
                        (_, _, None) => BeginDecision::Busy(note.ends - now),
                        (_, _, Some(_)) => BeginDecision::Done(note.ends - now),
                    },
                };
                assert_eq!(decision, expected, "{work:?} {note:?}");
                if let Some(done) = work.as_ref().and_then(DoneWork::of) {
                    // A client that waited for the work learns its result also after the server has forgotten it.
                    let is_same = done.fingerprint.is_empty()
                        || bytes.is_empty()
                        || *done.fingerprint == *bytes;
                    let expected = match is_same {
                        true => BeginDecision::Done(done.until.saturating_sub(now)),
                        false => BeginDecision::Conflict,
                    };
                    assert_eq!(decide_outcome(&done, &bytes, now), expected);
                }
                outcomes[match decision {
                    BeginDecision::Begin => 0,
                    BeginDecision::Busy(_) => 1,
                    BeginDecision::Done(_) => 2,
                    BeginDecision::Conflict => 3,
                }] += 1;
                if decision == BeginDecision::Begin {
                    fence += 1;
                    work = Some(OnceWork {
                        token: fence,
                        fingerprint: bytes.into(),
                        until: now + lease,
                        result: None,
                    });
                    note = Some(Note {
                        token: fence,
                        fingerprint,
                        result: None,
                        ends: now + lease,
                    });
                }
            }
            1 => {
                let result = random.below(2) as u8;
                let decision = decide_done(work.as_ref(), token, &[result], now);
                let expected = match &note {
                    Some(note) if note.token == token => match note.result {
                        None => DoneDecision::Store,
                        Some(stored) if stored == result => DoneDecision::Repeated,
                        Some(_) => DoneDecision::Refused,
                    },
                    _ => DoneDecision::Refused,
                };
                assert_eq!(decision, expected, "{work:?} {note:?}");
                outcomes[match decision {
                    DoneDecision::Store => 4,
                    DoneDecision::Repeated => 5,
                    DoneDecision::Refused => 6,
                }] += 1;
                if let (DoneDecision::Store, Some(work), Some(note)) =
                    (decision, &mut work, &mut note)
                {
                    let ends = now + 1 + random.below(200);
                    (work.result, work.until) = (Some([result].into()), ends);
                    (note.result, note.ends) = (Some(result), ends);
                }
            }
            _ => {
                let frees = decide_fail(work.as_ref(), token, now);
                let is_current = |note: &Note| note.token == token && note.result.is_none();
                assert_eq!(frees, note.as_ref().is_some_and(is_current));
                outcomes[if frees { 7 } else { 8 }] += 1;
                if frees {
                    (work, note) = (None, None);
                }
            }
        }
    }
    println!("{outcomes:?}");
    assert!(
        outcomes.iter().all(|count| *count > CALLS / 1000),
        "{outcomes:?}"
    );
}
