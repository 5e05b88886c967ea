//! Many short histories of clients that work on the same few keys while things go wrong, each checked: is there an order
//! of what was asked, one after the other, that explains every reply? (Herlihy and Wing, "Linearizability: a correctness
//! condition for concurrent objects", 1990.)
//!
//! Things go wrong as a seed has it: the server is frozen, killed and started again from its append-only file, paused,
//! reloaded, made a replica and a master again; connections are killed; requests and replies are lost, cut, late and
//! split by a proxy. Whoever hears no reply goes on without it, or asks the same again, as clients do.
//!
//! - `checker.rs` asks the `stateright` crate; `holds.rs` (locks and semaphores), `stocks.rs` and `entries.rs` (caches)
//!   and `works.rs` (work that is done once) are the sequential models; `examples.rs` is what they take for right and for wrong;
//! - `holders.rs`, `buyers.rs`, `readers.rs` and `workers.rs` are their clients; `run.rs` lets them work and writes down what they saw;
//! - `faults.rs` and `proxy.rs` are what goes wrong.
//!
//! That the checker finds what is wrong is tested too: clients that are made wrong on purpose are caught.
//!
//! Environment: `SLUICE_HISTORIES` is how many histories of each family are recorded (default 40; 2000 take some
//! minutes). `SLUICE_SEED` is the first one's seed, which a failure prints: it draws the same operations and faults
//! again, if not the same times.

// What modules of one test show each other need not be reachable from anywhere.
#![allow(unreachable_pub)]

mod buyers;
mod checker;
mod entries;
mod examples;
mod faults;
mod holders;
mod holds;
mod proxy;
mod readers;
mod run;
mod stocks;
#[path = "../support/mod.rs"]
mod support;
mod workers;
mod works;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use buyers::Buyers;
use faults::{Fault, Tally, World};
use holders::Holders;
use readers::Readers;
use run::{Family, Judgment, Plan, judge, run};
use support::Random;
use workers::Workers;

/// How many servers of a family run at the same time: their clients mostly wait.
const WORLDS: usize = 3;

/// Clients that are made wrong on purpose have to be caught within so many histories.
const CAUGHT_WITHIN: u64 = 200;

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is no number: {text}")),
    )
}

fn first_seed() -> u64 {
    number_from("SLUICE_SEED").unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        u64::try_from(now.expect("the clock is past 1970").as_micros())
            .expect("it is not that late")
    })
}

/// A generator for the history of this seed: seeds in a row give unlike histories.
fn random(seed: u64) -> Random {
    Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
}

/// Records histories of a family's clients, and checks each.
fn explore<F: Family>(name: &str, clients: impl Fn(&str, &mut Random) -> F + Sync) {
    let histories = number_from("SLUICE_HISTORIES").unwrap_or(40);
    let first = first_seed();
    let tally = Arc::new(Tally::default());
    let (next, not_decided) = (AtomicU64::new(0), AtomicU64::new(0));
    let explore_a_world = || {
        let world = World::durable(&tally);
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= histories {
                return;
            }
            if !explore_one(name, &world, first + number, &clients) {
                not_decided.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..WORLDS.min(histories as usize) {
            scope.spawn(explore_a_world);
        }
    });
    let not_decided = not_decided.into_inner();
    println!("{name}: {histories} histories from seed {first}, {not_decided} not decided; {tally}");
    assert!(
        not_decided * 10 <= histories,
        "the search is too slow: {not_decided}"
    );
    assert!(tally.of(run::OPERATIONS) as u64 > 15 * histories);
}

/// One history of a seed; panics when nothing explains it. Returns whether that could be decided.
fn explore_one<F: Family>(
    name: &str,
    world: &World,
    seed: u64,
    clients: impl Fn(&str, &mut Random) -> F,
) -> bool {
    let mut random = random(seed);
    let family = clients(&format!("{name}:{seed}"), &mut random);
    let plan = Plan::of(random.word() | 1);
    let history = run(world, &family, &plan);
    match judge(&family, &history) {
        Ok(()) => true,
        Err(Judgment::TooLong) => false,
        Err(Judgment::Wrong(told)) => panic!(
            "{name}: nothing explains this history (SLUICE_SEED={seed} SLUICE_HISTORIES=1):\n{told}"
        ),
    }
}

/// The commands of the families with a sequential model that the histories contain.
const IN_HISTORIES: &str = "lock.acquire lock.release lock.renew lock.macquire lock.mrelease lock.upgrade lock.downgrade lock.held \
     lock.info sem.acquire sem.release sem.renew sem.macquire sem.mrelease sem.info \
     stock.set stock.add stock.deduct stock.reserve stock.confirm stock.cancel stock.mdeduct stock.mreserve stock.mconfirm \
     stock.mcancel stock.get stock.info \
     cache.fetch cache.set cache.setnull cache.del cache.fail cache.get once.begin once.done once.fail once.info";

/// The commands of these families that no history contains, each with the tests that have it instead.
const ELSEWHERE: &[(&str, &str)] = &[
    ("lock.cancel", "random worlds: lock/handover.rs"),
    ("sem.cancel", "random worlds: lock/handover.rs"),
    ("lock.guard", "one integer: lock/model.rs"),
    ("stock.mget", "as STOCK.GET of each key: stock/commands.rs"),
    ("stock.order", "reads one order: stock/model.rs"),
    (
        "stock.import",
        "turns another type into a stock once: stock/commands.rs",
    ),
    ("cache.info", "reads times: cache/commands.rs"),
    ("cache.breaker", "not of a key: cache/breaker.rs"),
];

#[test]
fn every_command_of_a_modelled_family_is_in_histories_or_elsewhere() {
    let server = support::Server::start();
    let commands = server.command(["COMMAND", "LIST", "FILTERBY", "MODULE", "sluice"]);
    let mut commands: Vec<_> = commands
        .array()
        .iter()
        .map(|name| name.text().to_lowercase())
        .filter(|name| {
            let (family, verb) = name.split_once('.').expect("a family and a verb");
            ["lock", "sem", "stock", "cache", "once"].contains(&family)
                && !["apply", "fence"].contains(&verb)
        })
        .collect();
    commands.sort();
    let elsewhere = ELSEWHERE.iter().map(|(name, _)| *name);
    let mut listed: Vec<_> = IN_HISTORIES.split_whitespace().chain(elsewhere).collect();
    listed.sort_unstable();
    assert_eq!(commands, listed);
}

#[test]
fn locks_are_linearizable_whatever_goes_wrong() {
    explore("lock", |prefix, random| {
        Holders::of(false, prefix, random, None)
    });
}

#[test]
fn semaphores_are_linearizable_whatever_goes_wrong() {
    explore("sem", |prefix, random| {
        Holders::of(true, prefix, random, None)
    });
}

#[test]
fn locks_and_semaphores_of_notified_clients_are_linearizable_whatever_goes_wrong() {
    for semaphores in [false, true] {
        explore("notified", |prefix, random| {
            Holders::of(semaphores, prefix, random, None).notified()
        });
    }
}

#[test]
fn stocks_are_linearizable_whatever_goes_wrong() {
    explore("stock", |prefix, random| Buyers::of(prefix, random, None));
}

#[test]
fn caches_are_linearizable_whatever_goes_wrong() {
    explore("cache", |prefix, random| Readers::of(prefix, random, None));
}

#[test]
fn work_that_is_done_once_is_linearizable_whatever_goes_wrong() {
    explore("once", |prefix, random| Workers::of(prefix, random, None));
}

/// Panics unless a history of such clients is found to be wrong.
fn is_caught<F: Family>(
    what: &str,
    world: &World,
    fault: Option<Fault>,
    clients: impl Fn(&str, &mut Random) -> F,
) {
    let first = first_seed();
    for seed in first..first + CAUGHT_WITHIN {
        let mut random = random(seed);
        let family = clients(&format!("wrong:{seed}"), &mut random);
        let mut plan = Plan::of(random.word() | 1);
        // The fault that shows it, or few: the clients are wrong enough.
        plan.faults
            .retain(|(_, fault)| matches!(fault, Fault::Requests(_) | Fault::Replies(_)));
        plan.faults.extend(fault.map(|fault| (5, fault)));
        let history = run(world, &family, &plan);
        if matches!(judge(&family, &history), Err(Judgment::Wrong(_))) {
            let number = seed - first + 1;
            println!("{what}: caught in history {number} from seed {first}");
            return;
        }
    }
    panic!("{what}: not caught (SLUICE_SEED={first})");
}

#[test]
fn wrong_locks_and_semaphores_are_caught() {
    use holders::Mutation;
    let world = World::durable(&Arc::default());
    for (semaphores, mutation) in [
        (false, Mutation::ReleaseIgnoresOwner),
        (false, Mutation::IdIgnored),
        (true, Mutation::ReleaseIgnoresOwner),
        (true, Mutation::IdIgnored),
        (true, Mutation::OverLimit),
    ] {
        let what = format!("{mutation:?}, semaphores: {semaphores}");
        is_caught(&what, &world, None, |prefix, random| {
            Holders::of(semaphores, prefix, random, Some(mutation))
        });
    }
}

#[test]
fn a_notified_client_that_ignores_its_grant_is_caught() {
    let world = World::durable(&Arc::default());
    for semaphores in [false, true] {
        let what = format!("an ignored grant, semaphores: {semaphores}");
        is_caught(&what, &world, None, |prefix, random| {
            let mutation = Some(holders::Mutation::GrantIgnored);
            Holders::of(semaphores, prefix, random, mutation).notified()
        });
    }
}

#[test]
fn wrong_stocks_are_caught() {
    use buyers::Mutation;
    let world = World::durable(&Arc::default());
    for mutation in [Mutation::LooksThenTakes, Mutation::OrderIgnored] {
        is_caught(&format!("{mutation:?}"), &world, None, |prefix, random| {
            Buyers::of(prefix, random, Some(mutation))
        });
    }
}

#[test]
fn wrong_caches_are_caught() {
    let world = World::durable(&Arc::default());
    let mutation = Some(readers::Mutation::AnyTokenWillDo);
    is_caught("a void token", &world, None, |prefix, random| {
        Readers::of(prefix, random, mutation)
    });
}

#[test]
fn work_that_is_done_twice_is_caught() {
    use workers::Mutation;
    let world = World::durable(&Arc::default());
    for mutation in [Mutation::BusyIgnored, Mutation::TokenIgnored] {
        is_caught(&format!("{mutation:?}"), &world, None, |prefix, random| {
            Workers::of(prefix, random, Some(mutation))
        });
    }
}

#[test]
fn a_server_that_forgets_in_a_crash_is_caught() {
    let world = World::forgetful(&Arc::default());
    let crash = Some(Fault::Crash(0));
    is_caught("lost locks", &world, crash, |prefix, random| {
        Holders::of(false, prefix, random, None)
    });
    is_caught("lost stocks", &world, crash, |prefix, random| {
        Buyers::of(prefix, random, None)
    });
    is_caught("lost entries", &world, crash, |prefix, random| {
        Readers::of(prefix, random, None)
    });
    is_caught("lost work", &world, crash, |prefix, random| {
        Workers::of(prefix, random, None)
    });
}
