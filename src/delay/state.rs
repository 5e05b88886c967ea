//! The state machine of a delay queue: messages by id, and in the order of their delivery.
//!
//! Messages are in a [`LinearHash`]. A binary heap of their handles keeps them in the order of (due time, arrival), and each
//! message has its index in the heap. So every operation is O(log n), and no operation moves all messages.

use super::message::{PackedMessage, QueuedMessage};
use crate::codec::Corrupt;
use crate::linear_hash::{EntryHandle, LinearHash};
use crate::memory::block_size;
use crate::request::MAX_SAFE;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The counts of a queue end here: the largest number in a reply.
pub const MAX_COUNT: u64 = MAX_SAFE as u64;

/// The stream of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The key of the stream.
    pub stream: Box<[u8]>,
    /// About how many entries the stream keeps; 0: all.
    pub maxlen: u64,
}

/// Which messages a request may add or replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddCondition {
    /// Any message.
    Always,
    /// `NX`: only a new one.
    New,
    /// `XX`: only one whose id is in the queue.
    Present,
}

/// What becomes of a request to add a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddDecision {
    /// The message is new.
    Add,
    /// It takes the place of the one with this id.
    Replace,
    /// The condition forbids it.
    Refuse,
}

/// Messages that are to reach a stream later.
#[derive(Debug, Clone)]
pub struct DelayQueue {
    target: Target,
    messages: LinearHash<QueuedMessage>,
    /// A binary heap: no message is due after its two children, at 2i + 1 and 2i + 2.
    heap: Vec<EntryHandle>,
    /// How many messages have arrived, replaced ones included.
    arrivals: u64,
    delivered: u64,
    payload_bytes: u64,
}

impl DelayQueue {
    /// A queue without messages.
    pub fn new(target: Target) -> Self {
        Self::with_counts(target, 0, 0)
    }

    /// A queue without messages that has had some: how many arrived, and how many were delivered.
    pub fn with_counts(target: Target, arrivals: u64, delivered: u64) -> Self {
        Self {
            target,
            messages: LinearHash::default(),
            heap: Vec::new(),
            arrivals,
            delivered,
            payload_bytes: 0,
        }
    }

    /// The stream.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Sets the stream of the queue. The messages stay.
    pub fn set_target(&mut self, target: Target) {
        self.target = target;
    }

    /// How many messages wait.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether no message waits.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// How many messages have arrived, replaced ones included.
    pub fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// How many messages were delivered.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// The bytes of all ids, fields and values.
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// The message with this id.
    pub fn get(&self, id: &[u8]) -> Option<&QueuedMessage> {
        self.messages.get(id)
    }

    /// The message that is delivered next.
    pub fn first(&self) -> Option<&QueuedMessage> {
        self.messages.at(*self.heap.first()?)
    }

    /// When the next message is due (Unix ms); `u64::MAX`: never.
    pub fn next_due(&self) -> u64 {
        self.first().map_or(u64::MAX, |message| message.due)
    }

    /// All messages, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &QueuedMessage> {
        self.messages.iter()
    }

    /// The first `count` messages in the order of delivery.
    pub fn soonest(&self, count: usize) -> Vec<&QueuedMessage> {
        let mut found = Vec::with_capacity(count.min(self.len()));
        let mut next = BinaryHeap::new();
        let push = |next: &mut BinaryHeap<_>, position: usize| {
            if position < self.heap.len() {
                next.push(Reverse((self.rank(position), position)));
            }
        };
        push(&mut next, 0);
        while found.len() < count
            && let Some(Reverse((_, position))) = next.pop()
        {
            found.extend(self.messages.at(self.heap[position]));
            push(&mut next, 2 * position + 1);
            push(&mut next, 2 * position + 2);
        }
        found
    }

    /// Decides about a request to add a message.
    pub fn decide_add(&self, id: &[u8], condition: AddCondition) -> AddDecision {
        match (self.messages.find(id).is_some(), condition) {
            (true, AddCondition::New) | (false, AddCondition::Present) => AddDecision::Refuse,
            (true, _) => AddDecision::Replace,
            (false, _) => AddDecision::Add,
        }
    }

    /// Puts a message in that arrives now, in place of the one with its id. Returns whether there was one.
    pub fn put(&mut self, message: PackedMessage<'_>, due: u64) -> bool {
        let is_replaced = self.remove(message.id());
        let arrival = self.arrivals;
        self.arrivals = (arrival + 1).min(MAX_COUNT);
        self.insert(QueuedMessage::new(message, due, arrival));
        is_replaced
    }

    /// Puts a message in that arrived before, from a file or a master. Its id must be new.
    pub fn restore(
        &mut self,
        message: PackedMessage<'_>,
        due: u64,
        arrival: u64,
    ) -> Result<(), Corrupt> {
        if arrival > self.arrivals || self.get(message.id()).is_some() {
            return Err(Corrupt);
        }
        self.insert(QueuedMessage::new(message, due, arrival));
        Ok(())
    }

    /// Removes a message that was not delivered. Returns whether there was one.
    pub fn remove(&mut self, id: &[u8]) -> bool {
        let found = self.messages.find(id);
        found.is_some_and(|handle| self.take(handle).is_some())
    }

    /// Removes a message that was delivered. Returns whether there was one.
    pub fn deliver(&mut self, id: &[u8]) -> bool {
        let is_there = self.remove(id);
        if is_there {
            self.count_delivery();
        }
        is_there
    }

    /// The same for the [first](Self::first) message.
    pub fn deliver_first(&mut self) {
        let first = self.heap.first().copied();
        if first.is_some_and(|handle| self.take(handle).is_some()) {
            self.count_delivery();
        }
    }

    fn count_delivery(&mut self) {
        self.delivered = (self.delivered + 1).min(MAX_COUNT);
    }

    /// The bytes that it takes from the allocator beside its own struct.
    pub fn memory(&self) -> usize {
        self.messages.memory()
            + block_size(self.heap.capacity() * size_of::<EntryHandle>())
            + block_size(self.target.stream.len())
    }

    /// Calls `visit` with the blocks of a part of the messages, which it may move and not change. Returns whether there is
    /// such a part: 0, 1, 2...
    pub fn visit_part(&mut self, part: usize, visit: &mut dyn FnMut(&mut Box<[u8]>)) -> bool {
        if part >= self.messages.chunks() {
            return false;
        }
        self.messages
            .visit_chunk(part, &mut |message| visit(message.block()));
        true
    }

    fn insert(&mut self, message: QueuedMessage) {
        self.payload_bytes += message.message().payload_bytes();
        if let Some(handle) = self.messages.insert(message) {
            self.heap.push(handle);
            self.sift_up(self.heap.len() - 1);
        }
    }

    fn take(&mut self, handle: EntryHandle) -> Option<QueuedMessage> {
        let message = self.messages.remove(handle)?;
        self.payload_bytes -= message.message().payload_bytes();
        let position = message.position as usize;
        self.heap.swap_remove(position);
        if position < self.heap.len() {
            // The handle that was the last one has come here.
            let position = self.sift_down(position);
            self.sift_up(position);
        }
        if self.heap.capacity() > 4 * self.heap.len() {
            self.heap.shrink_to(2 * self.heap.len());
        }
        let heap = &mut self.heap;
        self.messages
            .compact(&mut |message, handle| heap[message.position as usize] = handle);
        Some(message)
    }

    fn rank(&self, position: usize) -> (u64, u64) {
        let message = self.messages.at(self.heap[position]);
        message.map_or((u64::MAX, u64::MAX), QueuedMessage::rank)
    }

    /// Notes in a message where its handle is.
    fn set_position(&mut self, position: usize) {
        if let Some(message) = self.messages.at_mut(self.heap[position]) {
            message.position = position as u32;
        }
    }

    fn sift_up(&mut self, mut position: usize) {
        let rank = self.rank(position);
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.rank(parent) <= rank {
                break;
            }
            self.heap.swap(parent, position);
            self.set_position(position);
            position = parent;
        }
        self.set_position(position);
    }

    /// Returns the new position.
    fn sift_down(&mut self, mut position: usize) -> usize {
        let rank = self.rank(position);
        loop {
            let children = 2 * position + 1..(2 * position + 3).min(self.heap.len());
            let ranked = children.map(|child| (self.rank(child), child)).min();
            let Some((_, child)) = ranked.filter(|(other, _)| *other < rank) else {
                break;
            };
            self.heap.swap(position, child);
            self.set_position(position);
            position = child;
        }
        self.set_position(position);
        position
    }
}
