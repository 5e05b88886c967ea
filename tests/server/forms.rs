//! Each command of the module in a form that works, with its options: what the tests of this folder send, in whole and
//! spoilt.

use crate::support::{Lines as _, Raw, Server};

/// What may follow the words of a form.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum More {
    /// Another word is one too many.
    Nothing,
    /// Another word is an option.
    Options,
    /// Another word is an item, or a key.
    Items,
}

/// The least number of words, what may follow, and the command on a key that is there. `[FLAG]` and `[OPTION value]` may be
/// left out.
#[rustfmt::skip]
const FORMS: &[(usize, More, &str)] = &[
    (3, More::Options, "LOCK.ACQUIRE lock me [SHARED] [WATCHDOG] [LINGER] [MAXHOLD 5000] [PX 1000] [BLOCK 1000] [ID b] [NOTIFY channel]"),
    (3, More::Options, "LOCK.RELEASE lock me [ALL] [ID b]"),
    (3, More::Options, "LOCK.RENEW lock me [PX 1000]"),
    (3, More::Options, "LOCK.UPGRADE shared me [PX 1000] [BLOCK 1000]"),
    (3, More::Nothing, "LOCK.DOWNGRADE lock me"),
    (3, More::Nothing, "LOCK.HELD lock me"),
    (2, More::Nothing, "LOCK.INFO lock"),
    (3, More::Options, "LOCK.GUARD guard 5 [PX 1000]"),
    (4, More::Options, "LOCK.MACQUIRE 2 lock new me [WATCHDOG] [LINGER] [MAXHOLD 5000] [PX 1000] [BLOCK 1000] [ID b] [NOTIFY channel]"),
    (4, More::Options, "LOCK.MRELEASE 2 lock new me [ALL] [ID b]"),
    (3, More::Nothing, "LOCK.CANCEL lock b"),
    (5, More::Options, "SEM.ACQUIRE sem me LIMIT 5 [WATCHDOG] [LINGER] [MAXHOLD 5000] [PERMITS 1] [PX 1000] [BLOCK 1000] [ID b] [NOTIFY channel]"),
    (5, More::Options, "SEM.MACQUIRE 2 sem 5 new 5 me [WATCHDOG] [LINGER] [MAXHOLD 5000] [PERMITS 1] [PX 1000] [BLOCK 1000] [ID b] [NOTIFY channel]"),
    (4, More::Options, "SEM.MRELEASE 2 sem new me [ALL] [PERMITS 1] [ID b]"),
    (3, More::Nothing, "SEM.CANCEL sem b"),
    (3, More::Options, "SEM.RELEASE sem me [ALL] [PERMITS 1] [ID b]"),
    (3, More::Options, "SEM.RENEW sem me [PX 1000]"),
    (2, More::Nothing, "SEM.INFO sem"),
    (3, More::Options, "STOCK.SET stock 5 [NX] [XX] [PERUSER 5] [RETAIN 1000] [EVENTS events] [MAXLEN 5]"),
    (3, More::Options, "STOCK.ADD stock 1 [ORDER o]"),
    (3, More::Options, "STOCK.DEDUCT stock 1 [ORDER o] [USER u]"),
    (7, More::Options, "STOCK.RESERVE stock 1 ORDER o PX 100000000 [USER u]"),
    (3, More::Nothing, "STOCK.CONFIRM stock live"),
    (3, More::Nothing, "STOCK.CANCEL stock live"),
    (4, More::Options, "STOCK.MDEDUCT 2 stock 1 stock2 1 [ORDER o] [USER u]"),
    (8, More::Options, "STOCK.MRESERVE 1 stock 1 ORDER o PX 100000000 [USER u]"),
    (4, More::Options, "STOCK.MCONFIRM 2 stock stock2 live"),
    (4, More::Options, "STOCK.MCANCEL 2 stock stock2 live"),
    (2, More::Nothing, "STOCK.GET stock"),
    (3, More::Nothing, "STOCK.ORDER stock live"),
    (2, More::Nothing, "STOCK.INFO stock"),
    (2, More::Items, "STOCK.MGET stock stock2"),
    (2, More::Options, "STOCK.IMPORT counter [PERUSER 5] [RETAIN 1000] [EVENTS events] [MAXLEN 5]"),
    (4, More::Options, "BF.RESERVE bloom 0.01 100 [NONSCALING] [EXPANSION 4]"),
    (3, More::Nothing, "BF.ADD bloom new"),
    (3, More::Items, "BF.MADD bloom new newer"),
    (4, More::Options, "BF.INSERT bloom [NOCREATE] [NONSCALING] [CAPACITY 5] [ERROR 0.01] [EXPANSION 4] ITEMS new newer"),
    (3, More::Nothing, "BF.EXISTS bloom a"),
    (3, More::Items, "BF.MEXISTS bloom a b"),
    (2, More::Nothing, "BF.CARD bloom"),
    (2, More::Options, "BF.INFO bloom"),
    (3, More::Nothing, "BF.SCANDUMP bloom 0"),
    (4, More::Nothing, "BF.LOADCHUNK bloom 2 x"),
    (4, More::Options, "BF.MERGE bloom 1 bloom2"),
    (3, More::Options, "CF.RESERVE cuckoo 100 [BUCKETSIZE 4] [MAXITERATIONS 20] [EXPANSION 4] [BITS 8]"),
    (3, More::Nothing, "CF.ADD cuckoo new"),
    (3, More::Nothing, "CF.ADDNX cuckoo new"),
    (4, More::Options, "CF.INSERT cuckoo [NOCREATE] [CAPACITY 5] ITEMS new newer"),
    (4, More::Options, "CF.INSERTNX cuckoo [NOCREATE] [CAPACITY 5] ITEMS new newer"),
    (3, More::Nothing, "CF.EXISTS cuckoo a"),
    (3, More::Items, "CF.MEXISTS cuckoo a b"),
    (3, More::Nothing, "CF.COUNT cuckoo a"),
    (3, More::Nothing, "CF.DEL cuckoo a"),
    (2, More::Nothing, "CF.COMPACT cuckoo"),
    (2, More::Nothing, "CF.INFO cuckoo"),
    (3, More::Nothing, "CF.SCANDUMP cuckoo 0"),
    (4, More::Nothing, "CF.LOADCHUNK cuckoo 2 x"),
    (2, More::Nothing, "CACHE.GET cached"),
    (4, More::Options, "CACHE.FETCH cached LEASE 1000 [EARLY 1000] [BETA 1.5] [SLIDE 1000] [GUARD bloom a] [BREAKER db 5 1000] [BLOCK 1000]"),
    (5, More::Options, "CACHE.SET cached value PX 100000000 [STALE 1000] [JITTER 5] [TOKEN 5] [VER 5]"),
    (4, More::Options, "CACHE.SETNULL cached PX 100000000 [STALE 1000] [JITTER 5] [TOKEN 5] [VER 5]"),
    (2, More::Options, "CACHE.DEL cached [STALE 1000] [GRACE 1000] [VER 5]"),
    (3, More::Options, "CACHE.FAIL cached 5 [BACKOFF 1000]"),
    (2, More::Nothing, "CACHE.INFO cached"),
    (2, More::Options, "CACHE.BREAKER db [RESET]"),
    (5, More::Options, "RATE.GCRA gcra 9 1 100000000 [PEEK] [COST 2] [AHEAD 1000]"),
    (4, More::Options, "RATE.WINDOW window 9 100000000 [PEEK] [SLIDING] [EXACT] [COST 2]"),
    (6, More::Options, "RATE.TIERS tiers 1 9 1 100000000 [PEEK] [COST 2] [AHEAD 1000]"),
    (6, More::Options, "RATE.MGCRA 2 gcra 9 1 100000000 new 9 1 100000000 [PEEK] [COST 2] [AHEAD 1000]"),
    (3, More::Nothing, "RATE.CHARGE gcra 1"),
    (3, More::Nothing, "RATE.REFUND gcra 1"),
    (4, More::Options, "RATE.ONCE fresh PX 100000000"),
    (5, More::Nothing, "CL.THROTTLE gcra 9 1 100000 1"),
    (4, More::Options, "ONCE.BEGIN work LEASE 100000000 [FINGERPRINT f] [BLOCK 1000]"),
    (6, More::Options, "ONCE.DONE work 5 result PX 100000000"),
    (3, More::Nothing, "ONCE.FAIL work 5"),
    (2, More::Nothing, "ONCE.INFO work"),
    (4, More::Options, "DELAY.SET queue STREAM delayed [MAXLEN 5]"),
    (8, More::Options, "DELAY.ADD queue there PX 100000000 [NX] [XX] VALUES f v"),
    (3, More::Items, "DELAY.CANCEL queue there other"),
    (3, More::Nothing, "DELAY.GET queue there"),
    (3, More::Nothing, "DELAY.RANGE queue 5"),
    (2, More::Nothing, "DELAY.INFO queue"),
    (1, More::Options, "SLUICE.HOT lock [RESET] [COUNT 5]"),
];

/// The internal commands: each with an effect that it cannot read, or that does nothing.
pub(crate) const INTERNAL: [&str; 13] = [
    "LOCK.APPLY lock x",
    "LOCK.FENCE 1",
    "STOCK.APPLY stock x",
    "BF.APPLY bloom x",
    "CF.APPLY cuckoo x",
    "CACHE.APPLY cached x",
    "RATE.APPLY gcra x",
    "ONCE.APPLY work x",
    "DELAY.APPLY queue x",
    "SLUICE.APPLY key DEL",
    "SLUICE.APPLY key PEXPIREAT 9000000000000",
    "SLUICE.APPLY key SET 0 value",
    "SLUICE.APPLY key SET 9000000000000 value",
];

/// A command in a form that works.
pub(crate) struct Form {
    pub(crate) name: &'static str,
    /// The words in front of the options, the name among them.
    pub(crate) head: Vec<&'static str>,
    /// Options without a value.
    pub(crate) flags: Vec<&'static str>,
    /// Options with a value, and one that works.
    pub(crate) values: Vec<(&'static str, &'static str)>,
    /// The words behind the options.
    pub(crate) end: Vec<&'static str>,
    /// How few words there may be.
    pub(crate) least: usize,
    pub(crate) more: More,
}

/// All of them.
pub(crate) fn forms() -> Vec<Form> {
    let forms = FORMS.iter().map(|(least, more, line)| {
        let (head, options) = line.split_once(" [").unwrap_or((line, ""));
        let (options, end) = options.rsplit_once(']').unwrap_or(("", ""));
        let head: Vec<_> = head.split(' ').collect();
        let options = options.split("] [").filter(|option| !option.is_empty());
        let (values, flags): (Vec<_>, Vec<_>) = options.partition(|option| option.contains(' '));
        Form {
            name: head[0],
            head,
            flags,
            values: values
                .iter()
                .filter_map(|option| option.split_once(' '))
                .collect(),
            end: end.split_whitespace().collect(),
            least: *least,
            more: *more,
        }
    });
    forms.collect()
}

impl Form {
    /// The words of the command without options.
    pub(crate) fn plain(&self) -> Vec<&'static str> {
        [&self.head[..], &self.end].concat()
    }

    /// The words of the command with these words at the place of its options; a blank separates two words.
    pub(crate) fn with(&self, options: &[&str]) -> Vec<Vec<u8>> {
        let line = self.line(options);
        line.split(' ')
            .map(|word| word.as_bytes().to_vec())
            .collect()
    }

    /// The same as a line.
    pub(crate) fn line(&self, options: &[&str]) -> String {
        let words = [&self.head[..], options, &self.end].concat();
        words.join(" ")
    }

    /// Whether the command has an option of this name.
    pub(crate) fn takes(&self, option: &str) -> bool {
        self.flags.contains(&option) || self.values.iter().any(|(own, _)| *own == option)
    }
}

/// The options of all commands; whether each is a flag.
pub(crate) fn options() -> Vec<(&'static str, bool)> {
    let mut options: Vec<_> = forms()
        .iter()
        .flat_map(|form| {
            let flags = form.flags.iter().map(|flag| (*flag, true));
            let values = form.values.iter().map(|(option, _)| (*option, false));
            flags.chain(values).collect::<Vec<_>>()
        })
        .collect();
    options.sort_unstable();
    options.dedup();
    options
}

/// The names of the module's commands, as the server lists them.
#[track_caller]
pub(crate) fn registered(client: &mut Raw) -> Vec<String> {
    let list = client.must("COMMAND LIST FILTERBY MODULE sluice");
    let names = list.array().iter().map(|name| name.text().to_uppercase());
    names.collect()
}

/// Whether the command of this name is for replicas and append-only files alone.
pub(crate) fn is_internal(name: &str) -> bool {
    let mut names = INTERNAL.iter().filter_map(|line| line.split(' ').next());
    names.any(|internal| internal == name)
}

#[test]
fn every_command_has_a_form() {
    let server = Server::start();
    let mut names = registered(&mut Raw::connect(&server));
    let mut known: Vec<String> = forms().iter().map(|form| form.name.into()).collect();
    known.extend(
        INTERNAL
            .iter()
            .filter_map(|line| line.split(' ').next())
            .map(Into::into),
    );
    known.sort_unstable();
    known.dedup();
    names.sort_unstable();
    assert_eq!(known, names);
}
