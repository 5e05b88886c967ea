//! Damaged files: RDB files and append-only files that are cut anywhere or have a bit flipped anywhere. A server that is
//! started with one either refuses it, with a line in its log, or has whole changes from its beginning on; it never
//! crashes, hangs or takes memory that it does not need.
//!
//! A start takes some 15 ms, so that places are sampled. `SLUICE_FAULTS=all` tries every cut and every bit.

use std::fs;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use crate::support::corruption::{FAMILIES, STOCKS, all_faults, assert_calm, commands, fill, uses};
use crate::support::{Builder, Fsync, Lines, Random, Raw, Server, Shutdown, encode, largest_child};

/// No server needs more memory for any of this, and not the test process either, of which a server is a copy for a moment.
const MOST_MEMORY: u64 = 256 << 20;

/// How many places are tried of each file unless it is all of them.
const SAMPLE: u64 = 50;

/// What a server logs when it has refused an RDB file and is about to look what is wrong with it. From here on no module
/// takes part. Where a file ends between two strings of a module's value, `redis-check-rdb` never ends, and nor does a
/// server, which does the same.
const CHECKS: &str = "Internal error in RDB reading";

/// How a server ends itself, as if it had crashed, where damage gives a key the name of another one.
const DUPLICATE: &str = "Duplicated key found in RDB file";

/// The digest of a dataset without keys.
const EMPTY: &str = "0000000000000000000000000000000000000000";

/// A server that is started again and again with one of its files damaged.
struct Lab {
    server: Server,
    file: PathBuf,
    whole: Vec<u8>,
    tried: u64,
    loaded: u64,
    /// How often the server refused a file and never ended.
    hung: u64,
    /// How many stocks could not be saved and loaded.
    contradictory: u64,
}

impl Lab {
    /// Stops a server and takes hold of a file of it.
    fn of(server: Server, file: PathBuf) -> Self {
        let whole = fs::read(&file).expect("the file");
        if server.is_running() {
            server.kill9();
        }
        Self {
            server,
            file,
            whole,
            tried: 0,
            loaded: 0,
            hung: 0,
            contradictory: 0,
        }
    }

    /// Starts the server with these bytes for its file: whether it takes them. Panics unless it says why not.
    #[track_caller]
    fn starts_with(&mut self, bytes: &[u8], what: &str) -> bool {
        self.tried += 1;
        let log = self.server.dir().join("log");
        fs::write(&log, "").expect("a log");
        fs::write(&self.file, bytes).expect("the file");
        let never_answers = |log: &str| [CHECKS, DUPLICATE].iter().any(|line| log.contains(line));
        let ended = self.server.try_restart(never_answers);
        let said = self.server.log();
        if ended.is_some() && said.contains(DUPLICATE) {
            return false;
        }
        assert_calm(&said);
        if let Some(status) = ended {
            let hangs = status.signal() == Some(libc::SIGKILL) && said.contains(CHECKS);
            self.hung += u64::from(hangs);
            let ends = matches!(status.code(), Some(0 | 1));
            assert!(hangs || ends, "{what}: {status}\n{said}");
            assert!(said.contains(" # "), "{what}: no reason is given\n{said}");
            return false;
        }
        self.loaded += 1;
        true
    }

    /// Uses all that was loaded, which must also be something that is saved and loaded. Except for stocks in append-only
    /// files: a change that is damaged, or does not fit a damaged stock, may make one whose numbers contradict each other.
    #[track_caller]
    fn uses_all(&mut self, what: &str) {
        let mut client = Raw::connect(&self.server);
        let is_aof = !self.file.ends_with("dump.rdb");
        for key in FAMILIES.iter().flat_map(|family| family.keys) {
            let loads = uses(&mut client, key, what.as_bytes());
            if !loads {
                let may_contradict = is_aof && STOCKS.keys.contains(key);
                assert!(
                    may_contradict,
                    "{what}: {key} cannot be loaded as it was saved"
                );
                self.contradictory += 1;
                client.must(&format!("DEL {key}"));
            }
        }
        client.must("DEBUG RELOAD");
        assert_calm(&self.server.log());
    }

    /// Some of so many places, or all of them; always the first and the last.
    fn places(&self, count: usize, seed: u64) -> Vec<usize> {
        println!("seed {seed:#x}");
        let mut random = Random(seed);
        let mut places: Vec<usize> = match all_faults() {
            true => (0..count).collect(),
            false => (0..SAMPLE)
                .map(|_| random.below(count as u64) as usize)
                .chain([0, count - 1])
                .collect(),
        };
        places.sort_unstable();
        places.dedup();
        places
    }

    /// Cuts the file at each of some places and gives each server that starts to `check`, with the place.
    #[track_caller]
    fn cuts(&mut self, seed: u64, mut check: impl FnMut(Option<&Server>, usize)) {
        for place in self.places(self.whole.len(), seed) {
            let bytes = self.whole[..place].to_vec();
            let starts = self.starts_with(&bytes, &format!("cut at {place}"));
            check(starts.then_some(&self.server), place);
            if starts {
                self.server.kill9();
            }
        }
    }

    /// Flips some bits, one after the other, and uses what is loaded.
    #[track_caller]
    fn flips(&mut self, seed: u64) {
        let unchecked = argument_counts_of_the_server(&self.whole);
        for bit in self.places(self.whole.len() * 8, seed) {
            if unchecked.iter().any(|range| range.contains(&(bit / 8)))
                || is_sign_of_expiry(&self.whole, bit)
            {
                continue;
            }
            let mut bytes = self.whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let what = format!("bit {bit}");
            if self.starts_with(&bytes, &what) {
                self.uses_all(&what);
                self.server.kill9();
            }
        }
    }

    #[track_caller]
    fn ends(self, what: &str) {
        let Self {
            tried,
            loaded,
            hung,
            contradictory,
            whole,
            ..
        } = &self;
        let most = largest_child();
        println!(
            "{what}: {} bytes, {tried} tried, {loaded} loaded, {hung} hung, {contradictory} contradictory, {most} bytes at most",
            whole.len()
        );
        assert!(most < MOST_MEMORY, "a server had {most} bytes");
    }
}

/// Where an append-only file has the numbers of arguments of the server's own commands. A server that loads such a file does not
/// compare this number with the command: it crashes, without any module, on `PEXPIREAT` with one argument.
fn argument_counts_of_the_server(file: &[u8]) -> Vec<Range<usize>> {
    if file.first() != Some(&b'*') {
        return Vec::new(); // an RDB file
    }
    let mut start = 0;
    let mut counts = Vec::new();
    for (words, end) in commands(file) {
        if !words[0].contains(&b'.') {
            let length = file[start..].iter().position(|byte| *byte == b'\n');
            counts.push(start..start + length.expect("a line") + 1);
        }
        start = end;
    }
    counts
}

/// Whether this bit of an RDB file makes the expiry of a key negative. Valkey 9.1 loads such a key, and ends with an assertion when it
/// looks for expired keys, without any module.
fn is_sign_of_expiry(file: &[u8], bit: usize) -> bool {
    const EXPIRETIME_MS: u8 = 0xfc; // eight bytes follow
    let before = (bit / 8).checked_sub(8).and_then(|at| file.get(at));
    bit % 8 == 7 && before == Some(&EXPIRETIME_MS)
}

/// A server whose files have no checksums and no compressed strings, so that damage comes through to what reads values.
/// What is the server's own it checks as it checks what comes from strangers.
fn builder() -> Builder {
    Server::builder()
        .config("rdbchecksum", "no")
        .config("rdbcompression", "no")
        .config("sanitize-dump-payload", "yes")
}

fn rdb_lab() -> Lab {
    let server = builder().rdb(true).start();
    fill(&mut Raw::connect(&server));
    assert!(server.shutdown(Shutdown::Save).success());
    let file = server.dir().join("dump.rdb");
    Lab::of(server, file)
}

#[test]
fn an_rdb_file_that_is_cut_anywhere_is_refused() {
    let mut lab = rdb_lab();
    let whole = lab.whole.clone();
    assert!(lab.starts_with(&whole, "whole"));
    lab.uses_all("whole");
    lab.server.kill9();
    lab.cuts(0xc07_04db, |server, place| {
        assert!(server.is_none(), "cut at {place}: half a dataset is loaded");
    });
    lab.ends("RDB file, cut");
}

#[test]
fn an_rdb_file_with_a_flipped_bit_is_refused_or_makes_a_dataset_that_works() {
    let mut lab = rdb_lab();
    lab.flips(0xf11_04db);
    assert!(lab.loaded > lab.tried / 20, "hardly any was loaded");
    lab.ends("RDB file, flipped");
}

/// A server that has stopped, with an RDB file of RedisBloom or valkey-bloom and the RDB version of Redis 7.0.
fn lab_of_another_module(name: &str) -> Lab {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/foreign");
    let mut bytes = fs::read(path.join(name)).expect(name);
    bytes[5..9].copy_from_slice(b"0010");
    let server = builder().rdb(true).start();
    server.kill9();
    let file = server.dir().join("dump.rdb");
    fs::write(&file, bytes).expect("the file");
    Lab::of(server, file)
}

#[test]
fn a_damaged_rdb_file_of_another_module_is_refused_or_makes_a_dataset_that_works() {
    for (name, seed) in [
        ("all.rdb", 0xf0e_0001),
        ("2.0/all.rdb", 0xf0e_0002),
        ("8.8/all.rdb", 0xf0e_0003),
        ("all-valkey.rdb", 0xf0e_0004),
    ] {
        let mut lab = lab_of_another_module(name);
        let whole = lab.whole.clone();
        assert!(lab.starts_with(&whole, name));
        lab.server.kill9();
        lab.cuts(seed, |server, place| {
            assert!(server.is_none(), "{name}, cut at {place}: loaded");
        });
        for bit in lab.places(whole.len() * 8, seed) {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let what = format!("{name}, bit {bit}");
            if lab.starts_with(&bytes, &what) {
                let mut client = Raw::connect(&lab.server);
                for key in client.must("KEYS *").array() {
                    for command in ["BF.ADD", "BF.EXISTS", "CF.ADD", "CF.COUNT"] {
                        client.call([command.as_bytes(), key.bytes(), b"item"]);
                    }
                }
                client.must("DEBUG RELOAD");
                assert_calm(&lab.server.log());
                lab.server.kill9();
            }
        }
        lab.ends(name);
    }
}

/// A server with an append-only file, and how long that was with which digest after each change.
fn with_history(builder: Builder) -> (Server, Vec<(usize, String)>) {
    let server = builder.aof(Fsync::Always).start();
    let mut client = Raw::connect(&server);
    let file = server.aof_file(".incr.");
    let mut history = vec![(0, EMPTY.to_owned())];
    // A message that is due is delivered by each server that loads it, so a file that ends before the delivery makes no state that
    // the first server had.
    let lines = FAMILIES.iter().flat_map(|family| family.makes);
    for line in lines.filter(|line| !line.contains(" PX 0 ")) {
        client.must(line);
        let length = fs::metadata(&file).expect("the file").len() as usize;
        history.push((length, server.digest()));
    }
    // The connection that a lock is watched for stays as long as the server: what it would tell is no part of this.
    server.kill9();
    (server, history)
}

/// What was there when the file was so long.
fn state_at(history: &[(usize, String)], length: usize) -> &str {
    let whole = history.iter().rev().find(|(end, _)| *end <= length);
    &whole.expect("the file began with nothing").1
}

#[test]
fn an_append_only_file_that_is_cut_anywhere_is_loaded_up_to_its_last_whole_change() {
    let (server, history) = with_history(builder().config("aof-load-truncated", "yes"));
    let file = server.aof_file(".incr.");
    let mut lab = Lab::of(server, file);
    lab.cuts(0xc07_a0f1, |server, place| {
        let server = server.unwrap_or_else(|| panic!("cut at {place}: refused"));
        let state = state_at(&history, place);
        assert_eq!(server.digest(), state, "cut at {place}");
    });
    lab.ends("append-only file, cut");
}

#[test]
fn a_cut_append_only_file_is_refused_where_the_server_is_told_to() {
    let (server, history) = with_history(builder().config("aof-load-truncated", "no"));
    let file = server.aof_file(".incr.");
    let ends: Vec<usize> = commands(&fs::read(&file).expect("the file"))
        .into_iter()
        .map(|(_, end)| end)
        .collect();
    let mut lab = Lab::of(server, file);
    lab.cuts(0xc07_a0f2, |server, place| match server {
        // Between two commands nobody can tell that anything is missing.
        Some(server) => {
            assert!(
                place == 0 || ends.contains(&place),
                "cut at {place}: loaded"
            );
            assert_eq!(server.digest(), state_at(&history, place), "cut at {place}");
        }
        None => assert!(place > 0, "an empty file is refused"),
    });
    lab.ends("append-only file, cut and refused");
}

#[test]
fn an_append_only_file_with_a_flipped_bit_is_refused_or_makes_a_dataset_that_works() {
    let (server, _) = with_history(builder());
    let file = server.aof_file(".incr.");
    let mut lab = Lab::of(server, file);
    lab.flips(0xf11_a0f1);
    assert!(lab.loaded > lab.tried / 20, "hardly any was loaded");
    lab.ends("append-only file, flipped");
}

/// A server with an append-only file that was rewritten, as RDB or in commands, and goes on after that.
fn rewritten(preamble: &str) -> Lab {
    let server = builder()
        .config("aof-use-rdb-preamble", preamble)
        .aof(Fsync::Always)
        .start();
    let mut client = Raw::connect(&server);
    fill(&mut client);
    server.rewrite_aof();
    client.must("STOCK.DEDUCT st 1 ORDER later USER u");
    server.kill9();
    let file = server.aof_file(".base.");
    Lab::of(server, file)
}

/// What comes later does not make up for it.
#[test]
fn a_base_file_that_is_cut_anywhere_is_refused() {
    for (preamble, seed) in [("yes", 0xc07_ba5e), ("no", 0xc07_ba5f)] {
        let mut lab = rewritten(preamble);
        let ends: Vec<usize> = match preamble {
            "yes" => Vec::new(),
            _ => commands(&lab.whole)
                .into_iter()
                .map(|(_, end)| end)
                .collect(),
        };
        lab.cuts(seed, |server, place| {
            // Between two commands nobody can tell that anything is missing.
            let seems_whole = preamble == "no" && (place == 0 || ends.contains(&place));
            // An empty file is none to the server.
            assert!(
                server.is_none() || seems_whole || place == 0,
                "cut at {place}: half a dataset is loaded"
            );
        });
        lab.ends(&format!("base file, preamble {preamble}, cut"));
    }
}

#[test]
fn a_base_file_with_a_flipped_bit_is_refused_or_makes_a_dataset_that_works() {
    for (preamble, seed) in [("yes", 0xf11_ba5e), ("no", 0xf11_ba5f)] {
        let mut lab = rewritten(preamble);
        lab.flips(seed);
        lab.ends(&format!("base file, preamble {preamble}, flipped"));
    }
}

/// The rewritten file alone, as a backup may have it: what is whole of it is loaded, and can be gone on with.
#[test]
fn a_base_file_of_commands_that_is_the_last_is_loaded_up_to_the_last_whole_command() {
    let mut lab = rewritten("no");
    let folder = lab.server.dir().join("appendonlydir");
    let manifest = fs::read_dir(&folder)
        .expect("a folder")
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().ends_with(".manifest"))
        .expect("a manifest");
    let text = fs::read_to_string(&manifest).expect("a manifest");
    let base: Vec<&str> = text
        .lines()
        .filter(|line| line.contains(" type b"))
        .collect();
    let base = base.join("\n") + "\n";
    let increment = lab.server.aof_file(".incr.");
    let ends: Vec<usize> = commands(&lab.whole)
        .into_iter()
        .map(|(_, end)| end)
        .collect();
    let whole = lab.whole.clone();
    let start = |lab: &mut Lab, length: usize| {
        fs::write(&manifest, &base).expect("a manifest");
        let _ = fs::remove_file(&increment);
        let what = format!("cut at {length}");
        assert!(lab.starts_with(&whole[..length], &what), "{what}: refused");
        let digest = lab.server.digest();
        lab.server.kill9();
        digest
    };
    for place in lab.places(lab.whole.len(), 0xc07_1a57) {
        let last_whole = ends.iter().rev().find(|end| **end <= place).copied();
        let expected = start(&mut lab, last_whole.unwrap_or(0));
        assert_eq!(start(&mut lab, place), expected, "cut at {place}");
    }
    lab.ends("base file of commands alone, cut");
}

/// Most servers check the arity of commands, but not of those in their append-only file. Valkey 8.1 does, and refuses the file.
#[test]
fn commands_without_their_arguments_in_an_append_only_file_do_no_harm() {
    let server = builder().aof(Fsync::Always).start();
    let list = server.command(["COMMAND", "LIST", "FILTERBY", "MODULE", "sluice"]);
    let file = server.aof_file(".incr.");
    let mut lab = Lab::of(server, file);
    let mut bytes = Vec::new();
    for name in list.array() {
        for count in 0..4 {
            let arguments = [b"2".as_slice(), b"1", b"1"];
            let words = [name.bytes()].into_iter().chain(arguments);
            bytes.extend(encode(words.take(1 + count)));
        }
    }
    let started = lab.starts_with(&bytes, "too few arguments");
    if started {
        lab.uses_all("too few arguments");
        lab.server.kill9();
    } else {
        let log = lab.server.log();
        assert!(log.contains("wrong number of arguments"), "{log}");
    }
    lab.ends("commands without their arguments");
}
