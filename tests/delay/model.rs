//! The state machine of a delay queue against a naive model, which keeps all messages in one list and sorts it each time.
//! After every operation a replica that receives only the encoded effects is the same, and so is a queue that was saved and
//! loaded.

use proptest::prelude::*;
use sluice::delay::message::{PackedMessage, pack};
use sluice::delay::persist::{self, DelayEffect, QueueBuilder};
use sluice::delay::state::{AddCondition, AddDecision, DelayQueue, Target};
use sluice::server::services::stream::EntryId;

/// An operation, with small numbers so that ids and due times meet often.
#[derive(Debug, Clone)]
enum Operation {
    Add {
        id: u8,
        delay: u64,
        size: usize,
        condition: AddCondition,
    },
    Cancel {
        id: u8,
    },
    Deliver {
        ms: u64,
        most: usize,
    },
    Range {
        count: usize,
    },
}

fn any_operation() -> impl Strategy<Value = Operation> {
    let condition = prop_oneof![
        4 => Just(AddCondition::Always),
        1 => Just(AddCondition::New),
        1 => Just(AddCondition::Present),
    ];
    prop_oneof![
        8 => (0..60u8, 0..30u64, 0..40usize, condition)
            .prop_map(|(id, delay, size, condition)| Operation::Add { id, delay, size, condition }),
        2 => (0..60u8).prop_map(|id| Operation::Cancel { id }),
        3 => (0..8u64, 0..12usize).prop_map(|(ms, most)| Operation::Deliver { ms, most }),
        1 => (0..70usize).prop_map(|count| Operation::Range { count }),
    ]
}

fn target() -> Target {
    Target {
        stream: Box::from(&b"s"[..]),
        maxlen: 0,
    }
}

/// A message of the naive model.
#[derive(Debug, Clone, PartialEq)]
struct Naive {
    due: u64,
    arrival: u64,
    id: Vec<u8>,
    value: Vec<u8>,
}

fn contents(queue: &DelayQueue) -> Vec<Naive> {
    let soonest = queue.soonest(usize::MAX);
    let naive = soonest.into_iter().map(|queued| Naive {
        due: queued.due,
        arrival: queued.arrival,
        id: queued.message().id().into(),
        value: queued.message().values().nth(1).expect("a value").into(),
    });
    naive.collect()
}

/// Carries out effects as a replica does.
fn follow(queue: &mut DelayQueue, effects: &[u8]) {
    for effect in persist::effects(effects) {
        match effect.expect("an effect") {
            DelayEffect::Added(message, due) => {
                queue.put(message, due);
            }
            DelayEffect::Canceled(id) => assert!(queue.remove(id)),
            DelayEffect::Delivered(id, _) => assert!(queue.deliver(id)),
            other => panic!("{other:?}"),
        }
    }
}

fn save_and_load(queue: &DelayQueue) -> DelayQueue {
    let mut builder = QueueBuilder::default();
    persist::pieces(queue, &mut |piece| {
        assert!(!piece.is_empty());
        builder.add(piece).expect("a piece");
    });
    builder.finish().expect("a queue")
}

proptest! {
    #[test]
    fn a_queue_does_what_a_sorted_list_does(
        operations in prop::collection::vec(any_operation(), 1..200)
    ) {
        let mut queue = DelayQueue::new(target());
        let mut replica = queue.clone();
        let mut model: Vec<Naive> = Vec::new();
        let (mut now, mut arrivals, mut delivered) = (1000, 0, 0);
        for operation in operations {
            let mut effects = Vec::new();
            match operation {
                Operation::Add { id, delay, size, condition } => {
                    let id = format!("id{id}").into_bytes();
                    let (due, value) = (now + delay, vec![b'v'; size]);
                    let found = model.iter().position(|naive| naive.id == id);
                    let expected = match (found, condition) {
                        (Some(_), AddCondition::New) | (None, AddCondition::Present) => AddDecision::Refuse,
                        (Some(_), _) => AddDecision::Replace,
                        (None, _) => AddDecision::Add,
                    };
                    prop_assert_eq!(queue.decide_add(&id, condition), expected);
                    if expected != AddDecision::Refuse {
                        let packed = pack(&id, &[b"field", &value]);
                        let message = PackedMessage::read(&packed).expect("a message");
                        prop_assert_eq!(queue.put(message, due), found.is_some());
                        persist::put_added(&mut effects, message, due);
                        if let Some(index) = found {
                            model.remove(index);
                        }
                        model.push(Naive { due, arrival: arrivals, id, value });
                        arrivals += 1;
                    }
                }
                Operation::Cancel { id } => {
                    let id = format!("id{id}").into_bytes();
                    let found = model.iter().position(|naive| naive.id == id);
                    prop_assert_eq!(queue.remove(&id), found.is_some());
                    if let Some(index) = found {
                        model.remove(index);
                        persist::put_canceled(&mut effects, &id);
                    }
                }
                Operation::Deliver { ms, most } => {
                    now += ms;
                    for _ in 0..most {
                        let Some(first) = queue.first().filter(|first| first.due <= now) else {
                            prop_assert!(model.iter().all(|naive| naive.due > now));
                            break;
                        };
                        let naive = model.remove(0);
                        prop_assert_eq!(first.message().id(), &naive.id);
                        let entry = EntryId { ms: now, seq: delivered };
                        persist::put_delivered(&mut effects, &naive.id, entry);
                        queue.deliver_first();
                        delivered += 1;
                    }
                }
                Operation::Range { count } => {
                    let soonest = queue.soonest(count);
                    prop_assert_eq!(soonest.len(), count.min(model.len()));
                    for (queued, naive) in soonest.iter().zip(&model) {
                        prop_assert_eq!(queued.message().id(), &naive.id);
                    }
                }
            }
            model.sort_by_key(|naive| (naive.due, naive.arrival));
            follow(&mut replica, &effects);
            for queue in [&queue, &replica, &save_and_load(&queue)] {
                prop_assert_eq!(contents(queue), model.clone());
                prop_assert_eq!((queue.arrivals(), queue.delivered()), (arrivals, delivered));
                let bytes: usize = model.iter().map(|naive| naive.id.len() + 5 + naive.value.len()).sum();
                prop_assert_eq!(queue.payload_bytes(), bytes as u64);
                prop_assert_eq!(queue.next_due(), model.first().map_or(u64::MAX, |naive| naive.due));
            }
        }
    }

    #[test]
    fn no_bytes_make_effects_or_queues_panic(bytes: Vec<u8>) {
        for effect in persist::effects(&bytes).take(1000) {
            if effect.is_err() {
                break;
            }
        }
        let _ = PackedMessage::read(&bytes);
        let mut builder = QueueBuilder::default();
        let _ = builder.add(&bytes);
        let _ = builder.finish();
    }
}

fn fill(queue: &mut DelayQueue, count: u64) -> u64 {
    let mut payload = 0;
    for number in 0..count {
        let id = format!("order:{number:010}");
        let value = number.to_string();
        let packed = pack(id.as_bytes(), &[b"order", value.as_bytes()]);
        let message = PackedMessage::read(&packed).expect("a message");
        payload += message.payload_bytes();
        queue.put(message, number * 7919 % 10_000);
    }
    payload
}

#[test]
fn a_message_takes_at_most_100_bytes_more_than_its_payload() {
    for count in [20, 50, 100, 300, 520, 1000, 5000, 70_000, 100_000, 140_000] {
        let mut queue = DelayQueue::new(target());
        let payload = fill(&mut queue, count);
        // The key itself, the struct and the smallest blocks are the queue's and not a message's.
        let overhead = queue.memory().saturating_sub(400) as u64 - payload;
        assert!(overhead <= 100 * count, "{count}: {overhead}");
    }
}

#[test]
fn memory_comes_back_when_messages_go() {
    let mut queue = DelayQueue::new(target());
    let empty = queue.memory();
    fill(&mut queue, 20_000);
    let full = queue.memory();
    while queue.len() > 500 {
        queue.deliver_first();
    }
    assert!(queue.memory() < full / 10, "{} of {full}", queue.memory());
    while !queue.is_empty() {
        queue.deliver_first();
    }
    assert!(queue.memory() < empty + 1000, "{}", queue.memory());
    assert_eq!((queue.delivered(), queue.payload_bytes()), (20_000, 0));
}

#[test]
fn messages_without_a_whole_pair_or_an_id_are_corrupt() {
    for (id, values) in [
        (&b""[..], &[&b"f"[..], b"v"][..]),
        (&[b'x'; 513], &[b"f", b"v"]),
        (b"id", &[]),
        (b"id", &[b"f"]),
        (b"id", &[b"f", b"v", b"f"]),
    ] {
        assert!(PackedMessage::read(&pack(id, values)).is_err());
    }
    let packed = pack(b"id", &[b"", b""]);
    assert!(PackedMessage::read(&packed).is_ok());
    assert!(PackedMessage::read(&packed[..packed.len() - 1]).is_err());
}

#[test]
fn a_loaded_queue_has_each_id_once_and_no_message_of_the_future() {
    let packed = pack(b"id", &[b"f", b"v"]);
    let message = PackedMessage::read(&packed).expect("a message");
    let mut queue = DelayQueue::with_counts(target(), 1, 0);
    assert!(queue.restore(message, 5, 2).is_err());
    assert!(queue.restore(message, 5, 0).is_ok());
    assert!(queue.restore(message, 6, 0).is_err());
    assert_eq!(queue.len(), 1);
}
