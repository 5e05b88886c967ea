//! The native type: how delay queues are saved, copied, measured and moved.

use super::DEADLINES;
use super::persist::{self, DELAY_VERSION, QueueBuilder};
use super::state::DelayQueue;
use crate::deadlines::Listed;
use crate::server::handles::context::Ctx;
use crate::server::handles::io::{AofWriter, Digest, RdbReader, RdbWriter};
use crate::server::services::native::{
    Native, NativeType, Relocate, TypeUsage, register, usage_of,
};
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Delay queues in the keyspace.
pub static DELAY: NativeType<ListedQueue> = NativeType::new("sluice-dq");

/// The functions that register the type.
pub const TYPES: &[fn(Ctx<'_>) -> bool] = &[register::<DelayQueues>];

/// The memory of the values.
pub const USAGE: &[TypeUsage] = &[usage_of::<DelayQueues>()];

/// A queue at a key.
#[derive(Debug)]
pub struct ListedQueue {
    /// The queue itself.
    pub queue: DelayQueue,
    /// When the server delivers next.
    pub listed: Listed,
    gauge: QueueGauge,
}

impl ListedQueue {
    /// A queue that is still to be listed.
    pub fn new(queue: DelayQueue) -> Self {
        let mut listed = Self {
            queue,
            listed: Listed::default(),
            gauge: QueueGauge::default(),
        };
        listed.measure(false);
        listed
    }

    /// Whether the last delivery failed.
    pub fn is_stuck(&self) -> bool {
        self.gauge.is_stuck
    }

    /// Updates the sums over all queues. `is_stuck`: whether the last delivery failed.
    pub fn measure(&mut self, is_stuck: bool) {
        self.gauge.set(self.queue.len(), is_stuck);
    }
}

/// The part of one queue in the sums over all queues. Ends with the queue, perhaps on a background thread.
#[derive(Debug, Default)]
struct QueueGauge {
    messages: usize,
    is_stuck: bool,
}

static ALL_MESSAGES: AtomicUsize = AtomicUsize::new(0);
static STUCK_QUEUES: AtomicUsize = AtomicUsize::new(0);

/// How many messages wait in all queues.
pub(super) fn all_messages() -> u64 {
    ALL_MESSAGES.load(Ordering::Relaxed) as u64
}

/// How many queues cannot deliver.
pub(super) fn stuck_queues() -> u64 {
    STUCK_QUEUES.load(Ordering::Relaxed) as u64
}

impl QueueGauge {
    fn set(&mut self, messages: usize, is_stuck: bool) {
        let change = |sum: &AtomicUsize, before: usize, after: usize| {
            if before != after {
                // Wraps around where it falls.
                sum.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
            }
        };
        change(&ALL_MESSAGES, self.messages, messages);
        change(&STUCK_QUEUES, self.is_stuck.into(), is_stuck.into());
        (self.messages, self.is_stuck) = (messages, is_stuck);
    }
}

impl Drop for QueueGauge {
    fn drop(&mut self) {
        self.set(0, false);
    }
}

struct DelayQueues;

impl Native for DelayQueues {
    type Value = ListedQueue;
    const ENCODING: c_int = 0;

    fn native() -> &'static NativeType<ListedQueue> {
        &DELAY
    }

    fn save(value: &ListedQueue, out: &mut RdbWriter<'_>) {
        out.bytes(&[DELAY_VERSION]);
        persist::pieces(&value.queue, &mut |piece| out.bytes(piece));
        out.bytes(&[]);
    }

    fn load(input: &mut RdbReader<'_>, _encoding: c_int) -> Option<ListedQueue> {
        if !input.bytes(|version| version == [DELAY_VERSION])? {
            return None;
        }
        let mut builder = QueueBuilder::default();
        loop {
            let is_end = input.bytes(|piece| match piece {
                [] => Ok(true),
                _ => builder.add(piece).map(|()| false),
            })?;
            if is_end.ok()? {
                break;
            }
        }
        let mut value = ListedQueue::new(builder.finish().ok()?);
        if let Some((db, key)) = input.key() {
            let at = value.queue.next_due();
            DEADLINES.list_loaded(&mut value.listed, db, key, at);
        }
        Some(value)
    }

    fn rewrite(value: &ListedQueue, out: &mut AofWriter<'_>) {
        persist::pieces(&value.queue, &mut |piece| {
            out.command(c"DELAY.APPLY", piece)
        });
    }

    fn digest(value: &ListedQueue, digest: &mut Digest<'_>) {
        let mut element = Vec::new();
        persist::put_created(&mut element, &value.queue);
        digest.element(&element);
        for queued in value.queue.iter() {
            element.clear();
            persist::put_waiting(&mut element, queued);
            digest.element(&element);
        }
    }

    fn memory(value: &ListedQueue) -> usize {
        value.queue.memory() + value.listed.memory()
    }

    fn free_effort(value: &ListedQueue) -> usize {
        value.queue.len() + 1
    }

    fn copy(value: &ListedQueue) -> Option<ListedQueue> {
        Some(ListedQueue::new(value.queue.clone()))
    }

    fn unlinked(value: &ListedQueue, _db: i32, _key: &[u8]) {
        DEADLINES.unlinked(&value.listed);
    }

    fn defrag(value: &mut ListedQueue, relocate: &mut Relocate<'_>, from: usize) -> Option<usize> {
        let mut part = from;
        while value
            .queue
            .visit_part(part, &mut |block| relocate.bytes(block))
        {
            part += 1;
            if relocate.should_stop() {
                return Some(part);
            }
        }
        None
    }
}

/// Lists a queue by its next delivery, if it has one.
pub(super) fn list(value: &mut ListedQueue, db: i32, key: &[u8]) {
    let at = value.queue.next_due();
    DEADLINES.list(&mut value.listed, db, key, at);
}
