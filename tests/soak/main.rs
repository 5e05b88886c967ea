//! The soak: commands of all families, with all their options, right ones and wrong ones, from clients that wait and
//! clients that go, over a few keys that are expired, deleted, renamed, copied, dumped, restored from garbage, swapped,
//! flushed, reloaded and rewritten all the while. After each round of it the server is emptied, and must be what it was
//! after the first one: no byte more is in use, nobody waits, no lease is out.
//!
//! `COMMANDS` says how many there are in all (200000), in ten rounds; `SEED` makes other ones. `make soak` runs ten
//! million and shows what was measured.

mod draw;
mod lines;
mod quiet;
mod session;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use draw::{Command, Draw, Lines};
use quiet::{Memory, come_to_rest};
use session::{BATCH, Session, Tallies};
use support::{Fsync, Raw, Server, Shutdown, encode, number_from};

const ROUNDS: u64 = 10;

/// Clients that send pipelines, all the time.
const SESSIONS: usize = 6;

/// Clients that may be waiting at once.
const WAITERS: usize = 60;

/// How many bytes more than after the first round may be in use: tables of the server's own grow with what it has seen.
const SLACK: i64 = 256 * 1024;

/// By how much resident memory may differ: allocators keep pages that are not full. A leak of ten bytes for each
/// command is more than this in `make soak`.
const RESIDENT_SLACK: i64 = 12 << 20;

/// One batch in so many is a transaction.
const TRANSACTIONS: u64 = 8;

/// One batch in so many has something in it that happens to the whole dataset.
const SELDOM: u64 = 40;

/// All kinds of lines.
struct Kinds {
    ours: Lines,
    theirs: Lines,
    seldom: Lines,
    waiters: Lines,
}

/// What a soak has in all its rounds.
struct Soak<'a> {
    server: &'a Server,
    may_die_of_unblock: bool,
    kinds: Kinds,
    draw: Draw,
    tallies: Tallies,
    /// The most that `used_memory` was between two batches.
    most: i64,
}

impl<'a> Soak<'a> {
    fn new(server: &'a Server, seed: u64) -> Self {
        Self {
            server,
            may_die_of_unblock: server.may_die_of_unblock(),
            kinds: Kinds {
                ours: Lines::new(lines::OURS),
                theirs: Lines::new(lines::THEIRS),
                seldom: Lines::new(lines::SELDOM),
                waiters: Lines::new(lines::WAITERS),
            },
            draw: Draw::new(seed),
            tallies: Tallies::new(),
            most: 0,
        }
    }

    /// One round, of about so many commands.
    fn run(&mut self, commands: u64) {
        let mut sessions: Vec<_> = (0..SESSIONS)
            .map(|number| Session::connect(self.server, number))
            .collect();
        let mut waiters: Vec<Raw> = Vec::new();
        for batch in 0..commands.div_ceil(BATCH as u64) {
            let turn = self.draw.below(SESSIONS);
            let (draw, tallies) = (&mut self.draw, &mut self.tallies);
            if draw.once_in(TRANSACTIONS) {
                let commands: Vec<_> = (0..BATCH)
                    .map(|_| draw.proper_command(&self.kinds.ours))
                    .collect();
                sessions[turn].transact(draw, &commands, tallies);
            } else {
                let commands = self.batch();
                sessions[turn].run(&mut self.draw, &commands, &mut self.tallies);
            }
            self.wait(&mut waiters);
            if self.draw.once_in(20) {
                // It goes, with what it has watched.
                sessions[turn] = Session::connect(self.server, turn);
            }
            if batch % 100 == 0 {
                self.most = self.most.max(self.server.info_int("used_memory"));
            }
        }
    }

    fn batch(&mut self) -> Vec<Command> {
        let mut commands: Vec<_> = (0..BATCH)
            .map(|_| {
                let kind = if self.draw.once_in(6) {
                    &self.kinds.theirs
                } else {
                    &self.kinds.ours
                };
                self.draw.command(kind)
            })
            .collect();
        if self.draw.once_in(SELDOM) {
            let place = self.draw.below(BATCH);
            commands[place] = self.draw.proper_command(&self.kinds.seldom);
        }
        commands
    }

    /// Somebody comes who may wait for long, and somebody goes who may have been waiting, or holding, until now: by
    /// himself, or because he is told to.
    fn wait(&mut self, waiters: &mut Vec<Raw>) {
        let mut client = Raw::connect(self.server);
        let command = self.draw.proper_command(&self.kinds.waiters);
        if self.draw.once_in(8) {
            let id = client.id().to_string();
            client.send(&command);
            let mut control = Raw::connect(self.server);
            if !self.may_die_of_unblock && self.draw.once_in(2) {
                control.call([
                    "CLIENT",
                    "UNBLOCK",
                    &id,
                    if self.draw.once_in(2) {
                        "ERROR"
                    } else {
                        "TIMEOUT"
                    },
                ]);
            } else {
                control.call(["CLIENT", "KILL", "ID", &id]);
            }
            return;
        }
        let mut bytes = encode(&command);
        if self.draw.once_in(4) {
            // Half a command is still to come when it goes.
            bytes.extend_from_slice(b"*3\r\n$12\r\nLOCK.ACQUIRE\r\n$5\r\nlo");
        }
        client.send_bytes(&bytes);
        waiters.push(client);
        if waiters.len() > WAITERS {
            let place = self.draw.below(WAITERS);
            waiters.swap_remove(place);
        }
    }
}

#[test]
fn after_any_commands_the_server_is_as_it_was() {
    let commands = number_from("COMMANDS", 200_000);
    let seed = number_from("SEED", 0x5eed_50a6);
    let server = Server::builder()
        .aof(Fsync::No)
        // Both keep memory of what has happened.
        .config("latency-tracking", "no")
        .config("slowlog-max-len", "0")
        .config("maxclients", "1000")
        .start();
    let mut control = Raw::connect(&server);
    // So that damaged dumps come as far as the module.
    assert_eq!(
        control.call(["DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", "1"]),
        "OK"
    );
    drop(control);

    let mut soak = Soak::new(&server, seed);
    println!(
        "{commands} commands, seed {seed:#x}\n\nround   seconds  used KiB  resident KiB  most KiB"
    );
    let mut rests: Vec<Memory> = Vec::new();
    for round in 1..=ROUNDS {
        let start = Instant::now();
        soak.most = 0;
        soak.run(commands / ROUNDS);
        let took = start.elapsed();
        let limit = rests.first().map_or(i64::MAX, |first| first.used + SLACK);
        rests.push(come_to_rest(&server, limit));
        report(round, took, rests[rests.len() - 1], soak.most);
    }
    check(&rests);
    check_coverage(&server, &soak.tallies);
    for word in ["panic", "internal error", "crashed", "BUG REPORT"] {
        let log = server.log();
        let line = log.lines().find(|line| line.contains(word));
        assert_eq!(line, None, "the log tells of it");
    }
    assert!(server.shutdown(Shutdown::NoSave).success());
}

fn report(round: u64, took: Duration, rest: Memory, most: i64) {
    println!(
        "{round:>5}{:>10.1}{rest}{:>12}",
        took.as_secs_f64(),
        most / 1024
    );
}

#[track_caller]
fn check(rests: &[Memory]) {
    let first = rests[0];
    for (round, rest) in rests.iter().enumerate() {
        let more = rest.used - first.used;
        assert!(
            more <= SLACK,
            "{more} bytes more are in use after round {}",
            round + 1
        );
    }
    // What the first rounds have made of the heap, the others find.
    let middle = rests[rests.len() / 2].resident;
    let more = rests[rests.len() - 1].resident - middle;
    assert!(
        more <= RESIDENT_SLACK,
        "{more} bytes more are resident in the end"
    );
}

/// Each command of the module has done something, and has refused something.
#[track_caller]
fn check_coverage(server: &Server, tallies: &Tallies) {
    let names = server.command(["COMMAND", "LIST", "FILTERBY", "MODULE", "sluice"]);
    let names: BTreeSet<_> = names
        .array()
        .iter()
        .map(|name| name.text().to_ascii_lowercase())
        .collect();
    let (mut answers, mut errors) = (0, 0);
    for name in &names {
        let tally = tallies
            .get(name)
            .unwrap_or_else(|| panic!("{name} was never sent"));
        // What masters send is not guessed.
        let is_internal = name.ends_with(".apply");
        assert!(tally.answers > 0 || is_internal, "{name} has never worked");
        assert!(tally.errors > 0, "{name} has never refused");
        (answers, errors) = (answers + tally.answers, errors + tally.errors);
    }
    println!(
        "\n{} commands of the module: {answers} answers, {errors} errors",
        names.len()
    );
}
