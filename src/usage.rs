//! Parses the usage lines of the command table, such as `key owner [PX ms] [ID request-id]`, into the arguments that
//! `COMMAND DOCS` returns.
//!
//! A word in capitals is a keyword, and a word in lower case behind it is its value. Other words are values. `[...]` is optional,
//! `(...)` is a group, `a | b` is a choice, and `[x ...]` repeats the arguments before it.

/// One argument of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// The name, in lower case.
    pub name: String,
    /// The keyword before the value, or the keyword that the argument is.
    pub token: Option<String>,
    /// The type, with the parts of a choice or a group.
    pub kind: ArgumentKind,
    /// Whether a command may omit the argument.
    pub is_optional: bool,
    /// Whether a command may repeat the argument.
    pub is_multiple: bool,
}

/// The type of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArgumentKind {
    /// The name of a key.
    Key,
    /// An integer.
    Integer,
    /// A decimal number.
    Double,
    /// Any bytes.
    String,
    /// A keyword without a value.
    Token,
    /// A choice: one of these arguments.
    OneOf(Vec<Argument>),
    /// A group: all of these arguments.
    Block(Vec<Argument>),
}

/// Parses a usage line. Panics if its brackets are unbalanced: the command table is constant, and a test parses all of it.
pub fn parse(usage: &str) -> Vec<Argument> {
    let spaced = ["[", "]", "(", ")", "|"]
        .iter()
        .fold(usage.to_owned(), |line, sign| {
            line.replace(sign, &format!(" {sign} "))
        });
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let arguments = group(&words, &mut at);
    assert_eq!(at, words.len(), "unbalanced brackets in {usage:?}");
    arguments
}

/// Parses up to the closing bracket or the end.
fn group(words: &[&str], at: &mut usize) -> Vec<Argument> {
    let mut choices: Vec<Vec<Argument>> = vec![Vec::new()];
    while let Some(word) = words.get(*at).copied() {
        let current = choices.last_mut().expect("there is always one");
        match word {
            "]" | ")" => break,
            "|" => choices.push(Vec::new()),
            "[" => {
                *at += 1;
                let inner = group(words, at);
                if words[*at - 1] == "..." {
                    repeat(current, inner.len());
                } else {
                    let mut inner = together(inner);
                    inner.is_optional = true;
                    current.push(inner);
                }
            }
            "(" => {
                *at += 1;
                current.push(together(group(words, at)));
            }
            "..." => {}
            _ if is_keyword(word) => {
                let value = words.get(*at + 1).filter(|next| is_value(next));
                if value.is_some() {
                    *at += 1;
                }
                current.push(keyword(word, value));
            }
            _ => current.push(value(word, None)),
        }
        *at += 1;
    }
    if choices.len() == 1 {
        return choices.remove(0);
    }
    let choices: Vec<Argument> = choices.into_iter().map(together).collect();
    let names: Vec<&str> = choices.iter().map(|choice| choice.name.as_str()).collect();
    vec![Argument {
        name: names.join("-or-"),
        ..plain(ArgumentKind::OneOf(choices.clone()))
    }]
}

fn is_keyword(word: &str) -> bool {
    word.bytes()
        .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
}

fn is_value(word: &str) -> bool {
    word.bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte == b'-')
}

fn keyword(word: &str, next: Option<&&str>) -> Argument {
    match next {
        Some(name) => value(name, Some(word)),
        None => Argument {
            name: word.to_lowercase(),
            token: Some(word.to_owned()),
            ..plain(ArgumentKind::Token)
        },
    }
}

fn value(name: &str, token: Option<&str>) -> Argument {
    let kind = match name {
        "key" | "stream" | "filter" | "other" | "destination" => ArgumentKind::Key,
        "numkeys" | "ms" | "n" | "k" | "fence" | "total" | "delta" | "qty" | "capacity"
        | "expansion" | "size" | "iterations" | "bits" | "iterator" | "burst" | "max_burst"
        | "count" | "limit" | "period-ms" | "period-s" | "window-ms" | "numtiers" | "quantity"
        | "unix-ms" | "percent" | "token" | "version" | "failures" | "open-ms" => {
            ArgumentKind::Integer
        }
        "error" => ArgumentKind::Double,
        "f" if token == Some("BETA") => ArgumentKind::Double, // and the bytes of FINGERPRINT
        _ => ArgumentKind::String,
    };
    Argument {
        name: name.to_owned(),
        token: token.map(str::to_owned),
        ..plain(kind)
    }
}

fn plain(kind: ArgumentKind) -> Argument {
    Argument {
        name: String::new(),
        token: None,
        kind,
        is_optional: false,
        is_multiple: false,
    }
}

fn together(mut arguments: Vec<Argument>) -> Argument {
    if arguments.len() == 1 {
        return arguments.remove(0);
    }
    let names: Vec<&str> = arguments
        .iter()
        .map(|argument| argument.name.as_str())
        .collect();
    Argument {
        name: names.join("-"),
        ..plain(ArgumentKind::Block(arguments.clone()))
    }
}

/// Marks the last `count` arguments, as one group, as repeatable. A keyword before the first of them is not repeated: it belongs
/// to the whole group.
fn repeat(arguments: &mut Vec<Argument>, count: usize) {
    let mut last = arguments.split_off(arguments.len() - count);
    let token = match last.as_mut_slice() {
        [first, _, ..] => first.token.take(),
        _ => None, // one argument keeps its keyword
    };
    let mut last = together(last);
    last.token = last.token.or(token);
    last.is_multiple = true;
    arguments.push(last);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One argument in a short form that contains all fields.
    fn show(argument: &Argument) -> String {
        let list = |arguments: &[Argument], by: &str| {
            let shown: Vec<String> = arguments.iter().map(show).collect();
            format!("({})", shown.join(by))
        };
        let kind = match &argument.kind {
            ArgumentKind::Key => "key".to_owned(),
            ArgumentKind::Integer => "int".to_owned(),
            ArgumentKind::Double => "double".to_owned(),
            ArgumentKind::String => "str".to_owned(),
            ArgumentKind::Token => "token".to_owned(),
            ArgumentKind::OneOf(choices) => list(choices, "|"),
            ArgumentKind::Block(parts) => list(parts, ","),
        };
        let token = argument
            .token
            .as_deref()
            .map_or(String::new(), |token| format!("{token}="));
        let optional = if argument.is_optional { "?" } else { "" };
        let multiple = if argument.is_multiple { "*" } else { "" };
        format!("{token}{}:{kind}{optional}{multiple}", argument.name)
    }

    fn shown(usage: &str) -> String {
        parse(usage).iter().map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn usage_lines_become_arguments() {
        for (usage, arguments) in [
            ("", ""),
            ("key owner", "key:key owner:str"),
            (
                "key [SHARED] [PX ms]",
                "key:key SHARED=shared:token? PX=ms:int?",
            ),
            (
                "key owner [PERMITS k | ALL] [ID request-id]",
                "key:key owner:str k-or-all:(PERMITS=k:int|ALL=all:token)? ID=request-id:str?",
            ),
            (
                "numkeys key [key ...] owner",
                "numkeys:int key:key* owner:str",
            ),
            (
                "numkeys key qty [key qty ...]",
                "numkeys:int key-qty:(key:key,qty:int)*",
            ),
            (
                "key VALUES field value [field value ...]",
                "key:key VALUES=field-value:(field:str,value:str)*",
            ),
            ("key ITEMS item [item ...]", "key:key ITEMS=item:str*"),
            (
                "key (error capacity [NONSCALING] | LIKE other)",
                "key:key error-capacity-nonscaling-or-other:(error-capacity-nonscaling:(error:double,capacity:int,NONSCALING=nonscaling:token?)|LIKE=other:key)",
            ),
            (
                "key [BETA f] [FINGERPRINT f] [PXAT unix-ms]",
                "key:key BETA=f:double? FINGERPRINT=f:str? PXAT=unix-ms:int?",
            ),
            (
                "key [EVENTS stream [MAXLEN n]]",
                "key:key stream-n:(EVENTS=stream:key,MAXLEN=n:int?)?",
            ),
        ] {
            assert_eq!(shown(usage), arguments, "{usage}");
        }
    }
}
