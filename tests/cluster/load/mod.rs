//! Clients of all families at work on some hash slots, and what must hold of what they were told, whatever happens to the
//! slots and their masters meanwhile.

#![allow(dead_code, unreachable_pub)]

mod caches;
mod delays;
mod filters;
mod locks;
mod rates;
mod stocks;
mod works;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use crate::support::cluster::{Client, Six, Told};
use crate::support::{EndOnDrop, Random};
use caches::Caches;
use delays::Delays;
use filters::Filters;
use locks::Locks;
use rates::Rates;
use stocks::Stocks;
use works::Works;

/// Clients that wait for locks and semaphores most of the time.
const WAITING: usize = 5;

/// Clients that do everything else.
const BUSY: usize = 4;

/// Everything that is done in one slot.
struct Place {
    locks: Locks,
    stocks: Stocks,
    filters: Filters,
    caches: Caches,
    rates: Rates,
    works: Works,
    delays: Delays,
}

/// The work of all clients.
pub struct Load<'a> {
    cluster: &'a Six,
    places: Vec<Place>,
    steps: AtomicUsize,
    /// How often the clients were sent to work: what they do has another name each time.
    shifts: AtomicUsize,
    has_ended: AtomicBool,
}

impl<'a> Load<'a> {
    /// Makes the keys that the clients need, in the slots of these hash tags.
    pub fn prepare(cluster: &'a Six, tags: &[&str]) -> Self {
        let mut client = Client::of(cluster);
        let place = |tag: &&str| Place {
            locks: Locks::new(tag),
            stocks: Stocks::prepare(&mut client, tag),
            filters: Filters::prepare(&mut client, tag),
            caches: Caches::new(tag),
            rates: Rates::new(tag),
            works: Works::new(tag),
            delays: Delays::prepare(&mut client, tag),
        };
        Self {
            cluster,
            places: tags.iter().map(place).collect(),
            steps: AtomicUsize::new(0),
            shifts: AtomicUsize::new(0),
            has_ended: AtomicBool::new(false),
        }
    }

    /// Whether the clients have done too little for [`check`](Self::check) to mean something: a busy machine takes its time.
    pub fn is_tame(&self) -> bool {
        self.steps.load(Ordering::Relaxed) < 2000
    }

    /// Lets the clients work until `disturb` is over, and returns what that returns.
    pub fn during<T>(&self, disturb: impl FnOnce() -> T) -> T {
        let shift = self.shifts.fetch_add(1, Ordering::Relaxed);
        let result = thread::scope(|scope| {
            let started: Vec<_> = (0..WAITING + BUSY)
                .map(|index| scope.spawn(move || self.work(shift, index)))
                .collect();
            let _end = EndOnDrop(&self.has_ended);
            let result = disturb();
            self.has_ended.store(true, Ordering::Relaxed);
            let mut told = Told::default();
            for client in started {
                told += client.join().expect("a client");
            }
            println!("{} steps; {told:?}", self.steps.load(Ordering::Relaxed));
            result
        });
        self.has_ended.store(false, Ordering::Relaxed);
        result
    }

    fn work(&self, shift: usize, index: usize) -> Told {
        let mut client = Client::of(self.cluster);
        let mut random = Random(0x9e37_79b9 * (index as u64 + 1) + u64::from(std::process::id()));
        let mut round = 0;
        while !self.has_ended.load(Ordering::Relaxed) {
            round += 1;
            let id = format!("{shift}:{index}:{round}");
            let place = &self.places[random.below(self.places.len() as u64) as usize];
            if index < WAITING {
                place.locks.step(&mut client, &mut random, &id);
            } else {
                match random.below(12) {
                    0..4 => place.stocks.step(&mut client, &mut random, &id),
                    4 | 5 => place.caches.step(&mut client, &mut random),
                    6 => place.filters.step(&mut client, &mut random, &id),
                    7..9 => place.works.step(&mut client, &mut random),
                    9..11 => place.delays.step(&mut client, &mut random, &id),
                    _ => place.rates.step(&mut client, &mut random),
                }
            }
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
        client.told
    }

    /// Panics unless all that the clients were told can be, and the dataset says the same.
    #[track_caller]
    pub fn check(&self) {
        let mut client = Client::of(self.cluster);
        for place in &self.places {
            place.locks.check(&mut client);
            place.stocks.check(&mut client);
            place.filters.check(&mut client);
            place.caches.check();
            place.rates.check(&mut client);
            place.works.check(&mut client);
            place.delays.check(&mut client);
        }
    }
}

/// A key of the slot of a hash tag.
fn key(tag: &str, name: &str) -> String {
    format!("{{{tag}}}{name}")
}

/// A short time, in which something else may happen.
fn pause(random: &mut Random) {
    sleep(Duration::from_micros(random.below(2000)));
}
