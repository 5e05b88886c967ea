//! Draws commands from their lines, and the words in them.

use std::collections::VecDeque;

use crate::support::{Random, Value};

const LOCKS: &[&str] = &["lock0", "lock1", "lock2", "lock3", "lock4", "lock5"];
const SEMS: &[&str] = &["sem0", "sem1", "sem2"];
const STOCKS: &[&str] = &["stock0", "stock1", "stock2", "stock3"];
const BLOOMS: &[&str] = &["bloom0", "bloom1", "bloom2"];
const CUCKOOS: &[&str] = &["cuckoo0", "cuckoo1", "cuckoo2"];
const CACHES: &[&str] = &["cache0", "cache1", "cache2", "cache3", "cache4"];
const GCRAS: &[&str] = &["gcra0", "gcra1"];
const WINDOWS: &[&str] = &["window0", "window1", "window2"];
const TIERS: &[&str] = &["tiers0", "tiers1"];
const ONCES: &[&str] = &["once0", "once1"];
const WORKS: &[&str] = &["work0", "work1", "work2"];
const GUARDS: &[&str] = &["guard0", "guard1"];
const QUEUES: &[&str] = &["queue0", "queue1"];
const STREAMS: &[&str] = &["stream0", "stream1"];
const FAMILIES: &[&[&str]] = &[
    LOCKS, SEMS, STOCKS, BLOOMS, CUCKOOS, CACHES, GCRAS, WINDOWS, TIERS, ONCES, WORKS, GUARDS,
    QUEUES, STREAMS,
];

/// Words that make sense in some place, and mostly none in others.
const WORDS: &[&str] = &[
    "",
    "0",
    "-1",
    "1",
    "9007199254740992",
    "9223372036854775808",
    "1e3",
    "PX",
    "BLOCK",
    "SHARED",
    "ID",
    "ALL",
    "LIMIT",
    "ORDER",
    "USER",
    "ITEMS",
    "TOKEN",
    "LEASE",
    "NX",
    "\0",
    "\u{fffd}",
    "word",
];

/// One command in so many has a word too few, too many or another one.
const MANGLED: u64 = 16;

/// One key in so many is of another family.
const STRAY: u64 = 40;

/// How many dumps, chunks and tokens are kept.
const KEPT: usize = 32;

/// Dumps that are larger are not kept: the soak is one of commands, not of bytes.
const LARGEST: usize = 64 << 10;

/// A part of a line.
enum Part {
    /// A word, as it stands or to be drawn.
    Word(&'static str),
    /// Once to four times.
    Repeated(&'static str),
    /// One of these, or none.
    Optional(Vec<Vec<Part>>),
}

/// Lines with how often each comes.
pub(crate) struct Lines {
    lines: Vec<Vec<Part>>,
    /// As often as it comes, each line by its place.
    places: Vec<usize>,
}

impl Lines {
    /// Reads lines in the notation of [`lines`](crate::lines).
    pub(crate) fn new(weighted: &[(u32, &'static str)]) -> Self {
        let mut places = Vec::new();
        let mut lines = Vec::new();
        for (place, &(weight, line)) in weighted.iter().enumerate() {
            places.extend((0..weight).map(|_| place));
            lines.push(parts(line));
        }
        Self { lines, places }
    }
}

fn parts(line: &'static str) -> Vec<Part> {
    let mut rest = line;
    let mut choices = read(&mut rest);
    assert!(rest.is_empty() && choices.len() == 1, "{line}");
    choices.remove(0)
}

/// Reads choices up to a closing bracket or the end.
fn read(rest: &mut &'static str) -> Vec<Vec<Part>> {
    let mut choices = vec![Vec::new()];
    loop {
        *rest = rest.trim_start();
        let choice = choices.last_mut().expect("there is always one");
        match rest.chars().next() {
            None => return choices,
            Some(']') => {
                *rest = &rest[1..];
                return choices;
            }
            Some('[') => {
                *rest = &rest[1..];
                choice.push(Part::Optional(read(rest)));
            }
            Some('|') => {
                *rest = &rest[1..];
                choices.push(Vec::new());
            }
            Some(_) => {
                let end = rest.find([' ', '[', ']', '|']).unwrap_or(rest.len());
                let (word, after) = rest.split_at(end);
                *rest = after;
                choice.push(match word.strip_suffix('*') {
                    Some(word) if word.starts_with('$') => Part::Repeated(word),
                    _ => Part::Word(word),
                });
            }
        }
    }
}

/// A command: its words.
pub(crate) type Command = Vec<Vec<u8>>;

/// Draws, and remembers replies that later commands need.
pub(crate) struct Draw {
    random: Random,
    /// With the keys that they were taken of.
    dumps: VecDeque<(Vec<u8>, Vec<u8>)>,
    chunks: VecDeque<(i64, Vec<u8>)>,
    tokens: VecDeque<i64>,
    /// The tokens of `ONCE.BEGIN`.
    turns: VecDeque<i64>,
}

impl Draw {
    /// Draws the same commands as every other one with this seed, as far as they do not depend on replies.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: Random(seed | 1),
            dumps: VecDeque::new(),
            chunks: VecDeque::new(),
            tokens: VecDeque::new(),
            turns: VecDeque::new(),
        }
    }

    /// Whether something happens that happens once in `times`.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.random.below(times) == 0
    }

    /// A number below `sides`.
    pub(crate) fn below(&mut self, sides: usize) -> usize {
        self.random.below(sides as u64) as usize
    }

    /// A command of one of these lines, now and then with something wrong.
    pub(crate) fn command(&mut self, lines: &Lines) -> Command {
        let mut command = self.proper_command(lines);
        if self.once_in(MANGLED) {
            self.mangle(&mut command);
            make_waits_short(&mut command);
        }
        command
    }

    /// A command of one of these lines.
    pub(crate) fn proper_command(&mut self, lines: &Lines) -> Command {
        let place = lines.places[self.below(lines.places.len())];
        let mut command = Vec::new();
        self.fill(&lines.lines[place], &mut command);
        command
    }

    fn fill(&mut self, parts: &[Part], command: &mut Command) {
        for part in parts {
            match part {
                Part::Word(word) => self.word(word, command),
                Part::Repeated(word) => {
                    for _ in 0..=self.below(4) {
                        self.word(word, command);
                    }
                }
                Part::Optional(choices) => {
                    if self.once_in(3) {
                        let choice = self.below(choices.len());
                        self.fill(&choices[choice], command);
                    }
                }
            }
        }
    }

    fn word(&mut self, word: &'static str, command: &mut Command) {
        let Some(name) = word.strip_prefix('$') else {
            command.push(word.into());
            return;
        };
        let text = match name {
            "lock" => self.key(LOCKS),
            "sem" => self.key(SEMS),
            "stock" => self.key(STOCKS),
            "bloom" => self.key(BLOOMS),
            "cuckoo" => self.key(CUCKOOS),
            "cache" => self.key(CACHES),
            "gcra" => self.key(GCRAS),
            "window" => self.key(WINDOWS),
            "tiers" => self.key(TIERS),
            "once" => self.key(ONCES),
            "work" => self.key(WORKS),
            "guard" => self.key(GUARDS),
            "stream" => self.key(STREAMS),
            "queue" => self.key(QUEUES),
            "rate" => {
                let kind = *self.random.one(&[GCRAS, WINDOWS, TIERS]);
                self.key(kind)
            }
            "any" => self.any_key(),
            "owner" => format!("owner{}", self.random.below(6)),
            "stranger" => format!("stranger{}", self.random.below(1000)),
            "id" => format!("id{}", self.random.below(4)),
            "order" => format!("order{}", self.random.below(300)),
            "item" => format!("item{}", self.random.below(3000)),
            "value" => "v".repeat(self.below(300)),
            "few" => self.random.below(6).to_string(),
            "number" => self
                .random
                .one(&["1", "7", "20", "100", "1000", "0", "-3"])
                .to_string(),
            "ms" => self
                .random
                .one(&["1", "2", "5", "20", "100", "1000", "60000", "5", "20", "0"])
                .to_string(),
            "moment" => self.random.one(&["1", "2", "3"]).to_string(),
            "wait" => self
                .random
                .one(&["0", "1", "20", "100", "1000", "60000"])
                .to_string(),
            "database" => self.random.below(2).to_string(),
            "token" => self.one_of_kept(|draw| &draw.tokens).to_string(),
            "turn" => self.one_of_kept(|draw| &draw.turns).to_string(),
            "word" => self.random.one(WORDS).to_string(),
            "script" => "return redis.pcall(unpack(ARGV))".into(),
            "call" => {
                "return redis.pcall('LOCK.ACQUIRE', KEYS[1], ARGV[1], 'BLOCK', '0', 'PX', '5')"
                    .into()
            }
            "junk" => {
                command.push(self.random.bytes(40));
                return;
            }
            "pair" => {
                let family = *self.random.one(FAMILIES);
                let pair = [self.key(family), self.key(family)];
                command.extend(pair.map(String::into_bytes));
                return;
            }
            "dump" => {
                let (key, dump) = self.dump();
                command.extend([key, self.ttl(), dump]);
                return;
            }
            "garbage" => {
                let (key, dump) = self.dump();
                command.extend([key, self.ttl(), self.damaged(dump)]);
                return;
            }
            "chunk" => {
                let (iterator, data) = self.chunk();
                command.push(iterator.to_string().into());
                command.push(data);
                return;
            }
            other => panic!("nothing is called ${other}"),
        };
        command.push(text.into_bytes());
    }

    fn key(&mut self, family: &[&str]) -> String {
        if self.once_in(STRAY) {
            return self.any_key();
        }
        self.random.one(family).to_string()
    }

    fn any_key(&mut self) -> String {
        let family = *self.random.one(FAMILIES);
        self.random.one(family).to_string()
    }

    fn mangle(&mut self, command: &mut Command) {
        let place = 1 + self.below(command.len());
        match self.below(4) {
            0 => {
                command.pop();
            }
            1 => {
                let word = self.random.one(WORDS).as_bytes().to_vec();
                command.insert(place.min(command.len()), word);
            }
            2 if place < command.len() => {
                let twice = command[place].clone();
                command.push(twice);
            }
            _ if place < command.len() => {
                command[place] = self.random.one(WORDS).as_bytes().to_vec();
            }
            _ => command.push(self.random.bytes(20)),
        }
        if command.is_empty() {
            command.push(b"PING".to_vec());
        }
    }

    /// Keeps what a reply holds that later commands need.
    pub(crate) fn learn(&mut self, command: &Command, reply: &Value) {
        let is = |name: &str| command[0].eq_ignore_ascii_case(name.as_bytes());
        match reply {
            Value::Bulk(bytes) if is("DUMP") && bytes.len() <= LARGEST => {
                keep(&mut self.dumps, (command[1].clone(), bytes.clone()));
            }
            Value::Array(parts) if is("BF.SCANDUMP") || is("CF.SCANDUMP") => {
                if let [Value::Int(iterator), Value::Bulk(data)] = &parts[..]
                    && data.len() <= LARGEST
                {
                    keep(&mut self.chunks, (*iterator, data.clone()));
                }
            }
            Value::Array(parts) if is("CACHE.FETCH") => {
                if let [state, _, Value::Int(token)] = &parts[..]
                    && *state == "LEASE"
                {
                    keep(&mut self.tokens, *token);
                }
            }
            Value::Array(parts) if is("ONCE.BEGIN") => {
                if let [state, _, Value::Int(token)] = &parts[..]
                    && *state == "NEW"
                {
                    keep(&mut self.turns, *token);
                }
            }
            _ => {}
        }
    }

    fn one_of_kept(&mut self, kept: fn(&Self) -> &VecDeque<i64>) -> i64 {
        let index = self.below(KEPT);
        kept(self).get(index).copied().unwrap_or(7)
    }

    /// The key and the bytes of a dump.
    fn dump(&mut self) -> (Vec<u8>, Vec<u8>) {
        let place = self.below(KEPT);
        let nothing = || (b"lock0".to_vec(), Vec::new());
        self.dumps.get(place).cloned().unwrap_or_else(nothing)
    }

    fn ttl(&mut self) -> Vec<u8> {
        self.random.one(&["0", "0", "1", "30"]).as_bytes().to_vec()
    }

    /// A dump with a few wrong bytes, or with less or more of them. Its first byte, which says that a module made it,
    /// stays: what the server does with its own types is not ours to try.
    fn damaged(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        let length = bytes.len();
        if length < 12 {
            return self.random.bytes(30);
        }
        if !matches!(bytes[0], 6 | 7) {
            return bytes; // a type of the server's own
        }
        let footer = bytes.split_off(length - 10);
        match self.below(4) {
            0 => bytes.truncate(1 + self.below(bytes.len())),
            1 => bytes.extend(self.random.bytes(20)),
            _ => {
                for _ in 0..=self.below(3) {
                    let place = self.below(bytes.len() - 1) + 1;
                    bytes[place] ^= 1 << self.below(8);
                }
            }
        }
        bytes.extend(footer);
        bytes
    }

    fn chunk(&mut self) -> (i64, Vec<u8>) {
        let place = self.below(KEPT);
        let Some((iterator, data)) = self.chunks.get(place) else {
            return (1, b"nothing".to_vec());
        };
        let (iterator, mut data) = (*iterator, data.clone());
        if self.once_in(4) && !data.is_empty() {
            let place = self.below(data.len());
            data[place] ^= 1 << self.below(8);
        }
        (iterator, data)
    }
}

/// Whoever sends a pipeline waits for a moment only: nobody else would send what ends the wait.
fn make_waits_short(command: &mut Command) {
    for place in 1..command.len() {
        let number = str::from_utf8(&command[place]).unwrap_or_default().parse();
        if command[place - 1] == b"BLOCK" && matches!(number, Ok(0 | 4..=i64::MAX)) {
            command[place] = b"2".to_vec();
        }
    }
}

/// Keeps the newest.
fn keep<T>(kept: &mut VecDeque<T>, new: T) {
    if kept.len() == KEPT {
        kept.pop_front();
    }
    kept.push_back(new);
}
