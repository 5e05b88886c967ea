//! From a step's text to the bytes of a command.

use std::collections::HashMap;

use crate::row::Step;
use crate::scripts::SCRIPTS;
use crate::support::{Raw, Value};

/// The size of `{value}`.
const VALUE_BYTES: usize = 128;

/// The values of the placeholders that all rows share.
pub(crate) struct Words {
    value: String,
    digests: HashMap<&'static str, String>,
}

impl Words {
    /// Loads the scripts into the server.
    pub(crate) fn load(client: &mut Raw) -> Self {
        let mut load = |script: &crate::scripts::Script| {
            let digest = client.call(["SCRIPT", "LOAD", script.text]);
            (script.name, digest.text().to_string())
        };
        Self {
            value: "v".repeat(VALUE_BYTES),
            digests: SCRIPTS.iter().map(&mut load).collect(),
        }
    }

    /// Replaces the placeholders that are the same in a whole batch. `{n}` becomes `number`.
    pub(crate) fn fill(&self, text: &str, key: &str, number: u64) -> Template {
        let mut text = text
            .replace("{key}", key)
            .replace("{value}", &self.value)
            .replace("{n}", &number.to_string());
        for (name, digest) in &self.digests {
            text = text.replace(&format!("{{sha:{name}}}"), digest);
        }
        assert!(!text.contains("{sha:"), "there is no such script: {text}");
        Template::new(text, number)
    }
}

/// A command in which `{i}`, `{r}`, `{client}` and `{token}` are still open.
pub(crate) struct Template {
    text: String,
    /// `{r}` is at least 1, and at most this.
    most: u64,
    /// The bytes, if nothing is open.
    fixed: Option<Vec<u8>>,
}

impl Template {
    fn new(text: String, most: u64) -> Self {
        let fixed = (!text.contains('{')).then(|| encode(&text));
        Self { text, most, fixed }
    }

    /// Whether the command needs the token of the reply to the step before.
    pub(crate) fn needs_token(&self) -> bool {
        self.text.contains("{token}")
    }

    /// Appends the command with this token, as the server reads it, to `out`.
    pub(crate) fn write_with(&self, token: i64, number: u64, client: usize, out: &mut Vec<u8>) {
        let text = self.text(number, client);
        out.extend(encode(&text.replace("{token}", &token.to_string())));
    }

    /// Appends the command, as the server reads it, to `out`.
    pub(crate) fn write(&self, number: u64, client: usize, out: &mut Vec<u8>) {
        match &self.fixed {
            Some(bytes) => out.extend_from_slice(bytes),
            None => out.extend(encode(&self.text(number, client))),
        }
    }

    /// The command as text, with a space between two arguments.
    pub(crate) fn text(&self, number: u64, client: usize) -> String {
        let mut text = self.text.replace("{i}", &number.to_string());
        for (open, name) in [("{100 items}", "item"), ("{100 new}", "new")] {
            if text.contains(open) {
                let items = (100 * number..)
                    .take(100)
                    .map(|item| format!("{name}:{item}"));
                text = text.replace(open, &items.collect::<Vec<_>>().join(" "));
            }
        }
        if text.contains("{r}") {
            text = text.replace("{r}", &scattered(number, self.most).to_string());
        }
        text.replace("{client}", &client.to_string())
    }
}

/// A number from 1 to `most`, scattered as `number` grows (Fibonacci hashing).
fn scattered(number: u64, most: u64) -> u64 {
    let word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let place = (u128::from(word) * u128::from(most)) >> u64::BITS;
    place as u64 + 1
}

fn encode(text: &str) -> Vec<u8> {
    crate::support::encode(text.split(' '))
}

/// A step of one row, ready to send.
pub(crate) struct Ready<'a> {
    pub(crate) template: Template,
    step: &'a Step,
}

impl<'a> Ready<'a> {
    /// `{n}` of the step becomes `number`.
    pub(crate) fn new(step: &'a Step, words: &Words, key: &str, number: u64) -> Self {
        Self {
            template: words.fill(step.command, key, number),
            step,
        }
    }

    /// Reads the reply of this step; panics on any other than the right one.
    pub(crate) fn read(&self, client: &mut Raw, row: &str) {
        self.check(&client.read(), row);
    }

    /// The same. Returns the token, the last item of the reply, for a step that needs one.
    pub(crate) fn read_token(&self, client: &mut Raw, row: &str) -> i64 {
        let reply = client.read();
        self.check(&reply, row);
        match reply {
            Value::Array(items) => match items.last() {
                Some(Value::Int(token)) => *token,
                _ => 0,
            },
            _ => 0,
        }
    }

    /// Panics on any reply other than the right one.
    pub(crate) fn check(&self, reply: &Value, row: &str) {
        if !self.step.reply.accepts(reply) {
            panic!("{row}: {} got the reply {reply:?}", self.step.command);
        }
    }
}
