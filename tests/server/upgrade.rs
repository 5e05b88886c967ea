//! Files of an earlier build: an RDB file, an append-only file that was rewritten in commands, and one that holds every change
//! as it was replicated. This build must load each of them as the dataset that the earlier build had.
//!
//! The files are in `tests/data/`, with the digest of each key. `SLUICE_FILES=write cargo test --test server upgrade::` writes
//! them anew with the module that `SLUICE_MODULE` names. Use Redis 7.0 for that: newer servers write RDB files that it cannot
//! load.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::corruption::{commands, fill};
use crate::support::stock::await_state;
use crate::support::{Builder, Fsync, Lines as _, Raw, Server, Shutdown, unix_ms};

/// 2100-01-01. The files are written at this time by the server's clock, and they are loaded an hour later.
const WRITTEN_MS: i64 = 4_102_444_800_000;

const HOUR_MS: i64 = 3_600_000;

/// The last fence of the files: higher than the clock, so that the next fence shows whether it was loaded.
const LAST_FENCE: i64 = 5_000_000_000_000_000;

/// This many shared holders make a lock keep an order of its leases.
const HOLDERS: usize = 70;

const RDB: &str = "dump.rdb";
const REWRITTEN: &str = "rewritten.aof";
const AFTER_REWRITE: &str = "after-rewrite.aof";
const EFFECTS: &str = "effects.aof";
const DIGESTS: &str = "digests";

/// What the small dataset of the corruption tests lacks.
const MORE: &[&str] = &[
    "STOCK.RESERVE st 1 ORDER brief PX 1 USER z",
    "SET counter 7",
    "STOCK.IMPORT counter PERUSER 3 RETAIN 86400000",
    "LOCK.GUARD guard 5",
    "LOCK.GUARD brief-guard 5 PX 90000000",
    "LOCK.MACQUIRE 2 m1 m2 me PX 90000000 ID first",
    "LOCK.MRELEASE 2 m1 m2 me ID second",
    "LOCK.MACQUIRE 2 m1 m2 me PX 90000000 WATCHDOG",
    "SEM.ACQUIRE sw me LIMIT 3 PX 90000000 WATCHDOG",
    "BF.INSERT fixed CAPACITY 20 ERROR 0.001 NONSCALING ITEMS a b c",
    "CF.RESERVE wide 40 BUCKETSIZE 8 MAXITERATIONS 30 EXPANSION 0 BITS 32",
    "CF.INSERT wide ITEMS a a a b b c",
    "CF.DEL wide a",
    "CF.COMPACT cf",
    "RATE.TIERS three 3 4 1 315360000000 9 2 315360000000 99 3 315360000000",
    "CL.THROTTLE throttle 4 1 31536000 2",
    "EXPIRE bf 90000000",
    "RENAME like renamed",
    "COPY cf copied",
];

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// A server whose clock is so many milliseconds past the time at which the files are written.
fn server_at(after_ms: i64) -> Builder {
    Server::builder()
        .clock(WRITTEN_MS + after_ms - unix_ms())
        .config("aof-use-rdb-preamble", "no")
        .config("rdbcompression", "no")
}

/// The digest of each key, and under an empty name that of the whole dataset.
fn digests(server: &Server) -> BTreeMap<String, String> {
    let mut client = Raw::connect(server);
    let keys = client.must("KEYS *");
    let mut digests: BTreeMap<String, String> = keys
        .array()
        .iter()
        .map(|key| {
            let digest = client.must(&format!("DEBUG DIGEST-VALUE {}", key.text()));
            (key.text().to_owned(), digest.array()[0].text().to_owned())
        })
        .collect();
    digests.insert(String::new(), server.digest());
    digests
}

/// The digests that the earlier build had.
fn written_digests() -> BTreeMap<String, String> {
    let text = fs::read_to_string(data().join(DIGESTS)).expect("the digests");
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines
        .map(|(digest, key)| (key.to_owned(), digest.to_owned()))
        .collect()
}

/// Writes the files, if the environment asks for it.
fn write_files() {
    if std::env::var_os("SLUICE_FILES").is_none_or(|value| value != "write") {
        return;
    }
    fs::create_dir_all(data()).expect("a folder");
    let server = server_at(0).aof(Fsync::Always).rdb(true).start();
    let mut client = Raw::connect(&server);
    fill(&mut client);
    for line in MORE {
        client.must(line);
    }
    for holder in 0..HOLDERS {
        let lease = 90_000_000 + 1000 * holder;
        client.must(&format!("LOCK.ACQUIRE crowd h{holder} SHARED PX {lease}"));
    }
    await_state(&mut client, "st", "brief", "expired");
    client.must(&format!("LOCK.FENCE {LAST_FENCE}"));
    let keep = |file: &Path, name| {
        fs::copy(file, data().join(name)).expect("a copy");
    };
    keep(&server.aof_file(".incr."), EFFECTS);
    let effects = fs::read(data().join(EFFECTS)).expect("the file");
    let effects = commands(&effects);
    let list = client.must("COMMAND LIST FILTERBY MODULE sluice");
    for name in list.array().iter().map(|name| name.text().to_uppercase()) {
        let is_internal = name.ends_with(".APPLY") && name != "SLUICE.APPLY";
        let is_there = effects.iter().any(|(words, _)| words[0] == name.as_bytes());
        assert!(!is_internal || is_there, "{name} is in no file");
    }
    server.rewrite_aof();
    keep(&server.aof_file(".base."), REWRITTEN);
    keep(&server.aof_file(".incr."), AFTER_REWRITE);
    client.must("SAVE");
    keep(&server.dir().join("dump.rdb"), RDB);
    let digests = digests(&server);
    let lines = digests
        .iter()
        .map(|(key, digest)| format!("{digest} {key}\n"));
    fs::write(data().join(DIGESTS), lines.collect::<String>()).expect("the digests");
}

/// Panics unless the server has the dataset of the earlier build, keeps it in a file of its own, and grants `fence` next.
#[track_caller]
fn must_have_everything(server: &Server, fence: i64) {
    let expected = written_digests();
    assert!(expected.len() > 30, "{expected:?}");
    assert_eq!(digests(server), expected);
    server.command(["DEBUG", "RELOAD"]);
    assert_eq!(digests(server), expected, "after DEBUG RELOAD");
    assert_eq!(server.command(["LOCK.ACQUIRE", "new", "me"]), fence);
    server.command(["LOCK.RELEASE", "new", "me"]);
    assert!(!server.log().contains("invalid"), "{}", server.log());
}

/// A server that has loaded these files as its append-only files, the first of them as the base.
#[track_caller]
fn server_with_aof(base: Option<&str>, increment: &str) -> Server {
    let server = server_at(HOUR_MS).aof(Fsync::Always).start();
    server.kill9();
    let folder = server.dir().join("appendonlydir");
    fs::remove_dir_all(&folder).expect("the server has made it");
    fs::create_dir(&folder).expect("a folder");
    let mut manifest = String::new();
    for (name, kind) in [(base, 'b'), (Some(increment), 'i')] {
        if let Some(name) = name {
            fs::copy(data().join(name), folder.join(name)).expect("a copy");
            manifest += &format!("file {name} seq 1 type {kind}\n");
        }
    }
    fs::write(folder.join("appendonly.aof.manifest"), manifest).expect("a manifest");
    server.restart();
    server
}

#[test]
fn files_of_an_earlier_build_are_loaded_as_the_same_dataset() {
    write_files();
    let server = server_at(HOUR_MS).rdb(true).start();
    assert!(server.shutdown(Shutdown::NoSave).success());
    fs::copy(data().join(RDB), server.dir().join("dump.rdb")).expect("a copy");
    server.restart();
    must_have_everything(&server, LAST_FENCE + 1);
    for (base, increment) in [(Some(REWRITTEN), AFTER_REWRITE), (None, EFFECTS)] {
        let server = server_with_aof(base, increment);
        must_have_everything(&server, LAST_FENCE + 1);
        server.rewrite_aof();
        server.crash();
        must_have_everything(&server, LAST_FENCE + 2);
    }
}
