//! Damaged values of every type: what is restored, what replicas and files are told, what a master sends. All of it is
//! refused, or makes a value that works and can be saved and loaded; nothing crashes, hangs or takes memory that it does
//! not need.
//!
//! `SLUICE_FAULTS=all` tries millions of payloads instead of tens of thousands.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use crate::support::corruption::{
    CACHES, FAMILIES, FILTERS, Family, LIMITS, LOCKS, MOST, QUEUES, STOCKS, WORKS, all_faults,
    assert_calm, commands, cut, extreme, fill, flipped, mutated, resident, sealed, spliced,
    used_commands, uses,
};
use crate::support::stock::await_state;
use crate::support::{
    Fsync, Lines, Random, Raw, SOON, Server, Shutdown, Value, assert_identical, encode, eventually,
    follow,
};

/// More memory than that is not needed for any of this.
const MOST_MEMORY: u64 = 64 << 20;

/// The type of a module's value in RDB files. What is damaged into one of the server's own types is the server's business,
/// which takes gigabytes and seconds for some of it.
const MODULE: u8 = 7;

/// The size that a filter may have.
const MAX_BYTES: &str = "16777216";

/// No command takes longer, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// How many are tried at once.
const BATCH: usize = 100;

/// One in so many values stays until the end.
const KEPT: usize = 40;

/// How many times a family's bytes are damaged at random.
fn rounds() -> usize {
    if all_faults() { 400_000 } else { 3000 }
}

/// A master with a replica.
struct Pair {
    master: Server,
    replica: Server,
    client: Raw,
    before: u64,
    tried: usize,
    taken: usize,
    kept: usize,
}

impl Pair {
    fn start() -> Self {
        let [master, replica] = [(); 2].map(|()| {
            Server::builder()
                .config("repl-diskless-sync", "no")
                .config("rdbcompression", "no")
                .start()
        });
        follow(&master, &replica);
        let mut client = Raw::connect(&master);
        client.call(["CONFIG", "SET", "sluice.bloom-max-bytes", MAX_BYTES]);
        Self {
            before: resident(&master),
            master,
            replica,
            client,
            tried: 0,
            taken: 0,
            kept: 0,
        }
    }

    /// Tries commands about the keys `t0`, `t1`..., each on what `before` made there: what is taken is used.
    #[track_caller]
    fn try_all(&mut self, trials: &[(Vec<Vec<u8>>, &[u8])], mut make: impl FnMut(&str) -> String) {
        for batch in trials.chunks(BATCH) {
            let keys: Vec<String> = (0..batch.len()).map(|at| format!("t{at}")).collect();
            let sent = keys.iter().zip(batch).flat_map(|(key, (words, _))| {
                let words = words.iter().map(|word| match word.as_slice() {
                    b"%" => key.as_bytes(),
                    word => word,
                });
                let prepare = make(key);
                let digest = ["DEBUG", "DIGEST-VALUE", key];
                [
                    encode(prepare.split(' ')),
                    encode(digest),
                    encode(words),
                    encode(digest),
                ]
            });
            self.client.send_bytes(&sent.collect::<Vec<_>>().concat());
            let replies: Vec<[Value; 4]> = batch
                .iter()
                .map(|(_, what)| {
                    [(); 4].map(|()| {
                        let reply = self.client.read_within(PATIENCE);
                        reply.unwrap_or_else(|| panic!("no reply to {}", what.escape_ascii()))
                    })
                })
                .collect();
            self.tried += batch.len();
            for ((key, (words, what)), reply) in keys.iter().zip(batch).zip(&replies) {
                self.look(key, words, what, reply);
            }
            self.client
                .call(["DEL"].into_iter().chain(keys.iter().map(String::as_str)));
        }
    }

    /// Looks at what came of one trial: what was refused has changed nothing.
    #[track_caller]
    fn look(&mut self, key: &str, words: &[Vec<u8>], what: &[u8], replies: &[Value; 4]) {
        let [_, before, reply, after] = replies;
        let is_sequence = [&b"STOCK.APPLY"[..], b"DELAY.APPLY"].contains(&&*words[0]);
        if let Value::Error(text) = reply {
            assert!(
                !text.contains("internal"),
                "{text}: {}",
                what.escape_ascii()
            );
            // The changes of a stock or a queue come one after the other, and those before a wrong one stay: here and on
            // replicas.
            if !is_sequence {
                assert_eq!(before, after, "{text}: {}", what.escape_ascii());
            }
            return;
        }
        self.taken += 1;
        let loads = uses(&mut self.client, key, what);
        // Effects may be half of a stock, which its master would send the rest of.
        assert!(
            loads || is_sequence,
            "cannot be loaded as it was saved: {}",
            what.escape_ascii()
        );
        if loads && self.taken.is_multiple_of(KEPT) && self.kept < 2000 {
            self.kept += 1;
            self.client
                .call(["RENAME", key, &format!("kept{}", self.kept)]);
        }
    }

    /// Panics unless both servers are well and have the same, and what stayed can be saved and loaded.
    #[track_caller]
    fn must_be_well(mut self, what: &str) {
        let more = resident(&self.master) - self.before;
        println!(
            "{what}: {} tried, {} taken, {} kept, {more} bytes more at most",
            self.tried, self.taken, self.kept
        );
        assert!(more < MOST_MEMORY, "{more} bytes more were in use");
        self.client.call(["DEL", "copy", "again"]);
        assert_identical(&self.master, &self.replica);
        // Some of it may end meanwhile.
        eventually(SOON, || {
            let digest = self.master.digest();
            self.client.must("DEBUG RELOAD");
            self.master.digest() == digest
        });
        for server in [&self.master, &self.replica] {
            assert_calm(&server.log());
        }
    }
}

// RESTORE

/// The payloads of some keys, without their checksums.
fn payloads(client: &mut Raw, keys: &[&str]) -> Vec<Vec<u8>> {
    keys.iter()
        .map(|key| {
            let payload = client.call(["DUMP", key]).bytes().to_vec();
            let body = payload[..payload.len() - 8].to_vec();
            assert_eq!(sealed(body.clone()), payload, "the checksum is another");
            body
        })
        .collect()
}

#[track_caller]
fn try_payloads(family: &Family, seed: u64) {
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    let mut pair = Pair::start();
    fill(&mut pair.client);
    let own = payloads(&mut pair.client, family.keys);
    let all: Vec<Vec<u8>> = FAMILIES
        .iter()
        .flat_map(|family| payloads(&mut pair.client, family.keys))
        .collect();
    pair.client.must("FLUSHALL");
    let version = own[0][own[0].len() - 2..].to_vec();
    let mut bodies = own.clone();
    for body in &own {
        let (value, version) = body.split_at(body.len() - 2);
        let ways = cut(value).chain(flipped(value)).chain(extreme(value));
        let ways = ways.filter(|value| !spends_all_fences(family, value));
        bodies.extend(ways.map(|value| [&value, version].concat()));
        bodies.extend(cut(body));
    }
    let values_of = |bodies: &[Vec<u8>]| -> Vec<Vec<u8>> {
        let values = bodies.iter().map(|body| body[..body.len() - 2].to_vec());
        values.collect()
    };
    let (values, pieces) = (values_of(&all), values_of(&own));
    let mut left = rounds();
    while !bodies.is_empty() {
        let trials: Vec<_> = bodies
            .iter()
            .filter(|body| body.is_empty() || body[0] == MODULE)
            .map(|body| {
                let payload = sealed(body.clone());
                let words = [b"RESTORE", b"%".as_slice(), b"0", &payload];
                (words.map(<[u8]>::to_vec).to_vec(), body.as_slice())
            })
            .collect();
        pair.try_all(&trials, |_| "PING".into());
        bodies.clear();
        let count = left.min(5000);
        left -= count;
        bodies.extend((0..count).map(|round| {
            let (one, other) = (random.one(&pieces).clone(), random.one(&values).clone());
            let value = match round % 3 {
                0 => spliced(&mut random, &one, &other),
                _ => mutated(&mut random, &one, &values),
            };
            [value, version.clone()].concat()
        }));
    }
    assert!(pair.taken > 50, "{}", pair.taken);
    pair.must_be_well("payloads");
}

/// After the last fence no lock could be acquired any more in this test.
fn spends_all_fences(family: &Family, bytes: &[u8]) -> bool {
    family.keys == LOCKS.keys && bytes.windows(MOST.len()).any(|some| some == MOST)
}

#[test]
fn damaged_payloads_of_locks_are_refused_or_make_locks_that_work() {
    try_payloads(&LOCKS, 0xbad_10c5);
}

#[test]
fn damaged_payloads_of_stocks_are_refused_or_make_stocks_that_work() {
    try_payloads(&STOCKS, 0xbad_570c);
}

#[test]
fn damaged_payloads_of_filters_are_refused_or_make_filters_that_work() {
    try_payloads(&FILTERS, 0xbad_f117);
}

#[test]
fn damaged_payloads_of_caches_are_refused_or_make_entries_that_work() {
    try_payloads(&CACHES, 0xbad_cac4);
}

#[test]
fn damaged_payloads_of_work_are_refused_or_make_work_that_answers() {
    try_payloads(&WORKS, 0xbad_0ce5);
}

#[test]
fn damaged_payloads_of_limits_are_refused_or_make_limits_that_work() {
    try_payloads(&LIMITS, 0xbad_117e);
}

#[test]
fn damaged_payloads_of_queues_are_refused_or_make_queues_that_work() {
    try_payloads(&QUEUES, 0xbad_de1a);
}

// Effects

/// An internal command as a master sends it.
#[derive(Clone)]
struct Effect {
    command: Vec<u8>,
    key: String,
    effect: Vec<u8>,
    /// A cached value stands behind the effect.
    value: Option<Vec<u8>>,
}

impl Effect {
    /// The same with other bytes, about the key `%`.
    fn with(&self, effect: &[u8]) -> Vec<Vec<u8>> {
        let mut words = vec![self.command.clone(), b"%".to_vec(), effect.to_vec()];
        words.extend(self.value.clone());
        words
    }
}

/// All effects that the making of a dataset brings, and its rewriting in commands.
fn effects() -> Vec<Effect> {
    let server = Server::builder()
        .aof(Fsync::Always)
        .config("aof-use-rdb-preamble", "no")
        .start();
    let mut client = Raw::connect(&server);
    fill(&mut client);
    client.must("STOCK.RESERVE st 1 ORDER brief PX 1 USER z");
    await_state(&mut client, "st", "brief", "expired");
    let mut effects = read_effects(&server.aof_file(".incr."));
    server.rewrite_aof();
    effects.extend(read_effects(&server.aof_file(".base.")));
    effects
}

fn read_effects(file: &PathBuf) -> Vec<Effect> {
    let commands = commands(&fs::read(file).expect("the file"));
    let effects = commands.into_iter().filter_map(|(words, _)| {
        let command = words[0].clone();
        command.ends_with(b".APPLY").then(|| Effect {
            command,
            key: String::from_utf8_lossy(&words[1]).into_owned(),
            effect: words[2].clone(),
            value: words.get(3).cloned(),
        })
    });
    effects.collect()
}

#[track_caller]
fn try_effects(command: &str, least: usize, seed: u64) {
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    let mut pair = Pair::start();
    fill(&mut pair.client);
    let all = effects();
    let others: Vec<Vec<u8>> = all.iter().map(|effect| effect.effect.clone()).collect();
    let own: Vec<Effect> = all
        .into_iter()
        .filter(|effect| effect.command == command.as_bytes())
        .collect();
    assert!(own.len() >= least, "{} effects of {command}", own.len());
    let mut trials: Vec<(Effect, Vec<u8>)> = Vec::new();
    for effect in &own {
        let bytes = &effect.effect;
        let ways = cut(bytes).chain(flipped(bytes)).chain(extreme(bytes));
        let ways = ways.step_by(if all_faults() { 1 } else { 3 });
        trials.extend(ways.map(|bytes| (effect.clone(), bytes)));
    }
    let mut left = rounds();
    while !trials.is_empty() {
        for batch in trials.chunks(BATCH) {
            let sent: Vec<_> = batch
                .iter()
                .map(|(effect, bytes)| (effect.with(bytes), bytes.as_slice()))
                .collect();
            // On what is there, on nothing, or on another type.
            let mut keys = batch.iter().map(|(effect, _)| effect.key.clone());
            let mut which = Random(random.word() | 1);
            pair.try_all(&sent, |key| {
                let own = keys.next().unwrap_or_default();
                match which.below(8) {
                    0..5 => format!("COPY {own} {key} REPLACE"),
                    5 | 6 => format!("DEL {key}"),
                    _ => format!("SET {key} string"),
                }
            });
        }
        trials.clear();
        let count = left.min(5000);
        left -= count;
        trials.extend((0..count).map(|round| {
            let effect = random.one(&own).clone();
            let other = random.one(&others).clone();
            let bytes = match round % 3 {
                0 => spliced(&mut random, &effect.effect, &other),
                _ => mutated(&mut random, &effect.effect, &others),
            };
            (effect, bytes)
        }));
    }
    assert!(pair.taken > 50, "{}", pair.taken);
    pair.must_be_well(command);
}

#[test]
fn damaged_effects_on_locks_are_refused_or_leave_locks_that_work() {
    try_effects("LOCK.APPLY", 15, 0xeff_10c5);
}

#[test]
fn damaged_effects_on_stocks_are_refused_or_leave_stocks_that_answer() {
    try_effects("STOCK.APPLY", 15, 0xeff_570c);
}

#[test]
fn damaged_effects_on_bloom_filters_are_refused_or_leave_filters_that_work() {
    try_effects("BF.APPLY", 5, 0xeff_b100);
}

#[test]
fn damaged_effects_on_cuckoo_filters_are_refused_or_leave_filters_that_work() {
    try_effects("CF.APPLY", 4, 0xeff_c0c0);
}

#[test]
fn damaged_effects_on_caches_are_refused_or_leave_entries_that_work() {
    try_effects("CACHE.APPLY", 6, 0xeff_cac4);
}

#[test]
fn damaged_effects_on_limits_are_refused_or_leave_limits_that_work() {
    try_effects("RATE.APPLY", 6, 0xeff_117e);
}

#[test]
fn damaged_effects_on_work_are_refused_or_leave_work_that_answers() {
    try_effects("ONCE.APPLY", 2, 0xeff_0ce5);
}

#[test]
fn damaged_effects_on_queues_are_refused_or_leave_queues_that_work() {
    try_effects("DELAY.APPLY", 8, 0xeff_de1a);
}

// What a master sends

/// Accepts a replica as a master does: an empty dataset, then whatever is written to the connection.
fn accept_replica(listener: &TcpListener, rdb: &[u8]) -> TcpStream {
    let (mut stream, _) = listener.accept().expect("a replica");
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("a timeout");
    let mut heard = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let length = stream.read(&mut chunk).expect("a replica that speaks");
        assert!(length > 0, "the replica has gone");
        heard.extend(&chunk[..length]);
        let text = String::from_utf8_lossy(&heard).to_uppercase();
        let asks_for_all = text.contains("$5\r\nPSYNC\r\n");
        let answer = match &text {
            _ if asks_for_all => format!(
                "+FULLRESYNC {} 0\r\n${}\r\n",
                "1234567890".repeat(4),
                rdb.len()
            ),
            text if text.contains("PING") => "+PONG\r\n".into(),
            // It may ask several things at once: each is a command of its own.
            text => "+OK\r\n".repeat(text.matches("REPLCONF\r\n").count()),
        };
        stream
            .write_all(answer.as_bytes())
            .expect("a replica that listens");
        if asks_for_all {
            stream.write_all(rdb).expect("a replica that loads");
            return stream;
        }
        heard.clear();
    }
}

/// The RDB file of a server without keys.
fn empty_rdb() -> Vec<u8> {
    let server = Server::builder().rdb(true).start();
    assert!(server.shutdown(Shutdown::Save).success());
    fs::read(server.dir().join("dump.rdb")).expect("an RDB file")
}

/// Commands that no master sends.
const GARBAGE: [&[&[u8]]; 17] = [
    &[b"LOCK.APPLY", b"k"],
    &[b"LOCK.FENCE"],
    &[b"LOCK.FENCE", b"x"],
    &[b"LOCK.FENCE", b"-1"],
    &[b"LOCK.FENCE", b"9007199254740992"],
    &[b"STOCK.APPLY", b"k", b"\xff"],
    &[b"BF.APPLY", b"k", b"A"],
    &[b"CF.APPLY", b"k", b""],
    &[b"CACHE.APPLY", b"k", b"\0Q"],
    &[b"RATE.APPLY", b"k", b"\0T\xff"],
    &[b"ONCE.APPLY", b"k", b"\0\xff"],
    &[b"DELAY.APPLY", b"k", b"\0\xff"],
    &[b"SLUICE.APPLY", b"k"],
    &[b"SLUICE.APPLY", b"k", b"DEL", b"more"],
    &[b"SLUICE.APPLY", b"k", b"PEXPIREAT", b"x"],
    &[b"SLUICE.APPLY", b"k", b"SET", b"-1", b"value"],
    &[b"LOCK.RELEASE", b"nothing", b"nobody"],
];

/// A replica believes its master; what it cannot understand it says in its log, and goes on with the rest.
#[test]
fn a_replica_survives_a_master_that_sends_garbage() {
    const SEED: u64 = 0xfa_15e0;
    println!("seed {SEED:#x}");
    let mut random = Random(SEED);
    let all = effects();
    let others: Vec<Vec<u8>> = all.iter().map(|effect| effect.effect.clone()).collect();
    let replica = Server::start();
    let before = resident(&replica);
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener
        .local_addr()
        .expect("an address")
        .port()
        .to_string();
    replica.command(["REPLICAOF", "127.0.0.1", &port]);
    let mut master = accept_replica(&listener, &empty_rdb());
    let mut say = |words: &[&[u8]]| {
        master
            .write_all(&encode(words))
            .expect("a replica that listens");
    };
    say(&[b"SELECT", b"0"]);
    for words in GARBAGE {
        say(words);
    }
    let count = rounds();
    for round in 0..count {
        // Those that are whole make something for the others to meet.
        let effect = random.one(&all);
        let bytes = match round % 4 {
            0 => effect.effect.clone(),
            1 => spliced(&mut random, &effect.effect, &others[round % others.len()]),
            _ => mutated(&mut random, &effect.effect, &others),
        };
        let words = effect.with(&bytes);
        let mut words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        words[1] = effect.key.as_bytes();
        say(&words);
    }
    say(&[b"SET", b"last", b"word"]);
    let mut client = Raw::connect(&replica);
    eventually(Duration::from_secs(60), || client.run("GET last") == "word");
    assert_eq!(replica.info("master_link_status").as_deref(), Some("up"));
    let log = replica.log();
    assert!(log.contains("invalid replicated effect"), "{log}");
    assert_calm(&log);
    let errors = replica.info_int("unexpected_error_replies");
    let more = resident(&replica) - before;
    println!("{count} sent, {errors} errors, {more} bytes more at most");
    assert!(errors > count as i64 / 10, "{errors}");
    assert!(more < MOST_MEMORY, "{more} bytes more were in use");
    replica.promote();
    for family in FAMILIES {
        for key in family.keys {
            uses(&mut client, key, b"what a master sent");
        }
    }
    assert_calm(&replica.log());
}

// All commands

/// A command that these tests leave out makes this fail.
#[test]
fn every_command_meets_damaged_values_or_damaged_effects() {
    let server = Server::start();
    let list = server.command(["COMMAND", "LIST", "FILTERBY", "MODULE", "sluice"]);
    let names = list.array().iter().map(|name| name.text().to_uppercase());
    let source = include_str!("values.rs");
    let is_damaged = |name: &str| {
        let is_sent = GARBAGE.iter().any(|words| words[0] == name.as_bytes());
        // What SLUICE.APPLY sets is a string, and a fence is a number: neither has an encoding.
        let is_encoded = !["SLUICE.APPLY", "LOCK.FENCE"].contains(&name);
        let is_tried = source.contains(&format!("try_effects(\"{name}\","));
        is_sent && (is_tried || !is_encoded)
    };
    let left_out: Vec<String> = names
        .filter(|name| !used_commands().any(|used| used == name) && !is_damaged(name))
        .collect();
    assert!(left_out.is_empty(), "{left_out:?}");
}
