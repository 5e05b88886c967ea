//! A client that sends its commands in pipelines, and looks at every reply.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::draw::{Command, Draw};
use crate::support::{Raw, Server, UNSAFE_INTEGER, Value, encode};

/// How many commands are sent in one write.
pub(crate) const BATCH: usize = 100;

/// A reply that takes longer than this is lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// What an error may begin with; `ERR internal error` is told apart.
const CODES: &[&str] = &[
    "ERR",
    "WRONGTYPE",
    "DEADLOCK",
    "CONFLICT",
    "BUSYKEY",
    "EXECABORT",
    "NOSCRIPT",
    "NOPERM",
    "UNBLOCKED",
    "OOM",
];

/// What came of the commands of one name.
#[derive(Default)]
pub(crate) struct Tally {
    /// Replies that are none of errors.
    pub(crate) answers: u64,
    /// Errors.
    pub(crate) errors: u64,
}

/// What came of all commands, by their names.
pub(crate) type Tallies = BTreeMap<String, Tally>;

/// A client.
pub(crate) struct Session {
    client: Raw,
}

impl Session {
    /// Connects. Every other client speaks RESP3.
    pub(crate) fn connect(server: &Server, number: usize) -> Self {
        let mut client = Raw::connect(server);
        if number % 2 == 1 {
            client.hello3();
        }
        Self { client }
    }

    /// Sends these commands and looks at the replies.
    #[track_caller]
    pub(crate) fn run(&mut self, draw: &mut Draw, commands: &[Command], tallies: &mut Tallies) {
        let bytes: Vec<_> = commands.iter().map(encode).collect();
        self.client.send_bytes(&bytes.concat());
        for command in commands {
            let reply = self.client.read_within(PATIENCE);
            let reply = reply.unwrap_or_else(|| panic!("{}: no reply", shown(command)));
            look(draw, command, &reply, tallies);
        }
    }

    /// The same as a transaction. What the server does not even queue ends it, and none of it happens.
    #[track_caller]
    pub(crate) fn transact(
        &mut self,
        draw: &mut Draw,
        commands: &[Command],
        tallies: &mut Tallies,
    ) {
        let mut bytes = encode(["MULTI"]);
        commands
            .iter()
            .for_each(|command| bytes.extend(encode(command)));
        bytes.extend(encode(["EXEC"]));
        self.client.send_bytes(&bytes);
        self.read_transaction(draw, commands, tallies);
    }

    fn read_transaction(&mut self, draw: &mut Draw, commands: &[Command], tallies: &mut Tallies) {
        assert_eq!(self.client.read(), "OK");
        let mut refused = false;
        for command in commands {
            let queued = self.client.read();
            if queued.is_err() {
                look(draw, command, &queued, tallies);
                refused = true;
            } else {
                assert_eq!(queued, "QUEUED");
            }
        }
        match self.client.read() {
            Value::Array(replies) if !refused => {
                assert_eq!(replies.len(), commands.len());
                for (command, reply) in commands.iter().zip(&replies) {
                    look(draw, command, reply, tallies);
                }
            }
            aborted => assert!(
                refused && aborted.err().starts_with("EXECABORT"),
                "{aborted:?}"
            ),
        }
    }
}

/// Counts a reply; panics if no command may reply so.
#[track_caller]
fn look(draw: &mut Draw, command: &Command, reply: &Value, tallies: &mut Tallies) {
    let name = String::from_utf8_lossy(&command[0]).to_ascii_lowercase();
    let tally = tallies.entry(name).or_default();
    if let Value::Error(text) = reply {
        tally.errors += 1;
        let code = text.split(' ').next().unwrap_or_default();
        let is_known = CODES.contains(&code) && !text.contains("internal error");
        assert!(is_known, "{}: {text}", shown(command));
        return;
    }
    tally.answers += 1;
    if is_ours(command) {
        check_numbers(command, reply);
    }
    draw.learn(command, reply);
}

/// Of the server's own commands, some have larger numbers.
fn is_ours(command: &Command) -> bool {
    command[0].contains(&b'.')
}

#[track_caller]
fn check_numbers(command: &Command, reply: &Value) {
    match reply {
        Value::Int(number) => {
            assert!(
                number.abs() < UNSAFE_INTEGER,
                "{}: {number}",
                shown(command)
            );
        }
        Value::Array(items) => items.iter().for_each(|item| check_numbers(command, item)),
        Value::Map(pairs) => pairs
            .iter()
            .for_each(|(_, value)| check_numbers(command, value)),
        _ => {}
    }
}

/// A command as a failure shows it.
pub(crate) fn shown(command: &Command) -> String {
    let words = command
        .iter()
        .map(|word| word[..word.len().min(60)].escape_ascii().to_string());
    words.collect::<Vec<_>>().join(" ")
}
