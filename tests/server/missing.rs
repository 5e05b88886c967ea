//! Every command on a key that is not there. What a server does with an empty key differs from one to the next, and some
//! read through a null pointer.

use crate::forms::{INTERNAL, forms};
use crate::support::{Lines as _, Raw, Server, follow};
use std::thread::sleep;
use std::time::Duration;

/// After this time, a key that expires within a millisecond has expired.
const EXPIRED: Duration = Duration::from_millis(2);

/// Commands in other forms than [`forms`] has, each with arguments that work where there is such a key.
const MORE_FORMS: [&str; 2] = ["CACHE.DEL cached STALE 5 GRACE 5", "CACHE.FAIL cached 1-1"];

/// Each command of the module in all its forms.
fn lines() -> Vec<Vec<String>> {
    let words = |line: &str| -> Vec<String> { line.split(' ').map(Into::into).collect() };
    let mut lines = Vec::new();
    for form in forms() {
        let mut add = |options: &[&str]| lines.push(words(&form.line(options)));
        add(&[]);
        for flag in &form.flags {
            add(&[flag]);
        }
        for (option, value) in &form.values {
            if *option != "BLOCK" {
                add(&[option, value]);
            }
        }
    }
    lines.extend(INTERNAL.map(words));
    lines.extend(MORE_FORMS.map(words));
    lines
}

/// The words of a command with these keys in place of its own; its keys are the words that name one.
fn on_keys(form: &[String], is_key: impl Fn(&str) -> bool, count: &mut u32) -> Vec<String> {
    let rename = |word: &String| {
        if !is_key(word) {
            return word.clone();
        }
        *count += 1;
        format!("{{missing}}{count}")
    };
    form.iter().map(rename).collect()
}

#[test]
fn every_command_does_without_the_keys_that_it_names() {
    let server = Server::start();
    let replica = Server::start();
    follow(&server, &replica);
    let mut client = Raw::connect(&server);
    let mut reader = Raw::connect(&replica);
    client.must("DEBUG SET-ACTIVE-EXPIRE 0");
    let mut count = 0;
    for form in lines() {
        let getkeys = [vec!["COMMAND".into(), "GETKEYS".into()], form.clone()].concat();
        let keys = match client.call(&getkeys) {
            none if none.is_err() => Vec::new(), // LOCK.FENCE
            keys => keys.array().to_vec(),
        };
        let is_key = |word: &str| keys.iter().any(|key| *key == word);
        let ask = |client: &mut Raw, command: &[String]| {
            let reply = client.call(command);
            let shown = command.join(" ");
            assert!(
                !format!("{reply:?}").contains("internal error"),
                "{shown}: {reply:?}"
            );
        };
        ask(&mut reader, &on_keys(&form, is_key, &mut count));
        ask(&mut client, &on_keys(&form, is_key, &mut count));
        // A key that has expired and is still there, of another type and of the command's own.
        let first = count;
        let command = on_keys(&form, is_key, &mut count);
        for number in first + 1..=count {
            client.must(&format!("SET {{missing}}{number} value PX 1"));
        }
        sleep(EXPIRED);
        ask(&mut client, &command);
        let first = count;
        let command = on_keys(&form, is_key, &mut count);
        ask(&mut client, &command);
        for number in first + 1..=count {
            client.must(&format!("PEXPIRE {{missing}}{number} 1"));
        }
        sleep(EXPIRED);
        ask(&mut reader, &command);
        ask(&mut client, &command);
        // In a transaction and in a script.
        client.must("MULTI");
        client.must(&on_keys(&form, is_key, &mut count).join(" "));
        ask(&mut client, &["EXEC".into()]);
        let script = "return redis.pcall(unpack(ARGV))";
        let eval = ["EVAL", script, "0"].map(String::from).to_vec();
        ask(
            &mut client,
            &[eval, on_keys(&form, is_key, &mut count)].concat(),
        );
        client.must("PING");
    }
    client.must("WAIT 1 10000");
    reader.must("PING");
}
