//! The ways in which a dataset is written down and read again: files, crashes, payloads, replicas. Every family walks all
//! of them with everything that it can keep, and must find it as it was.

use std::collections::BTreeMap;
use std::fs;
use std::thread;

use super::builder::{Builder, Fsync};
use super::client::Raw;
use super::replica::{follow, quiet};
use super::server::{Server, Shutdown};
use super::talk::Lines as _;
use super::value::Value;

/// One way: the server that goes it, and what happens to it. What comes out is who has the dataset afterwards.
pub struct Way {
    /// What is done, for the message of a failure.
    pub name: &'static str,
    server: fn() -> Builder,
    go: fn(Server) -> Server,
}

const fn way(name: &'static str, server: fn() -> Builder, go: fn(Server) -> Server) -> Way {
    Way { name, server, go }
}

/// All of them.
const WAYS: [Way; 17] = [
    way("an RDB file", || Server::builder().rdb(true), saved),
    way("an RDB file of a child", Server::builder, |server| {
        server.save_in_background();
        crashed(server)
    }),
    way("an RDB file, uncompressed", uncompressed, |server| {
        server.save_in_background();
        crashed(server)
    }),
    way("DEBUG RELOAD, twice", Server::builder, |server| {
        server.command(["DEBUG", "RELOAD"]);
        server.command(["DEBUG", "RELOAD"]);
        server
    }),
    way("DUMP and RESTORE", Server::builder, restored),
    way("an AOF, flushed at the end", lazy, |server| {
        assert!(server.terminate().success());
        server.restart();
        server
    }),
    way("an AOF, and two crashes", aof, |server| {
        crashed(crashed(server))
    }),
    way("DEBUG LOADAOF", aof, loaded),
    way("a rewritten AOF with an RDB part", aof, |server| {
        rewritten(&server, false);
        crashed(server)
    }),
    way("a rewritten AOF of commands", aof_of_commands, |server| {
        rewritten(&server, true);
        crashed(loaded(server))
    }),
    way(
        "an AOF that is rewritten twice",
        aof_of_commands,
        |server| {
            rewritten(&server, true);
            let server = crashed(server);
            // What was read from the file is written into the next one.
            rewritten(&server, true);
            crashed(server)
        },
    ),
    way(
        "an AOF of commands, switched on later",
        commands,
        |server| {
            switch_on(&server);
            crashed(server)
        },
    ),
    way(
        "an AOF with an RDB part, switched on later",
        always,
        |server| {
            switch_on(&server);
            crashed(server)
        },
    ),
    way("a full transfer by file", quiet, |server| {
        handed_over(server, quiet())
    }),
    way("a full transfer without a file", diskless, |server| {
        handed_over(server, quiet().config("repl-diskless-load", "on-empty-db"))
    }),
    way(
        "a full transfer beside an old dataset",
        diskless,
        |server| handed_over(server, quiet().config("repl-diskless-load", "swapdb")),
    ),
    way("a replica of a replica, and its file", quiet, |server| {
        let second = handed_over(server, quiet());
        let third = quiet().aof(Fsync::Always).start();
        follow(&second, &third);
        third.promote();
        third.await_rewrite();
        crashed(third)
    }),
];

/// How many ways are gone at a time.
const AT_ONCE: usize = 2;

/// Goes all ways: each with a new server that `fill` fills, and `check` looks at what came of it. What `fill` returns is
/// what `check` compares with.
pub fn walk<P>(fill: impl Fn(&Server) -> P + Sync, check: impl Fn(&Server, &P) + Sync) {
    let (fill, check) = (&fill, &check);
    for ways in WAYS.chunks(AT_ONCE) {
        thread::scope(|scope| {
            for way in ways {
                let go = move || {
                    let server = (way.server)().start();
                    let before = fill(&server);
                    let server = (way.go)(server);
                    check(&server, &before);
                    let log = server.log();
                    for word in ["panic", "internal error", "lacks an entry"] {
                        assert!(!log.contains(word), "{word}: {log}");
                    }
                };
                // A thread that panics tells its name.
                let named = thread::Builder::new().name(way.name.into());
                named.spawn_scoped(scope, go).expect("a thread");
            }
        });
    }
}

fn aof() -> Builder {
    Server::builder().aof(Fsync::Always)
}

fn lazy() -> Builder {
    Server::builder().aof(Fsync::Everysec)
}

fn aof_of_commands() -> Builder {
    aof().config("aof-use-rdb-preamble", "no")
}

/// Its append-only file is not switched on yet.
fn always() -> Builder {
    Server::builder().config("appendfsync", "always")
}

fn commands() -> Builder {
    always().config("aof-use-rdb-preamble", "no")
}

fn uncompressed() -> Builder {
    Server::builder().config("rdbcompression", "no")
}

fn diskless() -> Builder {
    quiet().config("repl-diskless-sync", "yes")
}

fn saved(server: Server) -> Server {
    assert!(server.shutdown(Shutdown::Save).success());
    server.restart();
    server
}

fn crashed(server: Server) -> Server {
    server.crash();
    server
}

fn loaded(server: Server) -> Server {
    server.command(["DEBUG", "LOADAOF"]);
    server
}

fn rewritten(server: &Server, as_commands: bool) {
    server.rewrite_aof();
    let base = fs::read(server.aof_file(".base.")).expect("the base file");
    let is_text = base.is_empty() || base.starts_with(b"*");
    assert_eq!(is_text, as_commands);
    let magic = [b"REDIS".as_slice(), b"VALKEY"];
    let is_rdb = magic.iter().any(|magic| base.starts_with(magic));
    assert_eq!(is_rdb, !as_commands);
}

fn switch_on(server: &Server) {
    server.command(["CONFIG", "SET", "appendonly", "yes"]);
    server.await_rewrite();
    server.command(["CONFIG", "REWRITE"]);
}

/// Every key goes out as a payload and comes back when nothing is left.
fn restored(server: Server) -> Server {
    let mut client = Raw::connect(&server);
    let mut payloads = Vec::new();
    for db in DATABASES {
        client.must(&format!("SELECT {db}"));
        for key in client.must("KEYS *").array() {
            let key = key.bytes().to_vec();
            let payload = client.call([b"DUMP", &key[..]]).bytes().to_vec();
            let end = client.call([b"PEXPIRETIME", &key[..]]).int().max(0);
            payloads.push((db, key, payload, end.to_string()));
        }
    }
    client.must("FLUSHALL");
    for (db, key, payload, end) in payloads {
        client.must(&format!("SELECT {db}"));
        let restore = [b"RESTORE", &key[..], end.as_bytes(), &payload, b"ABSTTL"];
        assert_eq!(client.call(restore), "OK", "{}", key.escape_ascii());
    }
    server
}

/// The dataset goes to a replica, which had another one, and takes over when its master dies.
fn handed_over(master: Server, replica: Builder) -> Server {
    let replica = replica.start();
    replica.command(["SET", "old", "value"]);
    follow(&master, &replica);
    master.kill9();
    replica.promote();
    replica
}

/// The databases that datasets of the tests are in.
const DATABASES: std::ops::Range<i32> = 0..4;

/// All that can be seen of a dataset without knowing it: its digest, and what there is of each key.
#[derive(Debug, PartialEq)]
pub struct Picture {
    /// Of the whole dataset.
    pub digest: String,
    /// By database and name.
    pub keys: BTreeMap<(i32, Vec<u8>), Look>,
}

/// What a [`Picture`] has of one key.
#[derive(Debug, PartialEq)]
pub struct Look {
    /// `PEXPIRETIME`.
    pub ends: Value,
    digest: Value,
    /// The payload, or what a stream says of itself: its payload depends on how it came about.
    value: Vec<Value>,
}

impl Look {
    fn at(client: &mut Raw, key: &[u8]) -> Self {
        let value = match client.call([b"XINFO".as_slice(), b"STREAM", key]) {
            Value::Error(_) => vec![client.call([b"DUMP", key])],
            info => {
                let fields = ["length", "last-generated-id", "entries-added", "groups"];
                fields.map(|field| info.field(field).clone()).into()
            }
        };
        Self {
            ends: client.call([b"PEXPIRETIME", key]),
            digest: client.call([b"DEBUG".as_slice(), b"DIGEST-VALUE", key]),
            value,
        }
    }
}

impl Picture {
    /// What a server has now.
    #[track_caller]
    pub fn of(server: &Server) -> Self {
        let mut client = Raw::connect(server);
        let mut keys = BTreeMap::new();
        for db in DATABASES {
            client.must(&format!("SELECT {db}"));
            for key in client.must("KEYS *").array() {
                let key = key.bytes();
                keys.insert((db, key.to_vec()), Look::at(&mut client, key));
            }
        }
        Self {
            digest: server.digest(),
            keys,
        }
    }

    /// Panics unless the server has exactly this; names the key that is another.
    #[track_caller]
    pub fn assert_is_of(&self, server: &Server) {
        let now = Self::of(server);
        for (key, look) in &self.keys {
            assert_eq!(now.keys.get(key), Some(look), "{key:?}");
        }
        assert_eq!(self.keys.len(), now.keys.len());
        assert_eq!(self.digest, now.digest);
    }
}
