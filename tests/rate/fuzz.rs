//! Damaged and forged bytes of limits are refused or make a limit that answers: nothing crashes, and what is handed on to
//! a replica is what the master has.

use crate::support::corruption::{FOOTER, damaged, payload_of};
use crate::support::rate::{BAD_EFFECT, KINDS, MOST, OTHER_KIND, ask, at, fill};
use crate::support::{
    Lines, Random, Raw, SOON, Server, Value, assert_identical, eventually, follow,
};
use sluice::codec::put_uint;
use sluice::rate::persist::{self, RateEffect};

/// A master with a replica, which take any payload for undamaged.
struct Careless {
    master: Server,
    replica: Server,
    client: Raw,
}

impl Careless {
    fn start() -> Self {
        let [master, replica] = [(); 2].map(|()| {
            let server = Server::builder().config("repl-diskless-sync", "no").start();
            server.command(["DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", "1"]);
            server.command(["CONFIG", "SET", "rdbcompression", "no"]);
            server
        });
        follow(&master, &replica);
        let client = Raw::connect(&master);
        Self {
            master,
            replica,
            client,
        }
    }

    /// Panics unless both servers live and have the same.
    #[track_caller]
    fn is_well(&mut self) {
        assert_identical(&self.master, &self.replica);
        for server in [&self.master, &self.replica] {
            let log = server.log();
            for word in ["panic", "internal error", "invalid replicated", "ASSERTION"] {
                assert!(!log.contains(word), "{log}");
            }
        }
        // What was made of it can be saved and loaded. Some of it may end meanwhile.
        eventually(SOON, || {
            let digest = self.master.digest();
            self.client.must("DEBUG RELOAD");
            self.master.digest() == digest
        });
    }
}

/// What can be asked of a limit of any kind; most of it is of another kind than the key.
fn questions(key: &str) -> Vec<String> {
    let mut lines: Vec<String> = KINDS.iter().map(|(_, line)| at(line, key)).collect();
    let others = [
        "RATE.GCRA % 9007199254740990 1 315360000000 COST 5",
        "RATE.GCRA % 9007199254740990 9007199254740991 1 COST 9007199254740991",
        "RATE.GCRA % 0 1 315360000000 PEEK",
        "RATE.WINDOW % 9007199254740991 1 COST 9007199254740991",
        "RATE.WINDOW % 9007199254740991 315360000000 COST 9007199254740991 SLIDING",
        "RATE.WINDOW % 0 1 SLIDING",
        "RATE.WINDOW % 0 1 EXACT",
        "RATE.WINDOW % 100000 315360000000 EXACT COST 7",
        "RATE.GCRA % 0 1 315360000000 AHEAD 315360000000",
        "RATE.MGCRA 2 % 0 1 1 other{%} 0 1 1 AHEAD 1",
        "RATE.TIERS % 2 9007199254740990 1 1 9007199254740990 1 315360000000 COST 7",
        "RATE.REFUND % 1",
        "RATE.REFUND % 9007199254740991",
        "RATE.CHARGE % 1",
        "RATE.CHARGE % 9007199254740991",
    ];
    lines.extend(others.map(|line| at(line, key)));
    lines
}

/// Uses what was made of damaged bytes in every way; it must also be saved as something that is loaded.
#[track_caller]
fn use_limit(client: &mut Raw, key: &str, what: &str) {
    if client.call(["TYPE", key]) != "sluice-ra" {
        return; // the damage has made another type of it
    }
    let copy = format!("COPY {key} copy REPLACE");
    for question in questions("copy") {
        let replies = client.run_all([copy.as_str(), &question, "DUMP copy"]);
        match &replies[1] {
            Value::Error(text) => assert_eq!(text, OTHER_KIND, "{question}: {what}"),
            Value::Array(numbers) => {
                let is_safe = |number: &Value| (-1..=MOST).contains(&number.int());
                assert!(
                    numbers.iter().all(is_safe),
                    "{question}: {numbers:?}: {what}"
                );
            }
            reply => assert!((0..=1).contains(&reply.int()), "{question}: {what}"),
        }
        if !replies[2].is_nil() {
            let restore = [
                b"RESTORE".as_slice(),
                b"again",
                b"0",
                replies[2].bytes(),
                b"REPLACE",
            ];
            assert_eq!(client.call(restore), "OK", "{question}: {what}");
        }
    }
    for line in [
        format!("MEMORY USAGE {key}"),
        format!("DEBUG DIGEST-VALUE {key}"),
    ] {
        client.must(&line);
    }
    client.must("DEL copy again");
}

fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Offers a payload; whether it makes something, which is used then.
#[track_caller]
fn restore(client: &mut Raw, payload: &[u8]) -> bool {
    let reply = client.call([b"RESTORE".as_slice(), b"r", b"0", payload]);
    let made = match reply {
        Value::Error(text) => {
            assert!(!text.contains("internal"), "{text}");
            false
        }
        _ => true,
    };
    if made {
        use_limit(client, "r", &shown(payload));
        client.must("DEL r");
    }
    made
}

/// The same of an effect.
#[track_caller]
fn apply(client: &mut Raw, effect: &[u8]) -> bool {
    let reply = client.call([b"RATE.APPLY".as_slice(), b"a", effect]);
    if reply.is_err() {
        assert_eq!(reply.err(), BAD_EFFECT, "{}", shown(effect));
        return false;
    }
    use_limit(client, "a", &shown(effect));
    client.must("DEL a");
    true
}

/// The payloads of all kinds, and the bytes of the limits in them.
fn originals(client: &mut Raw) -> Vec<(Vec<u8>, Vec<u8>)> {
    fill(client);
    let mut originals = Vec::new();
    for (kind, _) in KINDS {
        let payload = client.call(["DUMP", kind]).bytes().to_vec();
        // The type, the module's id in nine bytes, a string's opcode and length; an end and the footer.
        let limit = payload[12..payload.len() - FOOTER - 1].to_vec();
        let read = persist::read(&limit);
        assert!(read.is_ok(), "{kind}: {}", shown(&limit));
        originals.push((payload, limit));
    }
    client.must("FLUSHALL");
    originals
}

#[test]
fn payloads_that_are_damaged_in_one_place_are_refused_or_make_a_limit_that_works() {
    let mut servers = Careless::start();
    let client = &mut servers.client;
    for (payload, limit) in originals(client) {
        assert!(restore(client, &payload));
        let (value, footer) = payload.split_at(payload.len() - FOOTER);
        let mut made = 0;
        for value in damaged(value) {
            made += usize::from(restore(client, &[&value, footer].concat()));
        }
        println!("{}: {made} made", shown(&limit[..1]));
    }
    servers.is_well();
}

#[test]
fn effects_that_are_damaged_in_one_place_are_refused_or_make_a_limit_that_works() {
    let mut servers = Careless::start();
    let client = &mut servers.client;
    for (_, limit) in originals(client) {
        // An end that is far away, so that the key is there to be asked.
        let mut effect = Vec::new();
        put_uint(&mut effect, 9_000_000_000_000);
        effect.extend(&limit);
        assert!(apply(client, &effect));
        let cut = (0..effect.len()).filter(|end| apply(client, &effect[..*end]));
        assert_eq!(cut.count(), 0, "half an effect is taken for one");
        let mut made = 0;
        for effect in damaged(&effect) {
            made += usize::from(apply(client, &effect));
        }
        println!("{}: {made} made", shown(&limit[..1]));
    }
    servers.is_well();
}

/// Numbers at the ends of what can be written, and beyond what makes sense.
const NUMBERS: [u64; 17] = [
    0,
    1,
    2,
    63,
    64,
    65,
    1000,
    1_750_000_000_000,
    1_750_000_000_000_000,
    315_360_000_000,
    315_360_000_001,
    315_360_000_000_000,
    315_360_000_000_001,
    (1 << 53) - 2,
    (1 << 53) - 1,
    1 << 53,
    u64::MAX,
];

/// A limit whose numbers are these and whose form is right.
fn forged(random: &mut Random) -> Vec<u8> {
    let letter = *random.one(b"GTWSO");
    let mut bytes = vec![letter];
    let (heads, numbers) = match letter {
        b'G' => (None, 5),
        b'T' => {
            let count = *random.one(&[0, 1, 2, 64, 65]);
            (Some(count), 5 * count)
        }
        b'W' => (None, 3),
        b'S' => (None, 4),
        _ => (None, 0),
    };
    heads.iter().for_each(|count| put_uint(&mut bytes, *count));
    // Small numbers are right in most places.
    let most = if random.below(2) == 0 { 3 } else { 17 };
    for _ in 0..numbers {
        let number = match random.below(3) {
            0 => NUMBERS[random.below(most) as usize],
            1 => NUMBERS[random.below(15) as usize],
            _ => 1 + random.below(2),
        };
        put_uint(&mut bytes, number);
    }
    bytes
}

/// What is meant for accidents stops no attacker: the numbers themselves must do no harm.
#[test]
fn forged_numbers_are_refused_or_make_a_limit_that_works() {
    const SEED: u64 = 0x5ea1_ed01;
    println!("seed {SEED:#x}");
    let mut random = Random(SEED);
    let mut servers = Careless::start();
    let client = &mut servers.client;
    let real = originals(client).remove(0).0;
    let mut made = 0;
    for _ in 0..700 {
        let limit = forged(&mut random);
        let payload = payload_of(&real, &[&limit]);
        let mut effect = Vec::new();
        put_uint(&mut effect, 0);
        effect.extend(&limit);
        let readable = persist::read(&limit).is_ok();
        assert_eq!(restore(client, &payload), readable, "{}", shown(&limit));
        assert_eq!(apply(client, &effect), readable, "{}", shown(&limit));
        made += u32::from(readable);
        // Some stay, after a question that may change them.
        if readable && made % 5 == 0 {
            let key = format!("kept{made}");
            client.call([b"RESTORE".as_slice(), key.as_bytes(), b"0", &payload]);
            let questions = questions(&key);
            client.run(random.one(&questions).as_str());
        }
    }
    println!("{made} made");
    assert!((100..650).contains(&made), "{made}");
    servers.is_well();
}

/// What is read is written in the same way again: there is one form of everything.
#[test]
fn random_bytes_are_refused_or_read_as_they_are_written() {
    const SEED: u64 = 0x5ea1_ed02;
    println!("seed {SEED:#x}");
    let mut random = Random(SEED);
    let mut read = 0;
    for _ in 0..200_000 {
        let mut bytes = forged(&mut random);
        for _ in 0..random.below(3) {
            let place = random.below(bytes.len() as u64) as usize;
            match random.below(4) {
                0 => bytes[place] ^= 1 << random.below(8),
                1 => bytes.truncate(place + 1),
                2 => bytes.insert(place, random.below(256) as u8),
                _ => drop(bytes.remove(place)),
            }
            if bytes.is_empty() {
                bytes.push(0);
            }
        }
        if let Ok(limit) = persist::read(&bytes) {
            let mut again = Vec::new();
            persist::put(&mut again, &limit);
            assert_eq!(again, bytes);
            read += 1;
        }
        if let Ok((effect, expires)) = persist::read_effect(&bytes) {
            let mut again = Vec::new();
            match effect {
                RateEffect::Limit(limit) => persist::put_effect(&mut again, &limit, expires),
                RateEffect::Record(call) => persist::put_record(&mut again, call, expires),
                RateEffect::GiveBack(count) => {
                    persist::put_give_back(&mut again, count, expires);
                }
            }
            assert_eq!(again, bytes);
        }
    }
    println!("{read} read");
    assert!(read > 20_000, "{read}");
}

/// An end that is forged as well. The server's own ends are as far away as a number of 63 bits can be.
#[test]
fn forged_ends_of_keys_do_no_harm() {
    let mut servers = Careless::start();
    let client = &mut servers.client;
    let limit = originals(client).remove(0).1;
    for expires in NUMBERS {
        let mut effect = Vec::new();
        put_uint(&mut effect, expires);
        effect.extend(&limit);
        let taken = apply(client, &effect);
        assert_eq!(taken, expires < 1 << 53, "{expires}");
        let reply = client.call([b"RATE.APPLY".as_slice(), b"kept", &effect]);
        assert_eq!(reply.is_err(), !taken, "{expires}");
        ask(client, "RATE.GCRA kept 9 1 315360000000 COST 0");
        client.must("PTTL kept");
        client.must("DEL kept");
    }
    servers.is_well();
}
