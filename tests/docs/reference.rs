//! The reference of commands, `docs/commands/<family>.md`: one section for each public command of `src/<family>/table.rs`.
//!
//! `SLUICE_DOCS=write cargo test --test docs` writes the generated parts: the syntax, the properties and the summary of each
//! command, the errors that wrong arguments provoke, and the tables of docs/commands.md. A command without a section gets one,
//! with `TODO` where a person writes. The texts after a summary, the options, the replies and the examples are written by hand.

use super::ROOT;
use super::support::{Raw, Server, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const INDEX: &str = "docs/commands.md";
const PROMPT: &str = super::PROMPT;
/// The section of docs/commands.md behind those of the families.
const LAST_SECTION: &str = "## Internal commands\n";
const WRITE_HINT: &str = "SLUICE_DOCS=write cargo test --test docs writes it";

/// The parts of a section in their order. Only commands with options have the first.
const PARTS: [&str; 5] = [
    "**Options**",
    "**Reply**",
    "**Errors**",
    "**Example**",
    "**See also**",
];

/// Errors that every command can return: docs/commands.md describes them once.
const COMMON_ERRORS: [&str; 2] = ["ERR wrong number of arguments", "ERR unknown command"];

/// One command of a table.
#[derive(Debug, Clone, Default)]
struct Row {
    name: String,
    usage: String,
    summary: String,
    complexity: String,
    categories: String,
}

impl Row {
    fn is_internal(&self) -> bool {
        super::internal(&self.name)
    }

    fn anchor(&self) -> String {
        self.name.to_lowercase().replace('.', "")
    }

    /// The keywords of its options.
    fn keywords(&self) -> Vec<&str> {
        let separators = |c: char| !c.is_ascii_alphanumeric() && c != '-';
        let words = self.usage.split(separators);
        let is_keyword = |word: &&str| word.len() > 1 && *word == word.to_uppercase();
        words.filter(is_keyword).collect()
    }

    /// The keywords of its options that have an argument: without an example, no wrong argument provokes their errors.
    fn options_with_argument(&self) -> Vec<&str> {
        let mut words = self.usage.split([' ', '[', ']', '(', ')']);
        let mut options = Vec::new();
        while let Some(word) = words.next() {
            let is_lower = |next: &str| next.starts_with(|c: char| c.is_ascii_lowercase());
            if self.keywords().contains(&word) && words.clone().next().is_some_and(is_lower) {
                options.push(word);
            }
        }
        options
    }

    /// The generated head of its section: syntax, properties, summary.
    fn head(&self) -> String {
        let categories: Vec<_> = self
            .categories
            .split(' ')
            .map(|name| format!("`@{name}`"))
            .collect();
        format!(
            "`{} {}`\n\n| since | complexity | ACL categories |\n|---|---|---|\n| 1.0.0 | {} | {} |\n\n{}\n",
            self.name,
            self.usage,
            self.complexity,
            categories.join(" "),
            self.summary,
        )
    }

    /// What follows the head of a new section.
    fn skeleton(&self) -> String {
        let mut text = String::new();
        let keywords = self.keywords();
        if !keywords.is_empty() {
            text += "\n**Options**\n\n| option | meaning |\n|---|---|\n";
            for keyword in keywords {
                let _ = writeln!(text, "| `{keyword}` | TODO |");
            }
        }
        text +=
            "\n**Reply**\n\n| RESP2 | RESP3 | meaning |\n|---|---|---|\n| TODO | TODO | TODO |\n";
        text += "\n**Errors**\n\n| error | reason |\n|---|---|\n";
        let _ = write!(
            text,
            "\n**Example**\n\n```redis\n{PROMPT}{} TODO\n```\n",
            self.name
        );
        text += "\n**See also**: TODO\n";
        text
    }
}

/// The command tables: of each family its rows, in the order of the source.
fn tables() -> BTreeMap<String, Vec<Row>> {
    let mut tables = BTreeMap::new();
    for entry in fs::read_dir(Path::new(ROOT).join("src")).unwrap() {
        let path = entry.unwrap().path();
        let Ok(source) = fs::read_to_string(path.join("table.rs")) else {
            continue;
        };
        let mut rows: Vec<Row> = Vec::new();
        for line in source.lines() {
            let Some((field, value)) = line.trim().split_once(": \"") else {
                continue;
            };
            let value = value.trim_end_matches("\",").to_owned();
            if field == "name" {
                rows.push(Row {
                    name: value,
                    ..Row::default()
                });
                continue;
            }
            let Some(row) = rows.last_mut() else { continue };
            match field {
                "usage" => row.usage = value,
                "summary" => row.summary = value,
                "complexity" => row.complexity = value,
                "categories" => row.categories = value,
                _ => {}
            }
        }
        let family = path.file_name().unwrap().to_string_lossy().into_owned();
        tables.insert(family, rows);
    }
    assert!(tables.values().flatten().count() > 70);
    tables
}

fn page(family: &str) -> PathBuf {
    Path::new(ROOT)
        .join("docs/commands")
        .join(format!("{family}.md"))
}

fn writes() -> bool {
    std::env::var_os("SLUICE_DOCS").is_some_and(|mode| mode == "write")
}

/// The sections of a page by their headings; the first is the text before them all.
fn sections(text: &str) -> Vec<(String, String)> {
    let mut sections = vec![(String::new(), String::new())];
    for line in text.lines() {
        match line.strip_prefix("## ") {
            Some(heading) => sections.push((heading.to_owned(), String::new())),
            None => {
                let (_, body) = sections.last_mut().unwrap();
                body.push_str(line);
                body.push('\n');
            }
        }
    }
    sections
}

/// What follows the generated head in the body of a section. `None`: there is no head yet.
fn rest_of(body: &str) -> Option<String> {
    let body = body.trim_start_matches('\n');
    if !body.starts_with('`') {
        return None;
    }
    let blocks: Vec<_> = body.splitn(4, "\n\n").collect();
    let rest = blocks.get(3)?;
    Some(format!("\n{rest}"))
}

/// The rows of the table in a part: the cells of each.
fn rows_of(section: &str, part: &str) -> Vec<Vec<String>> {
    let Some((_, text)) = section.split_once(&format!("{part}\n\n")) else {
        return Vec::new();
    };
    let table = text
        .lines()
        .take_while(|line| line.starts_with('|'))
        .skip(2);
    let cells = |line: &str| {
        let line = line.replace("\\|", "\u{0}");
        let cells = line.trim_matches('|').split('|');
        cells
            .map(|cell| cell.trim().replace('\u{0}', "|"))
            .collect()
    };
    table.map(cells).collect()
}

/// The errors that a section lists.
fn errors_of(section: &str) -> Vec<String> {
    let first = |row: Vec<String>| row[0].trim_matches('`').to_owned();
    rows_of(section, "**Errors**")
        .into_iter()
        .map(first)
        .collect()
}

/// The commands of the examples in a section.
fn examples(section: &str) -> Vec<Vec<String>> {
    let lines = section.lines().filter_map(|line| line.strip_prefix(PROMPT));
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    lines.map(words).collect()
}

/// The reason of an error that wrong arguments provoke. `None`: a person writes it.
fn reason(error: &str) -> Option<String> {
    /// Arguments whose length is bounded, not their number.
    const NAMES: [&str; 10] = [
        "owner",
        "ID",
        "ORDER",
        "USER",
        "NOTIFY",
        "id",
        "user",
        "channel",
        "name",
        "request-id",
    ];
    if let Some((argument, _)) = error.split_once(" must be between ") {
        let argument = argument.trim_start_matches("ERR ");
        return Some(match NAMES.contains(&argument) {
            true => format!("the length of `{argument}` in bytes is out of range"),
            false => format!("`{argument}` is out of range"),
        });
    }
    let text = match error {
        "ERR syntax error" => {
            "an option is unknown or repeated, or the value of an option is missing"
        }
        "ERR value is not an integer or out of range" => "a number is not a decimal integer",
        "ERR value is not a valid float" => "a number is not a decimal number",
        "ERR bad error rate" => "the error rate is not a decimal number",
        "ERR bad capacity" => "the capacity is not a decimal integer",
        "ERR bad expansion" => "the expansion is not a decimal integer",
        _ if error.starts_with("WRONGTYPE") => "a key has another type",
        _ if error.contains(" must be in the range ") => "the number is out of range",
        _ => return None,
    };
    Some(text.to_owned())
}

/// The errors in a reply, also within arrays.
fn collect(reply: &Value, errors: &mut BTreeSet<String>) {
    match reply {
        Value::Error(text) if COMMON_ERRORS.iter().any(|common| text.starts_with(common)) => {}
        Value::Error(text) => {
            errors.insert(without_time(text));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, errors)),
        _ => {}
    }
}

/// An error without the bound that depends on the time: ten years from now.
fn without_time(error: &str) -> String {
    const BOUND: &str = "PXAT must be between 0 and ";
    match error.split_once(BOUND) {
        Some((before, _)) => format!("{before}{BOUND}..."),
        None => error.to_owned(),
    }
}

/// The errors of a command with wrong arguments and wrong keys, made from its examples.
fn provoked(client: &mut Raw, name: &str, examples: &[Vec<String>]) -> BTreeSet<String> {
    let mut errors = BTreeSet::new();
    for (index, example) in examples.iter().enumerate() {
        if example[0] != name {
            continue;
        }
        let start = |client: &mut Raw| {
            client.call(["FLUSHALL"]);
            for before in &examples[..index] {
                in_transaction(client, before);
            }
        };
        start(client);
        for wrong in wrong_forms(example) {
            collect(&in_transaction(client, &wrong), &mut errors);
        }
        let mut ask = vec!["COMMAND".to_owned(), "GETKEYS".to_owned()];
        ask.extend(example.iter().cloned());
        if let Value::Array(keys) = client.call(&ask) {
            for key in keys {
                start(client);
                client.call(["DEL", key.text()]);
                client.call(["RPUSH", key.text(), "another type"]);
                collect(&in_transaction(client, example), &mut errors);
            }
        }
    }
    errors
}

/// The command with one word replaced, left out or added.
fn wrong_forms(command: &[String]) -> Vec<Vec<String>> {
    let long = "x".repeat(1100);
    let replacements = ["x", "-1", "0", "9223372036854775807", "", &long];
    let mut forms = Vec::new();
    for index in 1..command.len() {
        for replacement in replacements {
            let mut form = command.to_vec();
            form[index] = replacement.to_owned();
            forms.push(form);
        }
        let mut form = command.to_vec();
        form.remove(index);
        forms.push(form);
    }
    let mut form = command.to_vec();
    form.push("NONSENSE".to_owned());
    forms.push(form);
    forms
}

/// Runs a command where it cannot block.
fn in_transaction(client: &mut Raw, command: &[String]) -> Value {
    client.call(["MULTI"]);
    let queued = client.call(command);
    if queued.is_err() {
        client.call(["DISCARD"]);
        return queued;
    }
    client.call(["EXEC"])
}

/// The name of a reply's type, as the tables of replies have it.
fn kind(reply: &Value) -> &'static str {
    match reply {
        Value::Nil => "nil",
        Value::Int(_) => "integer",
        Value::Bulk(_) | Value::Simple(_) | Value::BigNumber(_) => "string",
        Value::Error(_) => "error",
        Value::Array(_) | Value::Set(_) | Value::Push(_) => "array",
        Value::Map(_) => "map",
        Value::Bool(_) => "boolean",
        Value::Double(_) => "double",
    }
}

/// A section with its generated parts as they must be, and the errors that wrong arguments provoke.
fn regenerated(row: &Row, body: &str, client: &mut Raw) -> (String, BTreeSet<String>) {
    let rest = rest_of(body).unwrap_or_else(|| row.skeleton());
    let listed: BTreeSet<_> = errors_of(&rest).into_iter().collect();
    let provoked = provoked(client, &row.name, &examples(&rest));
    let mut rest = rest;
    let missing: Vec<_> = provoked.difference(&listed).collect();
    for error in missing.into_iter().rev() {
        let mark = "**Errors**\n\n| error | reason |\n|---|---|\n";
        let reason = reason(error).unwrap_or_else(|| "TODO".to_owned());
        let line = format!("{mark}| `{error}` | {reason} |\n");
        rest = rest.replacen(mark, &line, 1);
    }
    (format!("\n{}{}", row.head(), rest), provoked)
}

/// The folder of tests that tests a family.
fn folder_of_tests(family: &str) -> &str {
    match family {
        "bloom" | "cuckoo" => "filter",
        "general" => "server",
        _ => family,
    }
}

/// The sources of a family's tests, in which the errors are that no wrong argument provokes. The text of another family can be the
/// same, so the other folders do not count.
fn texts_of_tests(family: &str) -> String {
    let mut texts = sources_in(&format!("tests/{}", folder_of_tests(family)));
    let support = sources_in("tests/support");
    for constant in support.split("pub const ").skip(1) {
        let Some((name, value)) = constant.split_once(": &str =") else {
            continue;
        };
        let (value, _) = value.split_once(';').unwrap();
        if texts.split(|c| !super::is_word(c)).any(|word| word == name) {
            texts += value;
        }
    }
    texts
}

/// All Rust files in a folder and its folders. A string that is broken over two lines is one text.
fn sources_in(folder: &str) -> String {
    let mut texts = String::new();
    let mut folders = vec![Path::new(ROOT).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(path).unwrap();
                let lines = text.split("\\\n").map(str::trim_start);
                texts += &lines.collect::<String>();
            }
        }
    }
    texts
}

#[test]
fn the_reference_has_a_section_for_each_command() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let mut faults = Vec::new();
    for (family, rows) in tables() {
        let path = page(&family);
        let tests = texts_of_tests(&family);
        let written = fs::read_to_string(&path).unwrap_or_default();
        let mut sections = sections(&written);
        if sections[0].1.is_empty() {
            sections[0].1 = format!("# Commands: {family}\n\nTODO\n\n");
        }
        for row in rows.iter().filter(|row| !row.is_internal()) {
            if !sections.iter().any(|(heading, _)| *heading == row.name) {
                faults.push(format!(
                    "{}: no section in {}; {WRITE_HINT}",
                    row.name,
                    path.display()
                ));
                sections.push((row.name.clone(), String::new()));
            }
        }
        let mut text = std::mem::take(&mut sections[0].1);
        if text.contains("TODO") {
            faults.push(format!("{}: replace each TODO", path.display()));
        }
        for (heading, body) in &sections[1..] {
            let Some(row) = rows.iter().find(|row| row.name == *heading) else {
                faults.push(format!("{heading}: a section without a command"));
                let _ = write!(text, "## {heading}\n{body}");
                continue;
            };
            let (real, provoked) = regenerated(row, body, &mut client);
            if real.trim_end() != body.trim_end() {
                let head_differs = !body.starts_with(&format!("\n{}", row.head()));
                let what = if head_differs {
                    "syntax, properties or summary"
                } else {
                    "errors"
                };
                faults.push(format!(
                    "{heading}: the {what} differ from the server's; {WRITE_HINT}"
                ));
            }
            faults.extend(faults_of(row, &real, &provoked, &tests));
            let _ = write!(text, "## {heading}\n{}\n\n", real.trim_end());
        }
        if writes() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, format!("{}\n", text.trim_end())).unwrap();
        }
    }
    if writes() {
        check_examples(); // here, so that no two tests write a page at the same time
        faults.retain(|fault| !fault.contains(WRITE_HINT));
    }
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// What a person must still do in a section.
fn faults_of(row: &Row, section: &str, provoked: &BTreeSet<String>, tests: &str) -> Vec<String> {
    let name = &row.name;
    let mut faults = Vec::new();
    if section.contains("TODO") {
        faults.push(format!("{name}: replace each TODO"));
    }
    let places: Vec<_> = PARTS
        .iter()
        .map(|part| section.find(&format!("\n{part}")))
        .collect();
    let has_all = places.iter().skip(1).all(Option::is_some);
    if !has_all || !places.iter().flatten().is_sorted() {
        faults.push(format!("{name}: the parts are not {PARTS:?} in this order"));
    }
    let (_, options) = section.split_once("**Options**").unwrap_or_default();
    let (options, _) = options.split_once("**Reply**").unwrap_or_default();
    for keyword in row.keywords() {
        let is_described = [" ", "`"]
            .iter()
            .any(|end| options.contains(&format!("`{keyword}{end}")));
        if !is_described {
            faults.push(format!("{name}: the table of options lacks {keyword}"));
        }
    }
    let mut examples = examples(section);
    examples.retain(|words| words[0] == *name);
    if examples.is_empty() {
        faults.push(format!("{name}: no example"));
    }
    for option in row.options_with_argument() {
        if !examples.iter().flatten().any(|word| word == option) {
            faults.push(format!("{name}: no example with {option}"));
        }
    }
    for error in errors_of(section) {
        let text = error.trim_end_matches(" ...");
        let is_example = section.contains(&format!("(error) {text}"));
        if !provoked.contains(&error) && !tests.contains(text) && !is_example {
            faults.push(format!("{name}: no test provokes {error:?}"));
        }
    }
    faults
}

#[test]
fn the_sections_agree_with_what_the_server_describes() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let mut count = 0;
    for row in tables().into_values().flatten() {
        let lower = row.name.to_lowercase();
        let docs = client.call(["COMMAND", "DOCS", &lower]);
        let docs = docs.array()[1].clone();
        assert_eq!(docs.field("summary").text(), row.summary, "{}", row.name);
        assert_eq!(
            docs.field("complexity").text(),
            row.complexity,
            "{}",
            row.name
        );
        assert_eq!(docs.field("since").text(), "1.0.0", "{}", row.name);
        let info = client.call(["COMMAND", "INFO", &lower]);
        let known: BTreeSet<_> = info.array()[0].array()[6]
            .array()
            .iter()
            .map(|name| name.text().trim_start_matches('@').to_owned())
            .collect();
        // Redis 7.0 has no categories for modules, Redis 7.2 none that modules add.
        let own = ["bloom", "cuckoo"];
        let wanted: BTreeSet<_> = row.categories.split(' ').map(str::to_owned).collect();
        let missing: Vec<_> = wanted
            .difference(&known)
            .filter(|name| !own.contains(&name.as_str()))
            .collect();
        assert!(
            known.is_empty() || missing.is_empty(),
            "{}: {missing:?}",
            row.name
        );
        assert!(known.is_subset(&wanted), "{}: {known:?}", row.name);
        count += 1;
    }
    assert!(count > 70, "{count}");
}

/// The arguments of `COMMAND DOCS` in the form in which redis-cli shows them as a hint.
fn hint(arguments: &[Value]) -> String {
    let hints: Vec<_> = arguments.iter().map(hint_of_one).collect();
    hints.join(" ")
}

fn hint_of_one(argument: &Value) -> String {
    let has_flag = |name: &str| {
        let flags = argument.get("flags").map_or(&[][..], Value::array);
        flags.iter().any(|flag| flag.text() == name)
    };
    let parts = argument.get("arguments").map_or(&[][..], Value::array);
    let mut hint = match argument.field("type").text() {
        "pure-token" => String::new(),
        "oneof" => parts.iter().map(hint_of_one).collect::<Vec<_>>().join("|"),
        "block" => hint(parts),
        _ => argument.field("name").text().to_owned(),
    };
    if has_flag("multiple") {
        hint = format!("{hint} [{hint} ...]");
    }
    if let Some(token) = argument.get("token") {
        hint = format!("{} {hint}", token.text()).trim_end().to_owned();
    }
    if has_flag("optional") {
        hint = format!("[{hint}]");
    }
    hint
}

/// What redis-cli shows while somebody types a command. `make hints-test` compares it with a real redis-cli.
#[test]
fn the_hints_of_redis_cli_are_the_syntax_lines() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    for row in tables().into_values().flatten() {
        let docs = client.call(["COMMAND", "DOCS", &row.name.to_lowercase()]);
        let docs = docs.array()[1].clone();
        let arguments = docs.get("arguments").map_or(&[][..], Value::array);
        let syntax = row.usage.replace(" | ", "|").replace(['(', ')'], "");
        assert_eq!(hint(arguments), syntax, "{}", row.name);
    }
}

/// The examples, in RESP2 and in RESP3: each type of a reply is in the table of replies.
#[test]
fn the_replies_of_examples_have_the_types_of_the_reference() {
    let server = Server::start();
    let mut faults = Vec::new();
    for (family, rows) in tables() {
        let text = fs::read_to_string(page(&family)).unwrap_or_default();
        for (heading, body) in sections(&text) {
            let Some(row) = rows.iter().find(|row| row.name == heading) else {
                continue;
            };
            let table = rows_of(&body, "**Reply**");
            for (protocol, column) in [(2, 0), (3, 1)] {
                let mut client = Raw::connect(&server);
                if protocol == 3 {
                    client.hello3();
                }
                client.call(["FLUSHALL"]);
                for words in examples(&body) {
                    let reply = client.call(&words);
                    let kind = kind(&reply);
                    let has_kind = |cells: &Vec<String>| {
                        let cell = cells.get(column).map_or("", String::as_str);
                        cell.split([' ', ',']).any(|word| word == kind)
                    };
                    if words[0] == row.name && kind != "error" && !table.iter().any(has_kind) {
                        faults.push(format!("{heading}, RESP{protocol}: {kind}"));
                    }
                }
                client.call(["FLUSHALL"]);
            }
        }
    }
    assert!(
        faults.is_empty(),
        "types without a row:\n{}",
        faults.join("\n")
    );
}

/// A reader can run each example on a server with other data, and once more.
#[test]
fn the_examples_remove_their_own_keys_only() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let mut faults = Vec::new();
    for family in tables().into_keys() {
        let text = fs::read_to_string(page(&family)).unwrap_or_default();
        for (heading, body) in sections(&text) {
            let examples = examples(&body);
            let flushes = |words: &Vec<String>| words[0].to_uppercase().starts_with("FLUSH");
            if examples.iter().any(flushes) {
                faults.push(format!("{heading}: the example removes all keys"));
            }
            for words in &examples {
                client.call(words);
            }
            let keys = client.call(["KEYS", "*"]);
            if !keys.array().is_empty() {
                faults.push(format!("{heading}: the example leaves {keys:?}"));
                client.call(["FLUSHALL"]);
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The tables of docs/commands.md: `<!-- commands of lock -->` to `<!-- end -->`.
#[test]
fn the_index_lists_each_command_with_its_summary() {
    let path = Path::new(ROOT).join(INDEX);
    let written = fs::read_to_string(&path).unwrap();
    let mut real = written.clone();
    for (family, rows) in tables() {
        let rows: Vec<_> = rows.iter().filter(|row| !row.is_internal()).collect();
        if rows.is_empty() {
            continue;
        }
        let mark = format!("<!-- commands of {family} -->\n");
        let mut table = "| command | effect |\n|---|---|\n".to_owned();
        for row in rows {
            let link = format!("[{}](commands/{family}.md#{})", row.name, row.anchor());
            let _ = writeln!(table, "| {link} | {} |", row.summary);
        }
        if writes() && !real.contains(&mark) {
            let section = format!("## TODO: {family}\n\n{mark}<!-- end -->\n\n{LAST_SECTION}");
            real = real.replacen(LAST_SECTION, &section, 1);
        }
        let Some((before, rest)) = real.split_once(&mark) else {
            panic!("{INDEX} has no line {}; {WRITE_HINT}", mark.trim_end());
        };
        let (_, after) = rest.split_once("<!-- end -->").unwrap();
        real = format!("{before}{mark}{table}<!-- end -->{after}");
    }
    assert!(!written.contains("TODO"), "{INDEX}: replace each TODO");
    if writes() {
        fs::write(&path, real).unwrap();
    } else {
        assert!(
            real == written,
            "{INDEX} differs from the command tables; {WRITE_HINT}"
        );
    }
}

#[test]
fn the_examples_of_the_reference_print_what_they_say() {
    if !writes() {
        check_examples();
    }
}

fn check_examples() {
    let mut files: Vec<_> = tables().into_keys().map(|family| page(&family)).collect();
    files.retain(|file| file.exists());
    for file in files {
        super::check(file.strip_prefix(ROOT).unwrap().to_str().unwrap());
    }
}
