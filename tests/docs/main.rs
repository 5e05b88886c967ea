//! The documentation's examples, run. In blocks marked `redis` each line with a prompt is sent, and what follows it must
//! be what redis-cli prints. Blocks marked `python` are run with redis-py, and blocks marked `javascript` with node-redis; the
//! `text` block behind one is its output.
//!
//! `SLUICE_DOCS=write cargo test --test docs` writes the real output into the files.
//!
//! Each link between the pages has a page and a heading; `reference.rs` checks the reference of commands.

mod bench_report;
mod reference;
#[path = "../support/mod.rs"]
mod support;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use support::Server;

const PROMPT: &str = "127.0.0.1:6379> ";
const END: &str = "end-of-output";
const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Pages whose examples print the same again on the same server.
const REPEATABLE: [&str; 4] = [
    "README.md",
    "README.zh-CN.md",
    "docs/quickstart.md",
    "docs/quickstart.zh-CN.md",
];

#[test]
fn the_readme_prints_what_it_says() {
    check("README.md");
}

#[test]
fn the_chinese_readme_prints_what_it_says() {
    check("README.zh-CN.md");
}

/// A change of one README without the other one fails here.
#[test]
fn the_readmes_have_the_same_structure() {
    let chinese = include_str!("../../README.zh-CN.md");
    assert_same_structure(include_str!("../../README.md"), chinese);
}

#[test]
fn the_quickstarts_have_the_same_structure() {
    let chinese = include_str!("../../docs/quickstart.zh-CN.md");
    assert_same_structure(include_str!("../../docs/quickstart.md"), chinese);
}

fn assert_same_structure(english: &str, chinese: &str) {
    let (english, chinese) = (parts(english), parts(chinese));
    assert_eq!(english.len(), chinese.len(), "sections");
    for (english, chinese) in english.iter().zip(&chinese) {
        assert_eq!(english, chinese, "what differs in a section");
    }
}

/// Of each section: the rows of its tables, its paragraphs with a bold start, its links and its code. The links of both languages
/// have the same name, and links to headings and between the languages are left out.
fn parts(text: &str) -> Vec<(usize, usize, BTreeSet<String>, BTreeSet<String>)> {
    let own_language = ["README", "../README", "quickstart", "#"];
    let sections = text.split("\n## ").map(|section| {
        let count = |starts: &[&str]| {
            let is_counted = |line: &&str| starts.iter().any(|start| line.starts_with(start));
            section.lines().filter(is_counted).count()
        };
        let mut links = BTreeSet::new();
        let mut codes = BTreeSet::new();
        for event in Parser::new_ext(section, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. })
                    if !own_language.iter().any(|start| dest_url.starts_with(start)) =>
                {
                    links.insert(dest_url.replace(".zh-CN.md", ".md"));
                }
                // A language can need a word more beside the name of a command.
                Event::Code(code) => {
                    let mut words = code.split_whitespace();
                    let is_name = |word: &&str| word.chars().all(|c| !c.is_ascii_lowercase());
                    codes.extend(words.find(is_name).map(str::to_owned));
                }
                _ => {}
            }
        }
        (count(&["|"]), count(&["**", "- **"]), links, codes)
    });
    sections.collect()
}

/// `make bench` draws the chart. After a new measurement, the text next to it must have the new ratios.
#[test]
fn the_readmes_have_the_ratios_of_their_chart() {
    let chart = include_str!("../../docs/benchmarks/lua-against-sluice.svg");
    let (_, ratios) = chart.split_once("The Lua scripts take ").unwrap();
    let (ratios, _) = ratios.split_once(" times the server CPU").unwrap();
    let (smallest, largest) = ratios.split_once(" to ").unwrap();
    let english =
        format!("the Lua scripts of the chart take {smallest} to {largest} times the server CPU");
    assert!(
        include_str!("../../README.md").contains(&english),
        "{english}"
    );
    let chinese = format!("图中 Lua 脚本的服务端 CPU 开销是 Sluice 的 {smallest} 到 {largest} 倍");
    assert!(
        include_str!("../../README.zh-CN.md").contains(&chinese),
        "{chinese}"
    );
}

/// The pairs of the chart, as the tables of the benchmarks name them.
const LUA_AND_SLUICE: [(&str, &str); 7] = [
    (
        "Redisson lock + unlock (Lua)",
        "`LOCK.ACQUIRE` + `LOCK.RELEASE`",
    ),
    ("`GET` + `DECRBY` (Lua)", "`STOCK.DEDUCT`"),
    (
        "order, user limit and `XADD` (Lua)",
        "`STOCK.DEDUCT` with order, user and event",
    ),
    ("7 `SETBIT` (Lua)", "`BF.ADD` into 1M"),
    ("7 `GETBIT` (Lua), there", "`BF.EXISTS` in 1M"),
    ("cached read of rockscache (Lua)", "`CACHE.FETCH`, hit"),
    ("`GCRA` (Lua)", "`RATE.GCRA`"),
];

/// The server CPU of one command without pipelining, in microseconds.
fn one_by_one(row: &str) -> f64 {
    let lines = include_str!("../../docs/benchmarks.md").lines();
    let rows = lines.map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let mut found = rows.filter(|cells| cells.len() == 7 && cells[1] == row);
    let cells = found.next().unwrap_or_else(|| panic!("no row {row}"));
    cells[4].parse().expect("microseconds")
}

/// After a new measurement, the text must have the new difference without pipelining. The smallest is rounded down to 5 %, and the
/// largest is rounded up.
#[test]
fn the_readmes_have_the_difference_without_pipelining() {
    let chart = include_str!("../../docs/benchmarks/lua-against-sluice.svg");
    let pairs = chart.matches("(1 × = ").count();
    assert_eq!(pairs, LUA_AND_SLUICE.len(), "the pairs of the chart");
    let more = LUA_AND_SLUICE.map(|(lua, sluice)| one_by_one(lua) / one_by_one(sluice) - 1.0);
    let smallest = more.iter().copied().fold(f64::INFINITY, f64::min);
    let largest = more.iter().copied().fold(0.0, f64::max);
    let smallest = (smallest * 20.0).floor() as i64 * 5;
    let largest = (largest * 20.0).ceil() as i64 * 5;
    let english = format!("they take about {smallest} to {largest} % more");
    assert!(
        include_str!("../../README.md").contains(&english),
        "{english}"
    );
    let chinese = format!("Lua 脚本大约多用 {smallest}% 到 {largest}%");
    assert!(
        include_str!("../../README.zh-CN.md").contains(&chinese),
        "{chinese}"
    );
    let machine = include_str!("../../docs/benchmarks.md").split_once("| processor | ");
    let (processor, _) = machine.unwrap().1.split_once(", ").unwrap();
    for readme in [
        include_str!("../../README.md"),
        include_str!("../../README.zh-CN.md"),
    ] {
        assert!(readme.contains(processor), "{processor}");
    }
}

#[test]
fn the_quickstart_prints_what_it_says() {
    check("docs/quickstart.md");
}

#[test]
fn the_chinese_quickstart_prints_what_it_says() {
    check("docs/quickstart.zh-CN.md");
}

#[test]
fn the_recipes_print_what_they_say() {
    check("docs/recipes.md");
}

#[test]
fn the_guide_to_migrating_prints_what_it_says() {
    check("docs/migrating.md");
}

#[test]
fn the_reference_of_locks_prints_what_it_says() {
    check("docs/locks.md");
}

#[test]
fn the_reference_of_stock_prints_what_it_says() {
    check("docs/stock.md");
}

#[test]
fn the_reference_of_filters_prints_what_it_says() {
    check("docs/filters.md");
}

#[test]
fn the_reference_of_caching_prints_what_it_says() {
    check("docs/cache.md");
}

#[test]
fn the_reference_of_rate_limits_prints_what_it_says() {
    check("docs/rate.md");
}

#[test]
fn the_reference_of_idempotency_keys_prints_what_it_says() {
    check("docs/once.md");
}

#[test]
fn the_reference_of_delay_queues_prints_what_it_says() {
    check("docs/delay.md");
}

#[test]
fn the_guide_to_running_it_prints_what_it_says() {
    check("docs/operations.md");
}

#[test]
fn the_tests_that_a_table_of_failures_names_are_there() {
    let tests = Path::new(ROOT).join("tests");
    let text = include_str!("../../docs/operations.md");
    let (_, table) = text.split_once("## What survives which failure").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let rows: Vec<_> = rows.filter(|row| !row.starts_with("| failure ")).collect();
    assert!(rows.len() > 20, "{}", rows.len());
    for row in rows {
        let named = row.split('`').filter_map(|word| word.split_once(": "));
        let named: Vec<_> = named
            .filter(|(file, test)| !file.contains(' ') && !test.contains(' '))
            .collect();
        assert!(!named.is_empty(), "no test is named: {row}");
        for (file, test) in named {
            let places = [format!("{file}.rs"), format!("{file}/main.rs")];
            let found = places
                .iter()
                .find_map(|place| std::fs::read_to_string(tests.join(place)).ok());
            let source = found.unwrap_or_else(|| panic!("there is no test file {file}"));
            let is_there = source.contains(&format!("#[test]\nfn {test}() {{"));
            assert!(is_there, "{file} has no test {test}");
        }
    }
}

#[test]
fn every_link_leads_to_a_page_and_a_heading() {
    let mut dead = Vec::new();
    for page in pages() {
        for link in Page::read(&page).links {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let there = target.exists()
                && (anchor.is_empty() || Page::read(&target).anchors.contains(anchor));
            if !there {
                let page = page.strip_prefix(ROOT).unwrap().display();
                dead.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}

/// Files, functions, types and fields that docs/design.md names in backticks.
#[test]
fn the_names_in_the_design_exist() {
    let text = include_str!("../../docs/design.md");
    let files = sources();
    let code: String = files.values().map(String::as_str).collect();
    let words: BTreeSet<_> = code.split(|c: char| !is_word(c)).collect();
    let mut missing = BTreeSet::new();
    for name in text.split('`').skip(1).step_by(2) {
        let is_path = name.contains('/') || name.ends_with(".rs");
        let is_name = name.contains(['_', ':']) || name.contains(char::is_lowercase);
        if is_path && !name.contains(' ') {
            let exists = [ROOT.to_owned(), format!("{ROOT}/src")]
                .iter()
                .any(|folder| Path::new(folder).join(name).exists());
            let is_file_of_family = files.keys().any(|path| path.ends_with(&format!("/{name}")));
            if !exists && !is_file_of_family {
                missing.insert(name);
            }
        } else if is_name && !is_path {
            let parts = name.split(|c: char| !is_word(c) && c != '-' && c != '.');
            let names = parts.filter(|part| part.chars().all(is_word));
            let unknown = names.filter(|part| !part.is_empty() && !words.contains(part));
            let is_code = name.contains("::") || name.contains('_');
            let is_type = name.starts_with(char::is_uppercase) && name.chars().all(is_word);
            if (is_code || is_type) && !name.contains(' ') && unknown.count() > 0 {
                missing.insert(name);
            }
        }
    }
    assert!(missing.is_empty(), "docs/design.md names {missing:?}");
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The text of each Rust file of the module and of its tests, by its path.
fn sources() -> HashMap<String, String> {
    let mut sources = HashMap::new();
    let mut folders = vec![Path::new(ROOT).join("src"), Path::new(ROOT).join("tests")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                sources.insert(path.to_string_lossy().into_owned(), text);
            }
        }
    }
    sources
}

/// Each of them as a timeline, and closed in Python, in Java and in Node.
#[test]
fn the_four_failures_of_caches_are_told_and_closed() {
    let text = include_str!("../../docs/cache.md");
    let (_, failures) = text.split_once("\n## The four failures\n").unwrap();
    let (failures, _) = failures.split_once("\n## ").unwrap();
    let failures: Vec<_> = failures.split("\n### ").skip(1).collect();
    let names = ["Penetration", "Breakdown", "Avalanche", "Stale write"];
    assert_eq!(failures.len(), names.len());
    for (failure, name) in failures.iter().zip(names) {
        assert!(failure.starts_with(name), "{name}: {failure}");
        for part in ["| time |", "```python", "```java", "```js"] {
            assert!(failure.contains(part), "{name} has no {part}");
        }
    }
}

/// Is the command for replicas and append-only files?
fn internal(name: &str) -> bool {
    name.ends_with(".APPLY") || name == "LOCK.FENCE"
}

/// All pages of the project, but not what was built or installed.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    let mut folders = vec![PathBuf::from(ROOT)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy();
            if name.starts_with('.') || ["target", "data", "node_modules"].contains(&&*name) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    assert!(pages.len() > 8, "{pages:?}");
    pages
}

/// What a page links to within the project, and by which anchors it is linked to.
#[derive(Default)]
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

impl Page {
    fn read(path: &Path) -> Self {
        let mut page = Self::default();
        if path.extension().is_none_or(|extension| extension != "md") {
            return page;
        }
        let text = std::fs::read_to_string(path).unwrap();
        let mut heading = None;
        let mut seen = HashMap::new();
        for event in Parser::new_ext(&text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. })
                    if !dest_url.contains("://") =>
                {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(text) | Event::Code(text) => {
                    heading.iter_mut().for_each(|heading| *heading += &text);
                }
                Event::End(TagEnd::Heading(_)) => {
                    let anchor = anchor(&heading.take().unwrap());
                    let times = seen.entry(anchor.clone()).or_insert(0);
                    page.anchors.insert(match *times {
                        0 => anchor,
                        again => format!("{anchor}-{again}"),
                    });
                    *times += 1;
                }
                _ => {}
            }
        }
        page
    }
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let heading = heading.to_lowercase().replace(' ', "-");
    heading
        .chars()
        .filter(|c| c.is_alphanumeric() || ['-', '_'].contains(c))
        .collect()
}

fn check(file: &str) {
    let path = Path::new(ROOT).join(file);
    let written = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
    let server = Server::start();
    let real = Runner::new(&server).run(&written);
    if std::env::var_os("SLUICE_DOCS").is_some_and(|mode| mode == "write") {
        let real = with_alike_lines_of(&written, &real);
        std::fs::write(&path, real).unwrap_or_else(|error| panic!("{file}: {error}"));
        return;
    }
    compare(file, &written, &real);
    if REPEATABLE.contains(&file) {
        compare(file, &written, &Runner::new(&server).run(&written));
    }
}

/// Fails at the first line in which the real text differs from the written one.
fn compare(file: &str, written: &str, real: &str) {
    let (written, real): (Vec<_>, Vec<_>) = (written.lines().collect(), real.lines().collect());
    for (index, (written, real)) in written.iter().zip(&real).enumerate() {
        assert!(
            alike(written, real),
            "{file}:{}: {written:?} is really {real:?}",
            index + 1
        );
    }
    assert_eq!(
        written.len(),
        real.len(),
        "{file}: the outputs differ in length"
    );
}

/// The real text, with the written lines where they are alike: fences and times stay as they are in the file.
fn with_alike_lines_of(written: &str, real: &str) -> String {
    if written.lines().count() != real.lines().count() {
        return real.to_owned();
    }
    let lines = written.lines().zip(real.lines());
    let lines = lines.map(|(written, real)| if alike(written, real) { written } else { real });
    lines.map(|line| format!("{line}\n")).collect()
}

/// Are the lines the same, but for fences and for times that run?
fn alike(written: &str, real: &str) -> bool {
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let (written, real) = (words(written), words(real));
    let same = |(written, real): (&String, &String)| match (number(written), number(real)) {
        (Some(written), Some(real)) if written > 1_000_000_000_000 => real > 1_000_000_000_000,
        (Some(written), Some(real)) if written > 500 => {
            real <= written + 500 && real + 5000 > written
        }
        _ => written == real,
    };
    written.len() == real.len() && written.iter().zip(&real).all(same)
}

fn number(word: &str) -> Option<u64> {
    word.parse().ok()
}

/// Goes through a file and gives it back with the real outputs.
struct Runner {
    port: u16,
    cli: Cli,
}

impl Runner {
    fn new(server: &Server) -> Self {
        Self {
            port: server.port(),
            cli: Cli::start(server.port()),
        }
    }

    fn run(&mut self, text: &str) -> String {
        let mut out = String::new();
        let mut lines = text.lines();
        let mut output = None;
        let mut put = |line: &str| {
            out.push_str(line);
            out.push('\n');
        };
        while let Some(line) = lines.next() {
            put(line);
            let block = |lines: &mut std::str::Lines<'_>| -> Vec<String> {
                lines
                    .take_while(|line| *line != "```")
                    .map(str::to_owned)
                    .collect()
            };
            match line {
                "```redis" => {
                    for line in block(&mut lines) {
                        if let Some(command) = line.strip_prefix(PROMPT) {
                            put(&line);
                            self.cli.answers(command).iter().for_each(|line| put(line));
                        }
                    }
                    put("```");
                }
                "```python" => {
                    let script = block(&mut lines);
                    script.iter().for_each(|line| put(line));
                    put("```");
                    output = Some(self.python(&script.join("\n")));
                }
                "```javascript" => {
                    let script = block(&mut lines);
                    script.iter().for_each(|line| put(line));
                    put("```");
                    output = Some(self.node(&script.join("\n")));
                }
                "```text" if output.is_some() => {
                    block(&mut lines);
                    output
                        .take()
                        .iter()
                        .flat_map(|text| text.lines())
                        .for_each(&mut put);
                    put("```");
                }
                _ => {}
            }
        }
        out
    }

    fn node(&self, script: &str) -> String {
        let script = script.replace("localhost:6379", &format!("localhost:{}", self.port));
        let output = Command::new("node")
            .args(["--input-type=module", "--eval", &script])
            .current_dir(Path::new(ROOT).join("examples/clients/node"))
            .output()
            .expect("node runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}\n{errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn python(&self, script: &str) -> String {
        let arguments = format!("redis.Redis(port={}, ", self.port);
        let script = script.replace("redis.Redis(", &arguments);
        let output = Command::new(python())
            .args(["-c", &script])
            .output()
            .expect("python runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}\n{errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn python() -> PathBuf {
    let venv = Path::new(ROOT).join(".venv/bin/python");
    assert!(
        venv.exists(),
        "redis-py is missing: run `make prepare-tests`"
    );
    venv
}

/// A redis-cli that is kept, as a person keeps it: what is bound to a connection stays.
struct Cli {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Cli {
    fn start(port: u16) -> Self {
        let mut child = Command::new("redis-cli")
            .args(["--no-raw", "-p", &port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-cli is on PATH");
        let input = child.stdin.take().expect("it was piped");
        let output = BufReader::new(child.stdout.take().expect("it was piped"));
        Self {
            child,
            input,
            output,
        }
    }

    /// What redis-cli prints for a command.
    fn answers(&mut self, command: &str) -> Vec<String> {
        writeln!(self.input, "{command}\nECHO {END}").expect("redis-cli lives");
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            let length = self
                .output
                .read_line(&mut line)
                .expect("redis-cli prints text");
            assert!(length > 0, "redis-cli ended at {command:?}");
            if line.trim() == format!("\"{END}\"") {
                return lines;
            }
            // redis-cli prints an empty line behind an error, and the time of a command that took more than half a second.
            if !line.trim().is_empty() && !is_duration(line.trim()) {
                lines.push(line.trim_end().to_owned());
            }
        }
    }
}

/// Returns whether a line is a duration such as `(1.02s)`.
fn is_duration(line: &str) -> bool {
    let seconds = line
        .strip_prefix('(')
        .and_then(|rest| rest.strip_suffix("s)"));
    seconds.is_some_and(|seconds| seconds.parse::<f64>().is_ok())
}

impl Drop for Cli {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
