//! What tests of every family say to a server and hear from it: commands as lines of text, the errors of the contract,
//! the server's clock.

use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::client::{Raw, encode};
use super::server::Server;
use super::value::Value;
use super::wait::eventually;

/// What must happen, happens within this: generous, because it only ever delays a failure.
pub const SOON: Duration = Duration::from_secs(60);

/// The key has a value of another type.
pub const WRONGTYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
/// Words that no command has in this place.
pub const SYNTAX: &str = "ERR syntax error";
/// Or one that i64 does not have.
pub const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

/// 2^53: integers below it are exact in Lua and JavaScript.
pub const UNSAFE_INTEGER: i64 = 1 << 53;

/// A string that every server keeps in a block of its own, apart from what belongs to its key: what a server leaves out of
/// `MEMORY USAGE` of such a string, it leaves out of that of any value.
pub const SEPARATE: &str = "\
    vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv\
    vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv";

/// Commands written as lines: words between blanks.
pub trait Lines {
    /// Sends the command of a line and reads its reply.
    fn run(&mut self, line: &str) -> Value;

    /// The same; panics on an error.
    fn must(&mut self, line: &str) -> Value;

    /// Sends the command of a line, whose reply is read later.
    fn ask(&mut self, line: &str);

    /// Sends the commands of all lines in one write, then reads all replies.
    fn run_all<L>(&mut self, lines: L) -> Vec<Value>
    where
        L: IntoIterator,
        L::Item: AsRef<str>;

    /// The same in a transaction; panics unless it is carried out.
    fn transact<L>(&mut self, lines: L) -> Vec<Value>
    where
        L: IntoIterator,
        L::Item: AsRef<str>;
}

impl Lines for Raw {
    #[track_caller]
    fn run(&mut self, line: &str) -> Value {
        let is_crossing =
            line.starts_with("MOVE ") || line.starts_with("COPY ") && line.contains(" DB ");
        let database = is_crossing.then(|| self.call(["CLIENT", "INFO"])); // QUEUED, in a transaction
        let reply = self.call(line.split_whitespace());
        // Some versions of Valkey leave the client in the other database: see tests/server/databases.rs.
        if let Some(Value::Bulk(info)) = database {
            let info = String::from_utf8(info).expect("a text");
            let mut words = info.split(' ');
            let database = words.find_map(|word| word.strip_prefix("db="));
            self.call(["SELECT", database.expect("the client's database")]);
        }
        reply
    }

    #[track_caller]
    fn must(&mut self, line: &str) -> Value {
        let reply = self.run(line);
        assert!(!reply.is_err(), "{line}: {reply:?}");
        reply
    }

    #[track_caller]
    fn ask(&mut self, line: &str) {
        self.send(line.split_whitespace());
    }

    #[track_caller]
    fn run_all<L>(&mut self, lines: L) -> Vec<Value>
    where
        L: IntoIterator,
        L::Item: AsRef<str>,
    {
        let words = |line: L::Item| encode(line.as_ref().split_whitespace());
        let encoded: Vec<_> = lines.into_iter().map(words).collect();
        self.send_bytes(&encoded.concat());
        encoded.iter().map(|_| self.read()).collect()
    }

    #[track_caller]
    fn transact<L>(&mut self, lines: L) -> Vec<Value>
    where
        L: IntoIterator,
        L::Item: AsRef<str>,
    {
        let mut all = vec!["MULTI".to_owned()];
        all.extend(lines.into_iter().map(|line| line.as_ref().to_owned()));
        all.push("EXEC".to_owned());
        let replies = self.run_all(all);
        let executed = replies.last().expect("a reply to EXEC");
        executed.array().to_vec()
    }
}

/// A server without persistence, and a connection to it.
#[track_caller]
pub fn server_and_client() -> (Server, Raw) {
    let server = Server::start();
    let client = Raw::connect(&server);
    (server, client)
}

/// The command of a line on a new connection; panics on an error reply.
#[track_caller]
pub fn ask(server: &Server, line: &str) -> Value {
    server.command(line.split_whitespace())
}

/// Runs the command of a line in a transaction that lasts half a second before it, and calls a function at that time. If the machine
/// stalls, the command can run before the function. Returns the command's reply. The server needs `enable-debug-command`.
#[track_caller]
pub fn run_delayed(client: &mut Raw, line: &str, meanwhile: impl FnOnce()) -> Value {
    for line in ["MULTI", "DEBUG SLEEP 0.5", line] {
        client.must(line);
    }
    client.ask("EXEC");
    sleep(Duration::from_millis(100));
    meanwhile();
    client.read().array()[1].clone()
}

/// An integer field of an INFO text.
#[track_caller]
pub fn field_of(info: &Value, name: &str) -> i64 {
    info.text()
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or_else(|| panic!("INFO has no {name}"))
        .parse()
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Whether the server has I/O threads that look for the keys of a command: Redis 8.4 and later with `io-threads`. There it
/// does not ask commands of modules where their keys are.
#[track_caller]
pub fn reads_keys_in_threads(client: &mut Raw) -> bool {
    let info = client.must("INFO server");
    let version = |name: &str| -> Vec<u32> {
        let line = info.text().lines().find_map(|line| line.strip_prefix(name));
        let numbers = line
            .unwrap_or("")
            .split('.')
            .map(|number| number.parse().unwrap_or(0));
        numbers.take(2).collect()
    };
    version("valkey_version:").iter().sum::<u32>() == 0
        && version("redis_version:") >= vec![8, 4]
        && client.must("CONFIG GET io-threads").array()[1].text() != "1"
}

/// Milliseconds since 1970 by the server's clock.
#[track_caller]
pub fn now_ms(client: &mut Raw) -> i64 {
    now_us(client) / 1000
}

/// Microseconds since 1970 by the server's clock.
#[track_caller]
pub fn now_us(client: &mut Raw) -> i64 {
    let time = client.run("TIME");
    let part = |index: usize| -> i64 {
        let text = time.array()[index].text();
        text.parse().unwrap_or_else(|_| panic!("TIME: {text}"))
    };
    part(0) * 1_000_000 + part(1)
}

/// Milliseconds since 1970 by this machine's clock, which servers have too unless a test gives them another.
pub fn unix_ms() -> i64 {
    unix_us() / 1000
}

/// Microseconds since 1970 by this machine's clock.
pub fn unix_us() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("the clock is past 1970").as_micros();
    i64::try_from(now).expect("the clock is sane")
}

/// The same as [`used_memory`], once it stays the same: for a while after they have grown, the server's tables of keys and of
/// their ends are there twice, and it moves them over in its spare time.
#[track_caller]
pub fn settled_memory(client: &mut Raw) -> i64 {
    let mut last = used_memory(client);
    eventually(SOON, || {
        sleep(SPARE_TIME);
        let before = std::mem::replace(&mut last, used_memory(client));
        (last - before).abs() < 1024 && !is_rehashing(client)
    });
    last
}

/// Whether the server is still rehashing a table of keys. On a busy machine this takes long. Returns false if the server refuses `DEBUG`.
fn is_rehashing(client: &mut Raw) -> bool {
    let Value::Bulk(tables) = client.run("DEBUG HTSTATS 0") else {
        return false;
    };
    let tables = String::from_utf8_lossy(&tables).into_owned();
    let mut lines = tables.lines().filter(|line| line.contains("rehashing"));
    lines.any(|line| line.trim() != "rehashing index: -1") // Valkey 9: no move
}

/// In so long the server does several rounds of what it does in its spare time.
const SPARE_TIME: Duration = Duration::from_millis(250);

/// What `INFO memory` says is in use, when nothing is being freed.
#[track_caller]
pub fn used_memory(client: &mut Raw) -> i64 {
    let mut used = 0;
    eventually(SOON, || {
        let info = client.must("INFO memory");
        used = field_of(&info, "used_memory");
        field_of(&info, "lazyfree_pending_objects") == 0
    });
    used
}

/// The integers of a reply.
#[track_caller]
pub fn ints(reply: &Value) -> Vec<i64> {
    reply.array().iter().map(Value::int).collect()
}

/// Waits until the key is gone.
#[track_caller]
pub fn await_gone(client: &mut Raw, key: &str) {
    eventually(SOON, || client.call(["EXISTS", key]) == 0);
}

/// The pushes and replies that have arrived until the server answers this PING.
#[track_caller]
pub fn until_pong(client: &mut Raw) -> Vec<Value> {
    client.send(["PING"]);
    let mut arrived = Vec::new();
    loop {
        let value = client.read();
        if value == "PONG" {
            return arrived;
        }
        arrived.push(value);
    }
}
