//! Replicas and append-only files have bit for bit the filters of their master, whatever it has decided.

use crate::support::filter::{
    FILTERS, KINDS, Kind, TOO_LARGE, add, add_named, assert_calm, assert_holds, chunk, dump, load,
    number, value_digest,
};
use crate::support::{
    Fsync, Lines, Random, Raw, SOON, Server, Value, assert_identical, await_role, eventually,
    follow, pair, quiet, server_and_client, wait_for_replica_sync,
};

const PCALL: &str = "return redis.pcall(unpack(ARGV))";

type Command = Vec<Vec<u8>>;

fn command(line: &str) -> Command {
    let words = line.split_whitespace();
    words.map(|word| word.as_bytes().to_vec()).collect()
}

// Random commands

/// What has happened, so that the test knows that everything has.
#[derive(Debug, Default)]
struct Tally {
    refused_in_a_batch: u32,
    refused: u32,
    grown: u32,
    merged: u32,
    alike: u32,
    loaded: u32,
    deleted: u32,
    compacted: u32,
    known: u32,
    in_transactions: u32,
    in_scripts: u32,
}

struct Load {
    random: Random,
    client: Raw,
    tally: Tally,
    keys: [u64; 2],
}

impl Load {
    fn new(server: &Server, seed: u64) -> Self {
        Self {
            random: Random(seed),
            client: Raw::connect(server),
            tally: Tally::default(),
            keys: [6, 5],
        }
    }

    fn key(&mut self, kind: Kind) -> String {
        let number = self.random.below(self.keys[kind as usize]);
        format!("{}{number}", kind.family())
    }

    /// Some items, of which many come again.
    fn items(&mut self) -> String {
        let most = [3, 20, 150][self.random.below(3) as usize];
        let items = (0..1 + self.random.below(most)).map(|_| {
            let most = [40, 400, 40_000][self.random.below(3) as usize];
            format!("i{}", self.random.below(most))
        });
        items.collect::<Vec<_>>().join(" ")
    }

    fn bloom(&mut self) -> Command {
        let (key, other) = (self.key(Kind::Bloom), self.key(Kind::Bloom));
        let items = self.items();
        let capacity = 1 + self.random.below(60);
        let terms = *self.random.one(&[
            "",
            "EXPANSION 1",
            "EXPANSION 4",
            "NONSCALING",
            "ERROR 0.2",
            "NOCREATE",
        ]);
        command(&match self.random.below(21) {
            0..=3 => format!("BF.ADD {key} i{capacity}"),
            4..=9 => format!("BF.MADD {key} {items}"),
            10..=12 => format!("BF.INSERT {key} CAPACITY {capacity} {terms} ITEMS {items}"),
            13 => format!("BF.RESERVE {key} 0.01 {capacity} EXPANSION 2"),
            14 | 15 => format!("BF.RESERVE {key} LIKE {other}"),
            16 => format!("BF.MERGE {key} 1 {other}"),
            17 => {
                let third = self.key(Kind::Bloom);
                format!("BF.MERGE {key} 2 {other} {third}")
            }
            18 => return self.load_chunk(Kind::Bloom, &key, &other),
            _ => self.native(&key, &other),
        })
    }

    fn cuckoo(&mut self) -> Command {
        let (key, other) = (self.key(Kind::Cuckoo), self.key(Kind::Cuckoo));
        let items = self.items();
        let capacity = 1 + self.random.below(60);
        let terms = *self.random.one(&[
            "",
            "BUCKETSIZE 1",
            "BITS 8 EXPANSION 2",
            "BITS 32 BUCKETSIZE 7",
            "EXPANSION 0",
            "EXPANSION 8 MAXITERATIONS 500",
        ]);
        command(&match self.random.below(25) {
            0..=2 => format!("CF.ADD {key} i{capacity}"),
            3 | 4 => format!("CF.ADDNX {key} i{capacity}"),
            5..=9 => format!("CF.INSERT {key} CAPACITY {capacity} ITEMS {items}"),
            10..=13 => format!("CF.INSERTNX {key} CAPACITY {capacity} ITEMS {items}"),
            14 => format!("CF.INSERTNX {key} NOCREATE ITEMS {items}"),
            15 => format!("CF.RESERVE {key} {capacity} {terms}"),
            16..=19 => format!("CF.DEL {key} i{}", self.random.below(80)),
            20 => format!("CF.COMPACT {key}"),
            21 | 22 => return self.load_chunk(Kind::Cuckoo, &key, &other),
            _ => self.native(&key, &other),
        })
    }

    /// A chunk of one filter for another, most often the one that it is for.
    fn load_chunk(&mut self, kind: Kind, key: &str, other: &str) -> Command {
        let iterator = self.random.below(2);
        let scan = [kind.name("SCANDUMP"), other.into(), iterator.to_string()];
        let reply = self.client.call(&scan);
        let (next, data) = match &reply {
            Value::Array(parts) if parts[0].int() > 0 => (parts[0].int(), parts[1].bytes()),
            _ => return command("PING"),
        };
        let key = match self.random.below(3) {
            0 => key.to_owned(),
            1 => other.to_owned(),
            _ => format!("{}-loaded{}", kind.family(), self.random.below(2)),
        };
        let words = [kind.name("LOADCHUNK"), key, next.to_string()];
        let mut command: Command = words.map(String::into_bytes).to_vec();
        command.push(data.to_vec());
        command
    }

    fn native(&mut self, key: &str, other: &str) -> String {
        match self.random.below(9) {
            0 => format!("DEL {key}"),
            1 => format!("UNLINK {key} {other}"),
            2 => format!("COPY {key} {other} REPLACE"),
            3 => format!("PEXPIRE {key} 900000"),
            4 => format!("PERSIST {key}"),
            5 => format!("RENAME {key} {other}"),
            6 => "CONFIG SET sluice.bloom-max-bytes 1073741824".into(),
            7 => "CONFIG SET sluice.bloom-max-bytes 20000".into(),
            _ => "CONFIG SET sluice.bloom-max-bytes 2000".into(),
        }
    }

    fn any(&mut self) -> Command {
        match self.random.below(2) {
            0 => self.bloom(),
            _ => self.cuckoo(),
        }
    }

    fn note(&mut self, command: &Command, reply: &Value) {
        let tally = &mut self.tally;
        let name = String::from_utf8_lossy(&command[0]).into_owned();
        if let Value::Error(text) = reply {
            assert!(!text.contains("internal"), "{name}: {text}");
            tally.refused += u32::from(text == TOO_LARGE);
        }
        if let Value::Array(replies) = reply {
            let refused = |reply: &Value| reply.is_err() || *reply == -1;
            let added = replies.iter().any(|reply| *reply == 1);
            tally.refused_in_a_batch += u32::from(added && replies.iter().any(refused));
            tally.known += u32::from(replies.iter().any(|reply| *reply == 0));
        }
        let done = !reply.is_err();
        match name.as_str() {
            "BF.MERGE" => tally.merged += u32::from(done),
            "BF.RESERVE" if command[2] == b"LIKE" => tally.alike += u32::from(done),
            "BF.LOADCHUNK" | "CF.LOADCHUNK" => tally.loaded += u32::from(done),
            "CF.DEL" => tally.deleted += u32::from(*reply == 1),
            "CF.COMPACT" => tally.compacted += u32::from(done),
            _ => {}
        }
    }

    fn step(&mut self) {
        match self.random.below(12) {
            0 => {
                let commands: Vec<Command> =
                    (0..1 + self.random.below(4)).map(|_| self.any()).collect();
                self.client.must("MULTI");
                for command in &commands {
                    self.client.call(command);
                }
                let reply = self.client.call(["EXEC"]);
                for (command, reply) in commands.iter().zip(reply.array()) {
                    self.note(command, reply);
                }
                self.tally.in_transactions += 1;
            }
            1 => {
                let command = self.any();
                let mut words = vec![b"EVAL".to_vec(), PCALL.into(), b"0".to_vec()];
                words.extend(command.iter().cloned());
                let reply = self.client.call(&words);
                self.note(&command, &reply);
                self.tally.in_scripts += 1;
            }
            _ => {
                let command = self.any();
                let reply = self.client.call(&command);
                self.note(&command, &reply);
            }
        }
    }

    fn look_at_layers(&mut self) {
        for kind in KINDS {
            for number in 0..self.keys[kind as usize] {
                let info = [kind.name("INFO"), format!("{}{number}", kind.family())];
                let info = self.client.call(&info);
                if !info.is_err() {
                    self.tally.grown += u32::from(info.field(FILTERS).int() > 2);
                }
            }
        }
    }
}

#[test]
fn master_replica_and_its_replica_are_identical_after_random_commands_and_restarts() {
    for seed in [0x5eed_0001, 0x5eed_0002, 0x5eed_0003] {
        println!("seed {seed:#x}");
        let master = quiet().aof(Fsync::Always).start();
        let replica = quiet().start();
        let second = quiet()
            .aof(Fsync::No)
            .config("aof-use-rdb-preamble", "no")
            .start();
        // What is there when a replica comes goes by another way than what is done later.
        let mut load = Load::new(&master, seed);
        for _ in 0..300 {
            load.step();
        }
        follow(&master, &replica);
        follow(&replica, &second);
        for _ in 0..6 {
            for _ in 0..500 {
                load.step();
            }
            load.look_at_layers();
            assert_identical(&master, &replica);
            assert_identical(&master, &second);
        }
        let tally = &load.tally;
        println!("{tally:?}");
        for (what, count) in [
            ("refused in a batch", tally.refused_in_a_batch),
            ("refused", tally.refused),
            ("grown", tally.grown),
            ("merged", tally.merged),
            ("alike", tally.alike),
            ("loaded", tally.loaded),
            ("deleted", tally.deleted),
            ("compacted", tally.compacted),
            ("known", tally.known),
            ("in transactions", tally.in_transactions),
            ("in scripts", tally.in_scripts),
        ] {
            assert!(count > 0, "{what}: {tally:?}");
        }
        let digest = master.digest();
        for server in [&second, &master] {
            server.await_rewrite();
            server.crash();
            assert_eq!(server.digest(), digest);
            server.command(["BGREWRITEAOF"]);
            server.await_rewrite();
            server.command(["DEBUG", "LOADAOF"]);
            assert_eq!(server.digest(), digest);
        }
        for server in [&master, &replica, &second] {
            assert_calm(server);
        }
    }
}

// One by one

#[test]
fn filters_that_grow_in_the_middle_of_a_batch_are_the_same_on_the_replica() {
    let (master, replica) = pair();
    let (mut client, mut reader) = (Raw::connect(&master), Raw::connect(&replica));
    for kind in KINDS {
        let key = kind.family();
        // In one command: the creation, and several layers.
        add(&mut client, kind, key, 0..4000);
        assert!(number(&mut client, kind, key, FILTERS) > 2);
        wait_for_replica_sync(&master, &replica);
        let digest = value_digest(&mut client, key);
        assert_eq!(value_digest(&mut reader, key), digest);
        assert_holds(&mut reader, kind, key, 0..4000);
        // A batch of which most is known, and one layer is added.
        add(&mut client, kind, key, 0..9000);
        wait_for_replica_sync(&master, &replica);
        let digest = value_digest(&mut client, key);
        assert_eq!(value_digest(&mut reader, key), digest);
    }
    assert_identical(&master, &replica);
}

#[test]
fn of_a_batch_that_is_refused_in_the_middle_the_replica_has_what_was_added() {
    let master = quiet().aof(Fsync::Always).start();
    let replica = quiet().start();
    follow(&master, &replica);
    let mut client = Raw::connect(&master);
    client.must("CONFIG SET sluice.bloom-max-bytes 5000");
    let items: Vec<String> = (0..9000).map(|number| format!("i{number}")).collect();
    for (start, refusal) in [
        ("BF.MADD k", Value::Error(TOO_LARGE.into())),
        (
            "BF.INSERT k CAPACITY 9 ITEMS",
            Value::Error(TOO_LARGE.into()),
        ),
        ("CF.INSERT k CAPACITY 9 ITEMS", Value::Int(-1)),
        ("CF.INSERTNX k CAPACITY 99 ITEMS", Value::Int(-1)),
    ] {
        client.must("DEL k");
        // With what was there before, and without.
        for _ in 0..2 {
            let mut words: Vec<String> = start.split(' ').map(Into::into).collect();
            words.extend(items.iter().cloned());
            let reply = client.call(&words);
            let refused = reply.array().iter().filter(|reply| **reply == refusal);
            let refused = refused.count();
            assert!((1000..=9000).contains(&refused), "{start}: {refused}");
            assert_identical(&master, &replica);
        }
        let digest = value_digest(&mut client, "k");
        client.must("DEBUG LOADAOF");
        assert_eq!(value_digest(&mut client, "k"), digest, "{start}");
    }
}

#[test]
fn what_changes_nothing_is_not_sent_to_replicas() {
    let master = quiet().aof(Fsync::No).start();
    let replica = quiet().start();
    follow(&master, &replica);
    let mut client = Raw::connect(&master);
    for line in [
        "BF.MADD bf a b c",
        "BF.RESERVE full 0.01 2 NONSCALING",
        "BF.MADD full a b",
        "BF.RESERVE other 0.01 100",
        "CF.INSERT cf ITEMS a b c",
        "CF.RESERVE cf-full 1 EXPANSION 0 BUCKETSIZE 1",
        "CF.INSERT cf-full ITEMS 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24",
        "CF.RESERVE twins 100 BUCKETSIZE 2 EXPANSION 0",
        "CF.INSERT twins ITEMS x x x x",
        "SET string v",
    ] {
        client.must(line);
    }
    let (end, piece) = chunk(&mut client, Kind::Bloom, "bf", 1);
    let head = chunk(&mut client, Kind::Bloom, "bf", 0).1;
    master.await_rewrite();
    wait_for_replica_sync(&master, &replica);
    let offset = master.info_int("master_repl_offset");
    let aof = master.info_int("aof_current_size");
    let mut commands: Vec<Command> = [
        "BF.ADD bf a",
        "BF.MADD bf a b c c b a",
        "BF.INSERT bf CAPACITY 5 ITEMS a b",
        "BF.INSERT bf NOCREATE ITEMS a",
        "BF.INSERT none NOCREATE ITEMS a",
        "BF.MADD full x y z",
        "BF.ADD full x",
        "BF.RESERVE bf 0.01 100",
        "BF.RESERVE bf LIKE other",
        "BF.RESERVE new LIKE none",
        "BF.RESERVE new LIKE string",
        "BF.RESERVE new 2 100",
        "BF.RESERVE new 0.01 1073741824 EXPANSION 5 x",
        "BF.RESERVE new 0.0000000001 1073741824",
        "BF.MERGE bf 1 other",
        "BF.MERGE bf 1 none",
        "BF.MERGE new 2 bf other",
        "BF.MERGE new 1 string",
        "BF.EXISTS bf a",
        "BF.MEXISTS bf a x",
        "BF.CARD bf",
        "BF.INFO bf",
        "BF.SCANDUMP bf 0",
        "BF.LOADCHUNK new 1 nonsense",
        "BF.LOADCHUNK bf 100 nonsense",
        "BF.APPLY bf nonsense",
        "BF.APPLY new nonsense",
        "BF.ADD string a",
        "BF.ADD cf a",
        "CF.ADDNX cf a",
        "CF.INSERTNX cf ITEMS a b c a",
        "CF.INSERT none NOCREATE ITEMS a",
        "CF.RESERVE cf 100",
        "CF.RESERVE new 1073741824 BITS 32",
        "CF.ADD twins x",
        "CF.INSERT twins ITEMS x x",
        "CF.DEL cf never",
        "CF.DEL none a",
        "CF.COMPACT cf",
        "CF.COMPACT none",
        "CF.COUNT cf a",
        "CF.MEXISTS cf a x",
        "CF.INFO cf",
        "CF.SCANDUMP cf 1",
        "CF.LOADCHUNK new 1 nonsense",
        "CF.APPLY cf nonsense",
        "CF.ADD bf a",
    ]
    .map(command)
    .to_vec();
    let words = |words: [&[u8]; 4]| words.map(<[u8]>::to_vec).to_vec();
    commands.push(words([b"BF.LOADCHUNK", b"bf", b"1", &head]));
    commands.push(words([
        b"BF.LOADCHUNK",
        b"other",
        end.to_string().as_bytes(),
        &piece,
    ]));
    commands.push(words([b"CF.LOADCHUNK", b"new", b"1", &head]));
    for command in &commands {
        let reply = client.call(command);
        client.must("PING");
        let line = command.join(&b' ').escape_ascii().to_string();
        let sent = master.info_int("master_repl_offset") - offset;
        assert_eq!(sent, 0, "{line}: {reply:?}");
        assert_eq!(master.info_int("aof_current_size"), aof, "{line}");
    }
}

/// Commands that are refused by nobody and change nothing either.
#[test]
fn merges_and_chunks_that_change_nothing_are_not_sent_to_replicas() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    client.must("BF.MADD bf a b c");
    client.must("BF.RESERVE empty LIKE bf");
    client.must("CF.INSERT cf ITEMS a b c");
    wait_for_replica_sync(&master, &replica);
    let mut sent = Vec::new();
    let chunks: Vec<Command> = KINDS
        .iter()
        .map(|kind| {
            let key = kind.family().to_lowercase();
            let (end, piece) = chunk(&mut client, *kind, &key, 1);
            let end = end.to_string().into_bytes();
            vec![kind.name("LOADCHUNK").into(), key.into(), end, piece]
        })
        .collect();
    let merges = ["BF.MERGE bf 1 bf", "BF.MERGE bf 1 empty"].map(command);
    for command in merges.iter().chain(&chunks) {
        let digest = master.digest();
        let offset = master.info_int("master_repl_offset");
        assert_eq!(client.call(command), "OK");
        assert_eq!(master.digest(), digest);
        if master.info_int("master_repl_offset") != offset {
            sent.push(command[..3].join(&b' ').escape_ascii().to_string());
        }
    }
    assert!(sent.is_empty(), "sent although nothing changed: {sent:?}");
}

/// If items are deleted while a filter is dumped, the count of the loaded copy is too large. `CF.COMPACT` corrects it.
#[test]
fn a_compaction_that_only_corrects_the_count_reaches_the_replica() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    let mut corrected = 0;
    // The hash seeds are random. If both deleted items were in the first layer, `CF.COMPACT` corrects nothing, so there are 30 filters.
    for number in 0..30 {
        let (from, to) = (format!("from{number}"), format!("to{number}"));
        client.must(&format!("CF.RESERVE {from} 10 BUCKETSIZE 2"));
        for item in 0..25 {
            client.must(&format!("CF.ADD {from} {item}"));
        }
        client.must(&format!("CF.COMPACT {from}"));
        let header = chunk(&mut client, Kind::Cuckoo, &from, 0);
        for item in [23, 24] {
            assert_eq!(client.run(&format!("CF.DEL {from} {item}")), 1);
        }
        let mut chunks = dump(&mut client, Kind::Cuckoo, &from);
        chunks[0] = header;
        load(&mut client, Kind::Cuckoo, &to, &chunks);
        let loaded = value_digest(&mut client, &to);
        client.must(&format!("CF.COMPACT {to}"));
        corrected += u32::from(value_digest(&mut client, &to) != loaded);
    }
    assert_ne!(corrected, 0);
    assert_identical(&master, &replica);
}

/// A client that may restore keys may send effects too. What fails changes nothing, or the replica would not have it.
#[test]
fn effects_that_are_refused_change_nothing_also_if_the_first_of_them_make_sense() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    for kind in KINDS {
        add(&mut client, kind, kind.family(), 0..50);
    }
    wait_for_replica_sync(&master, &replica);
    let digest = master.digest();
    let item = b"A0123456789abcdef";
    for kind in KINDS {
        for end in [
            b"junk".as_slice(),
            b"A0123",
            b"L",
            b"H\0",
            b"P\0\x09xxxxxxxxx",
        ] {
            let effects = [item, end].concat();
            let key = kind.family();
            let reply = client.call([kind.name("APPLY").as_bytes(), key.as_bytes(), &effects]);
            assert!(reply.is_err(), "{reply:?}");
            let what = effects.escape_ascii();
            assert_eq!(master.digest(), digest, "{kind:?} {what}");
        }
    }
    assert_identical(&master, &replica);
}

/// A client can append layers by effects, but no more than a file may have.
#[test]
fn effects_make_no_filter_that_cannot_be_loaded() {
    let (server, mut client) = server_and_client();
    for (kind, reserve, layer, most) in [
        (
            Kind::Bloom,
            "BF.RESERVE bloom 0.01 1",
            b"L\x01\x01\x01".as_slice(),
            128,
        ),
        (Kind::Cuckoo, "CF.RESERVE cuckoo 1", b"L\x00", 32),
    ] {
        client.must(reserve);
        let key = reserve.split(' ').nth(1).expect("a key");
        let apply = |client: &mut Raw, layers: usize| {
            let effects = layer.repeat(layers);
            client.call([kind.name("APPLY").as_bytes(), key.as_bytes(), &effects])
        };
        assert!(apply(&mut client, most).is_err());
        assert_eq!(apply(&mut client, most - 1), "OK");
        assert!(apply(&mut client, 1).is_err());
        assert_eq!(
            number(&mut client, kind, key, "Number of filters"),
            most as i64
        );
    }
    let digest = server.digest();
    client.must("DEBUG RELOAD");
    assert_eq!(server.digest(), digest);
}

#[test]
fn effects_of_a_client_arrive_at_the_replica() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    for kind in KINDS {
        let key = kind.family();
        add(&mut client, kind, key, 0..50);
        let effects = b"A0123456789abcdefA123456789abcdefg";
        let reply = client.call([kind.name("APPLY").as_bytes(), key.as_bytes(), effects]);
        assert_eq!(reply, "OK");
        assert_eq!(
            number(&mut client, kind, key, "Number of items inserted"),
            52
        );
    }
    assert_identical(&master, &replica);
}

/// On a replica that was written to, or whose key has expired for its master only, the master's word counts.
#[test]
fn a_new_filter_of_the_master_takes_the_place_of_whatever_the_replica_has() {
    let (master, replica) = pair();
    replica.command(["CONFIG", "SET", "replica-read-only", "no"]);
    let (mut client, mut writer) = (Raw::connect(&master), Raw::connect(&replica));
    for kind in KINDS {
        let key = kind.family();
        for line in [
            format!("SET {key} string"),
            format!("{}.ADD {key} own", kind.other().family()),
            format!("{key}.ADD {key} own"),
        ] {
            writer.must(&line);
            add(&mut client, kind, key, 0..500);
            assert_identical(&master, &replica);
            client.must(&format!("DEL {key}"));
            wait_for_replica_sync(&master, &replica);
        }
    }
    assert_calm(&replica);
}

#[test]
fn what_a_transaction_or_a_script_does_arrives_as_one() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    client.must("BF.RESERVE bf 0.01 20");
    client.transact([
        "BF.MADD bf a b c",
        "BF.ADD made a",
        "CF.ADD cf a",
        "CF.DEL cf a",
        "BF.RESERVE like LIKE made",
        "BF.ADD like b",
        "BF.MERGE made 1 like",
    ]);
    let script = "
        for number = 1, 300 do
            redis.call('BF.ADD', KEYS[1], number)
            redis.call('CF.ADD', KEYS[2], number)
            redis.call('CF.ADDNX', KEYS[2], number)
        end
        redis.call('BF.RESERVE', KEYS[3], 'LIKE', KEYS[1])
        redis.call('BF.MERGE', KEYS[3], 1, KEYS[1])
        return redis.call('CF.COMPACT', KEYS[2])";
    assert_eq!(
        client.call(["EVAL", script, "3", "sbf", "scf", "smerged"]),
        "OK"
    );
    assert_identical(&master, &replica);
    assert_eq!(
        client.run("BF.CARD smerged"),
        client.run("BF.CARD sbf").int()
    );
}

// How replicas come to what is there

#[test]
fn a_replica_gets_everything_by_a_full_transfer_of_any_kind() {
    for (diskless, load_how) in [
        ("no", "disabled"),
        ("yes", "disabled"),
        ("yes", "on-empty-db"),
        ("yes", "swapdb"),
    ] {
        let master = quiet().config("repl-diskless-sync", diskless).start();
        let mut client = Raw::connect(&master);
        for kind in KINDS {
            client.must(&kind.reserve(kind.family(), 200));
            add(&mut client, kind, kind.family(), 0..900);
            let large = format!("large-{}", kind.family());
            client.must(&kind.reserve(&large, 4_000_000));
            add(&mut client, kind, &large, 0..5000);
        }
        client.must("PEXPIRE BF 900000");
        // With other limits than its master, and a dataset that goes.
        let replica = quiet()
            .config("repl-diskless-load", load_how)
            .module_args(&["bloom-max-bytes", "1000"])
            .start();
        replica.command(["BF.ADD", "own", "a"]);
        follow(&master, &replica);
        assert_identical(&master, &replica);
        for kind in KINDS {
            add(&mut client, kind, kind.family(), 900..1800);
            add(&mut client, kind, &format!("new-{}", kind.family()), 0..500);
        }
        assert_identical(&master, &replica);
        assert_calm(&replica);
    }
}

#[test]
fn a_replica_that_was_away_catches_up_without_a_full_transfer() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    for kind in KINDS {
        add(&mut client, kind, kind.family(), 0..500);
    }
    wait_for_replica_sync(&master, &replica);
    let full = master.info_int("sync_full");
    let partial = master.info_int("sync_partial_ok");
    replica.stop_signal();
    client.must("CLIENT KILL TYPE replica");
    for kind in KINDS {
        add(&mut client, kind, kind.family(), 500..3000);
        add(&mut client, kind, &format!("new-{}", kind.family()), 0..500);
    }
    client.must("CF.DEL CF i7");
    client.must("BF.RESERVE like LIKE BF");
    client.must("BF.MERGE like 1 BF");
    replica.cont_signal();
    eventually(SOON, || master.info_int("sync_partial_ok") > partial);
    assert_identical(&master, &replica);
    assert_eq!(master.info_int("sync_full"), full);
}

// What the master decides

#[test]
fn a_replica_with_less_memory_refuses_nothing_that_its_master_decided() {
    let master = quiet().start();
    let limited = || {
        quiet()
            .module_args(&["bloom-max-bytes", "1000"])
            .config("maxmemory", "2mb")
            .config("maxmemory-policy", "noeviction")
            .aof(Fsync::Always)
            .config("aof-use-rdb-preamble", "no")
    };
    let (replica, second) = (limited().start(), limited().start());
    follow(&master, &replica);
    follow(&replica, &second);
    let mut client = Raw::connect(&master);
    for line in [
        "BF.RESERVE bf 0.01 2000000",
        "BF.RESERVE like LIKE bf",
        "BF.ADD like a",
        "BF.MERGE bf 1 like",
        "BF.MERGE merged 2 bf like",
        "CF.RESERVE cf 3000000",
        "CF.ADD cf a",
        "BF.INSERT inserted CAPACITY 300000 ITEMS a",
        "CF.INSERT cf-inserted CAPACITY 300000 ITEMS a b c",
        "CF.DEL cf-inserted a",
        "CF.COMPACT cf-inserted",
        "COPY bf copy",
        "RENAME copy renamed",
    ] {
        client.must(line);
    }
    for kind in KINDS {
        // Growth, past the replica's limit and in the middle of batches.
        let key = format!("grows-{}", kind.family());
        client.must(&kind.reserve(&key, 2000));
        add(&mut client, kind, &key, 0..40_000);
        let chunks = dump(&mut client, kind, &kind.family().to_lowercase());
        load(
            &mut client,
            kind,
            &format!("loaded-{}", kind.family()),
            &chunks,
        );
        let payload = client.call(["DUMP", &key]).bytes().to_vec();
        let restored = format!("restored-{}", kind.family());
        let restore = [b"RESTORE".as_slice(), restored.as_bytes(), b"0", &payload];
        assert_eq!(client.call(restore), "OK");
    }
    for server in [&replica, &second] {
        assert_identical(&master, server);
        assert_eq!(server.info_int("sluice_filter_refused_memory"), 0);
    }
    let digest = master.digest();
    second.await_rewrite();
    second.crash();
    assert_eq!(second.digest(), digest);
    assert_calm(&second);
}

#[test]
fn defaults_of_a_replica_do_not_matter_for_what_its_master_makes() {
    let master = quiet()
        .module_args(&[
            "bloom-capacity",
            "7",
            "cuckoo-capacity",
            "9",
            "bloom-error-rate",
            "0.2",
        ])
        .start();
    let replica = quiet()
        .module_args(&["bloom-expansion", "0", "bloom-capacity", "1000"])
        .start();
    follow(&master, &replica);
    let mut client = Raw::connect(&master);
    for line in [
        "BF.ADD a x",
        "BF.MADD b x y",
        "BF.INSERT c ITEMS x",
        "BF.RESERVE d 0.01 5",
        "CF.ADD e x",
        "CF.ADDNX f x",
        "CF.INSERT g ITEMS x",
    ] {
        client.must(line);
    }
    add(&mut client, Kind::Bloom, "a", 0..200);
    assert_identical(&master, &replica);
    let mut reader = Raw::connect(&replica);
    for line in ["BF.INFO a", "BF.INFO c", "CF.INFO e"] {
        assert_eq!(reader.must(line), client.must(line));
    }
}

#[test]
fn a_replica_reads_and_refuses_to_write() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    for kind in KINDS {
        add(&mut client, kind, &kind.family().to_lowercase(), 0..50);
    }
    wait_for_replica_sync(&master, &replica);
    let mut reader = Raw::connect(&replica);
    for kind in KINDS {
        let key = kind.family().to_lowercase();
        assert_holds(&mut reader, kind, &key, 0..50);
        let chunks = [&mut client, &mut reader].map(|client| dump(client, kind, &key));
        assert_eq!(chunks[0], chunks[1]);
    }
    for line in [
        "BF.RESERVE new 0.01 100",
        "BF.RESERVE new LIKE bf",
        "BF.ADD bf x",
        "BF.MADD bf x",
        "BF.INSERT bf ITEMS x",
        "BF.MERGE bf 1 bf",
        "BF.LOADCHUNK bf 1 x",
        "BF.APPLY bf x",
        "CF.RESERVE new 100",
        "CF.ADD cf x",
        "CF.ADDNX cf x",
        "CF.INSERT cf ITEMS x",
        "CF.INSERTNX cf ITEMS x",
        "CF.DEL cf i1",
        "CF.COMPACT cf",
        "CF.LOADCHUNK cf 1 x",
        "CF.APPLY cf x",
    ] {
        let reply = reader.run(line);
        assert!(reply.err().starts_with("READONLY "), "{line}: {reply:?}");
    }
}

#[test]
fn a_promoted_replica_goes_on_and_keeps_its_own_limits() {
    let master = quiet().start();
    let replica = quiet().module_args(&["bloom-max-bytes", "60000"]).start();
    let second = quiet().start();
    follow(&master, &replica);
    follow(&replica, &second);
    let mut client = Raw::connect(&master);
    for kind in KINDS {
        client.must(&kind.reserve(kind.family(), 200));
        add(&mut client, kind, kind.family(), 0..1000);
        client.must(&kind.reserve(&format!("large-{}", kind.family()), 100_000));
    }
    assert_identical(&master, &second);
    replica.promote();
    await_role(&replica, "master");
    let mut promoted = Raw::connect(&replica);
    for kind in KINDS {
        let key = kind.family();
        assert_holds(&mut promoted, kind, key, 0..1000);
        // The same as the old master would have done.
        for client in [&mut client, &mut promoted] {
            add(client, kind, key, 1000..2000);
        }
        assert_eq!(
            value_digest(&mut promoted, key),
            value_digest(&mut client, key)
        );
        let reply = promoted.run(&kind.reserve("new", 1_000_000));
        assert_eq!(reply.err(), TOO_LARGE);
        // One that is larger than may be stays, and takes items as long as it need not grow.
        add_named(&mut promoted, kind, &format!("large-{key}"), "x", 0..500);
    }
    assert_identical(&replica, &second);
    follow(&replica, &master);
    assert_identical(&replica, &master);
    assert_calm(&master);
}
