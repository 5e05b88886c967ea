//! How Sluice is loaded and configured, and what a server shows of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::forms::forms;
use crate::support::{
    Lines, Raw, SOON, Server, Shutdown, Value, WRONGTYPE, ask, eventually, reads_keys_in_threads,
};

/// The commands of the contract, each with the least number of words that it takes.
const COMMANDS: [(&str, i64); 18] = [
    ("lock.acquire", -3),
    ("lock.release", -3),
    ("lock.renew", -3),
    ("lock.upgrade", -3),
    ("lock.downgrade", 3),
    ("lock.macquire", -4),
    ("lock.mrelease", -4),
    ("lock.cancel", 3),
    ("lock.held", 3),
    ("lock.info", 2),
    ("lock.guard", -3),
    ("sem.acquire", -5),
    ("sem.release", -3),
    ("sem.renew", -3),
    ("sem.macquire", -5),
    ("sem.mrelease", -4),
    ("sem.cancel", 3),
    ("sem.info", 2),
];

/// The commands that change nothing.
const READS: [&str; 3] = ["lock.held", "lock.info", "sem.info"];

/// The commands that can wait.
const BLOCKING: [&str; 5] = [
    "lock.acquire",
    "lock.upgrade",
    "lock.macquire",
    "sem.acquire",
    "sem.macquire",
];

/// The commands of filters, each with the least number of words that it takes.
const FILTER_COMMANDS: [(&str, i64); 24] = [
    ("bf.reserve", -4),
    ("bf.add", 3),
    ("bf.madd", -3),
    ("bf.insert", -4),
    ("bf.exists", 3),
    ("bf.mexists", -3),
    ("bf.card", 2),
    ("bf.info", -2),
    ("bf.scandump", 3),
    ("bf.loadchunk", 4),
    ("bf.merge", -4),
    ("cf.reserve", -3),
    ("cf.add", 3),
    ("cf.addnx", 3),
    ("cf.insert", -4),
    ("cf.insertnx", -4),
    ("cf.exists", 3),
    ("cf.mexists", -3),
    ("cf.count", 3),
    ("cf.del", 3),
    ("cf.compact", 2),
    ("cf.info", 2),
    ("cf.scandump", 3),
    ("cf.loadchunk", 4),
];

/// Those that change nothing.
const FILTER_READS: [&str; 10] = [
    "bf.exists",
    "bf.mexists",
    "bf.card",
    "bf.info",
    "bf.scandump",
    "cf.exists",
    "cf.mexists",
    "cf.count",
    "cf.info",
    "cf.scandump",
];

/// Those whose time depends on what they are given or on the size of the filter.
const FILTER_SLOW: [&str; 13] = [
    "bf.madd",
    "bf.insert",
    "bf.mexists",
    "bf.scandump",
    "bf.loadchunk",
    "bf.merge",
    "cf.insert",
    "cf.insertnx",
    "cf.mexists",
    "cf.compact",
    "cf.scandump",
    "cf.loadchunk",
    "cf.apply",
];

/// The commands of limits, each with the least number of words that it takes. All of them write.
const RATE_COMMANDS: [(&str, i64); 8] = [
    ("rate.gcra", -5),
    ("rate.window", -4),
    ("rate.tiers", -6),
    ("rate.mgcra", -6),
    ("rate.charge", 3),
    ("rate.refund", 3),
    ("rate.once", -4),
    ("cl.throttle", -5),
];

/// The module's file, as the server names it.
fn module_of(server: &Server) -> PathBuf {
    PathBuf::from(listed(server, "sluice").unwrap().field("path").text())
}

/// A module as `MODULE LIST` shows it. Some servers bring modules of their own.
fn listed(server: &Server, name: &str) -> Option<Value> {
    let modules = ask(server, "MODULE LIST");
    let mut modules = modules.array().iter();
    modules
        .find(|module| module.field("name") == &name)
        .cloned()
}

/// The module's file, without a server that has loaded it.
fn module() -> PathBuf {
    module_of(&Server::start())
}

fn load(server: &Server, path: &Path, arguments: &[&str]) -> Value {
    let mut command = vec!["MODULE", "LOAD", path.to_str().unwrap()];
    command.extend(arguments);
    Raw::connect(server).call(command)
}

fn knows(server: &Server, command: &str) -> bool {
    !ask(server, &format!("COMMAND INFO {command}")).array()[0].is_nil()
}

/// The remaining default lease of a lock, asked in the transaction that acquires it, so that hardly any time passes.
fn lease_of_a_lock(server: &Server) -> i64 {
    let lines = [
        "LOCK.ACQUIRE lease-test me",
        "PTTL lease-test",
        "DEL lease-test",
    ];
    Raw::connect(server).transact(lines)[1].int()
}

/// Panics unless `left` ms remain of a lease of `lease` ms that has just begun. In a transaction `left` can be larger, because `PTTL`
/// uses the start time of the transaction there.
#[track_caller]
fn assert_lease(left: i64, lease: i64) {
    assert!((lease / 2..=lease + 1000).contains(&left), "{left}");
}

fn config(server: &Server, name: &str) -> String {
    let reply = ask(server, &format!("CONFIG GET {name}"));
    reply.field(name).text().to_owned()
}

// --- Load options ----------------------------------------------------------------------------------------------------

#[test]
fn families_can_be_named_in_any_case() {
    for list in ["lock", "LOCK", "Lock", "lock,lock"] {
        let server = Server::builder().module_args(&["families", list]).start();
        assert!(knows(&server, "lock.acquire"), "{list}");
        assert!(ask(&server, "LOCK.ACQUIRE k me").int() > 0, "{list}");
    }
    let server = Server::builder()
        .module_args(&["FAMILIES", "lock", "Lock-Default-Lease", "5000"])
        .start();
    assert_lease(lease_of_a_lock(&server), 5000);
}

#[test]
fn only_the_families_that_are_named_are_loaded() {
    let all = ["lock", "stock", "bloom", "bloom", "rate", "rate", "once"];
    let first = [
        "lock.acquire",
        "stock.set",
        "bf.add",
        "cf.add",
        "rate.gcra",
        "cl.throttle",
        "once.begin",
    ];
    let lists: [&[&str]; 10] = [
        &["once"],
        &["lock"],
        &["stock"],
        &["bloom"],
        &["rate"],
        &["stock", "lock"],
        &["bloom", "lock"],
        &["rate", "stock"],
        &["lock", "stock", "bloom"],
        &["lock", "stock", "bloom", "rate"],
    ];
    for list in lists {
        let server = Server::builder()
            .module_args(&["families", &list.join(",")])
            .start();
        let info = ask(&server, "INFO sluice");
        for (family, command) in all.iter().zip(first) {
            let loaded = list.contains(family);
            assert_eq!(knows(&server, command), loaded, "{list:?} {command}");
            let section = format!("sluice_{family}\r\n");
            assert_eq!(info.text().contains(&section), loaded, "{list:?}");
        }
    }
}

#[test]
fn a_bad_load_option_stops_the_load_and_says_which() {
    let cases: [(&[&str], &[&str]); 16] = [
        (&["families", "nonsense"], &["families", "nonsense"]),
        (&["families", "lock,nonsense"], &["families", "nonsense"]),
        (&["families", ""], &["families"]),
        (&["families", "lock,"], &["families"]),
        (&["families"], &["families"]),
        (&["nonsense", "5"], &["nonsense"]),
        (&["nonsense"], &["nonsense"]),
        (&["lock-default-lease"], &["lock-default-lease"]),
        (&["lock-default-lease", "abc"], &["lock-default-lease"]),
        (&["lock-default-lease", "0"], &["lock-default-lease"]),
        (&["lock-default-lease", "-5"], &["lock-default-lease"]),
        (
            &["lock-default-lease", "315360000001"],
            &["lock-default-lease"],
        ),
        (
            &["lock-default-lease", "99999999999999999999"],
            &["lock-default-lease"],
        ),
        (&["lock-default-lease", "5s"], &["lock-default-lease"]),
        (&["lock-max-waiters", "-1"], &["lock-max-waiters"]),
        (
            &["lock-default-lease", "5000", "lock-max-waiters", "x"],
            &["lock-max-waiters"],
        ),
    ];
    for (arguments, named) in cases {
        let log = Server::builder().module_args(arguments).start_refused();
        let line = log
            .lines()
            .find(|line| line.contains("sluice>") || line.contains("<sluice"))
            .unwrap_or_else(|| panic!("{arguments:?}: the log has no line of ours\n{log}"));
        for word in named {
            assert!(line.contains(word), "{arguments:?}: {line}");
        }
        assert!(!log.contains("Ready to accept connections"), "{log}");
        assert!(!log.contains("REDIS BUG REPORT"), "{log}");
    }
}

#[test]
fn load_options_are_taken() {
    let server = Server::builder()
        .module_args(&[
            "lock-default-lease",
            "4000",
            "lock-max-waiters",
            "1",
            "families",
            "lock",
        ])
        .start();
    assert_lease(lease_of_a_lock(&server), 4000);
    assert_eq!(config(&server, "sluice.lock-default-lease"), "4000");
    assert_eq!(config(&server, "sluice.lock-max-waiters"), "1");

    ask(&server, "LOCK.ACQUIRE k me PX 600000");
    let mut first = Raw::connect(&server);
    first.ask("LOCK.ACQUIRE k you PX 600000 BLOCK 0");
    eventually(SOON, || server.info_int("sluice_lock_waiting") == 1);
    let mut second = Raw::connect(&server);
    for line in [
        "LOCK.ACQUIRE k third BLOCK 0",
        "LOCK.MACQUIRE 2 k other third BLOCK 0",
        "LOCK.ACQUIRE k third BLOCK 5",
    ] {
        let reply = second.run(line);
        assert_eq!(reply.err(), "ERR too many waiting clients", "{line}");
    }
    assert!(second.must("LOCK.ACQUIRE k third").is_nil());
    assert!(second.must("LOCK.ACQUIRE free third BLOCK 0").int() > 0);
    // More are let in at once when the limit is raised.
    ask(&server, "CONFIG SET sluice.lock-max-waiters 2");
    second.ask("LOCK.ACQUIRE k third BLOCK 0");
    eventually(SOON, || server.info_int("sluice_lock_waiting") == 2);
    ask(&server, "LOCK.RELEASE k me");
    assert!(first.read().int() > 0);
    ask(&server, "LOCK.RELEASE k you");
    assert!(second.read().int() > 0);
}

// --- Caches ----------------------------------------------------------------------------------------------------------

/// The commands of the family that read the dataset.
const CACHE_READS: [&str; 4] = ["cache.get", "cache.fetch", "cache.fail", "cache.info"];

/// The commands of caches, each with the least number of words that it takes.
const CACHE_COMMANDS: [(&str, i64); 7] = [
    ("cache.get", 2),
    ("cache.fetch", -4),
    ("cache.set", -5),
    ("cache.setnull", -4),
    ("cache.del", -2),
    ("cache.fail", -3),
    ("cache.info", 2),
];

#[test]
fn the_family_of_caches_is_loaded_by_its_name() {
    for (families, loaded) in [("cache", true), ("lock,cache", true), ("lock,bloom", false)] {
        let server = Server::builder()
            .module_args(&["families", families])
            .start();
        for (name, _) in CACHE_COMMANDS {
            assert_eq!(knows(&server, name), loaded, "{families}: {name}");
        }
        let info = ask(&server, "INFO sluice");
        assert_eq!(info.text().contains("# sluice_cache"), loaded, "{families}");
    }
}

/// The server refuses the setting, because no module has registered it. Redis 7 does not name the setting.
#[test]
fn a_setting_of_a_family_that_is_not_loaded_stops_the_server() {
    let builder = Server::builder().config("sluice.bloom-capacity", "50");
    let server = builder.clone().module_args(&["families", "bloom"]).start();
    assert_eq!(config(&server, "sluice.bloom-capacity"), "50");
    let log = builder.module_args(&["families", "lock"]).start_refused();
    assert!(log.contains("Module 'sluice' loaded from"), "{log}");
    assert!(log.contains("Module Configuration detected"), "{log}");
    let names_settings = log.contains("Configuration(s) Detected") || log.contains("Unused Module");
    assert!(
        !names_settings || log.contains("sluice.bloom-capacity"),
        "{log}"
    );
}

#[test]
fn the_load_option_of_caches_is_taken_checked_and_kept() {
    let server = Server::builder()
        .module_args(&["cache-max-leases", "1", "families", "cache"])
        .start();
    assert_eq!(config(&server, "sluice.cache-max-leases"), "1");
    let state = |server: &Server, key: &str| {
        let reply = ask(server, &format!("CACHE.FETCH {key} LEASE 600000"));
        reply.array()[0].text().to_owned()
    };
    assert_eq!(state(&server, "a"), "LEASE");
    assert_eq!(state(&server, "b"), "WAIT");
    ask(&server, "CONFIG SET sluice.cache-max-leases 2");
    assert_eq!(state(&server, "b"), "LEASE");
    ask(&server, "CONFIG REWRITE");
    server.crash();
    assert_eq!(config(&server, "sluice.cache-max-leases"), "2");
    for bad in ["-1", "10000001", "x", ""] {
        let log = Server::builder()
            .module_args(&["cache-max-leases", bad])
            .start_refused();
        assert!(log.contains("cache-max-leases"), "{bad}: {log}");
    }
}

#[test]
fn every_command_of_caches_has_its_arity_flags_keys_and_categories() {
    let server = Server::start();
    let is_asked = !reads_keys_in_threads(&mut Raw::connect(&server));
    for (name, arity) in CACHE_COMMANDS {
        let info = ask(&server, &format!("COMMAND INFO {name}"));
        let info = info.array()[0].array();
        assert_eq!(info[0], name);
        assert_eq!(info[1], arity, "{name}");
        let specs = info[8].array();
        let guarded = name == "cache.fetch";
        assert_eq!(specs.len(), if guarded { 2 } else { 1 }, "{name}");
        let read = CACHE_READS.contains(&name);
        for (index, spec) in specs.iter().enumerate() {
            let flags = spec.field("flags").array().iter().map(Value::text);
            let flags: Vec<_> = flags.collect();
            assert_eq!(flags.contains(&"RO"), read || index == 1, "{name}");
            // Words alone do not tell the option GUARD from a breaker of that name. A server that asks no command for its keys
            // must do with them.
            assert_eq!(
                flags.contains(&"incomplete"),
                index == 1 && is_asked,
                "{name}: {flags:?}"
            );
        }
    }
    let mut client = Raw::connect(&server);
    let listed = |client: &mut Raw, category: &str| {
        let list = client.run(&format!("ACL CAT {category}"));
        let names = list.array().to_vec();
        move |name: &str| names.iter().any(|item| *item == name)
    };
    if !listed(&mut client, "write")("cache.set") {
        return; // a server before 7.2
    }
    let categories = ["read", "write", "fast", "slow", "blocking"];
    let categories = categories.map(|name| listed(&mut client, name));
    for (name, _) in CACHE_COMMANDS {
        let read = CACHE_READS.contains(&name);
        let fast = read;
        let real = categories.each_ref().map(|is| is(name));
        let expected = [read, !read, fast, !fast, name == "cache.fetch"];
        assert_eq!(real, expected, "{name}");
    }
    assert!(listed(&mut client, "dangerous")("cache.apply"));
}

#[test]
fn the_module_can_be_loaded_at_run_time() {
    let path = module();
    let server = Server::builder().no_module().start();
    assert!(!knows(&server, "lock.acquire"));
    // A load that fails leaves nothing behind, and can be tried again.
    for arguments in [
        &["families", "nonsense"][..],
        &["lock-default-lease", "1234", "nonsense", "5"],
        &["lock-default-lease", "1234", "lock-max-waiters", "-1"],
    ] {
        assert!(load(&server, &path, arguments).is_err(), "{arguments:?}");
        assert!(!knows(&server, "lock.acquire"));
        assert!(server.log().contains("sluice"), "{}", server.log());
    }
    assert_eq!(load(&server, &path, &[]), "OK");
    assert_eq!(config(&server, "sluice.lock-default-lease"), "30000");
    assert_lease(lease_of_a_lock(&server), 30_000);
    assert!(load(&server, &path, &[]).is_err(), "it is loaded already");
    // Its data types cannot be taken away from a dataset.
    assert!(
        Raw::connect(&server)
            .call(["MODULE", "UNLOAD", "sluice"])
            .is_err()
    );
    assert!(ask(&server, "LOCK.ACQUIRE k me").int() > 0);
}

#[test]
fn the_module_can_be_loaded_with_its_configuration() {
    let path = module();
    let path = path.to_str().unwrap();
    let server = Server::builder().no_module().start();
    let mut client = Raw::connect(&server);
    let reply = client.call([
        "MODULE",
        "LOADEX",
        path,
        "CONFIG",
        "sluice.lock-default-lease",
        "0",
    ]);
    assert!(reply.is_err());
    assert!(!knows(&server, "lock.acquire"));
    let command = [
        "MODULE",
        "LOADEX",
        path,
        "CONFIG",
        "sluice.lock-default-lease",
        "7000",
        "ARGS",
        "lock-max-waiters",
        "5",
    ];
    assert_eq!(client.call(command), "OK");
    assert_eq!(config(&server, "sluice.lock-default-lease"), "7000");
    assert_eq!(config(&server, "sluice.lock-max-waiters"), "5");
    assert_lease(lease_of_a_lock(&server), 7000);
}

/// There is no way back on the same files: the last fence is in them, and values of our types.
#[test]
fn a_server_without_the_module_refuses_its_files() {
    let server = Server::builder().rdb(true).start();
    ask(&server, "LOCK.ACQUIRE k me PX 600000");
    server.shutdown(Shutdown::Save);
    let plain = Server::builder().no_module().start();
    let file = plain.dir().join("dump.rdb");
    plain.shutdown(Shutdown::NoSave);
    fs::copy(server.dir().join("dump.rdb"), file).unwrap();
    assert!(plain.try_restart(|_| false).is_some(), "it starts");
    assert!(plain.log().contains("sluice"), "{}", plain.log());
}

// --- A name that is taken --------------------------------------------------------------------------------------------

/// A module with the commands that its arguments name. Without the server's header: what it needs of the API is a few lines.
const TAKER: &str = r#"
typedef int (*get_api)(const char *, void *);
static int (*set_attributes)(void *, const char *, int, int);
static int (*create_command)(void *, const char *, int (*)(void *, void **, int), const char *, int, int, int);
static int (*reply_with_integer)(void *, long long);
static const char *(*text_of)(const void *, unsigned long *);
static int command(void *ctx, void **argv, int argc) { (void)argv; (void)argc; return reply_with_integer(ctx, 7); }
int RedisModule_OnLoad(void *ctx, void **argv, int argc) {
    get_api get = (get_api)((void **)ctx)[0];
    if (get("RedisModule_SetModuleAttribs", &set_attributes)) return 1;
    if (get("RedisModule_CreateCommand", &create_command)) return 1;
    if (get("RedisModule_ReplyWithLongLong", &reply_with_integer)) return 1;
    if (get("RedisModule_StringPtrLen", &text_of)) return 1;
    set_attributes(ctx, "taker", 1, 1);
    for (int i = 0; i < argc; i++)
        if (create_command(ctx, text_of(argv[i], 0), command, "", 0, 0, 0)) return 1;
    return 0;
}
"#;

/// Builds the module that takes names; the linker that cargo needs anyway can do that.
fn taker(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let stem = format!("taker-{}-{name}", std::process::id());
    let (source, library) = (
        directory.join(format!("{stem}.c")),
        directory.join(format!("{stem}.so")),
    );
    fs::create_dir_all(directory).unwrap();
    fs::write(&source, TAKER).unwrap();
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .args([&library, &source])
        .status()
        .expect("cannot run cc");
    assert!(status.success());
    fs::remove_file(source).unwrap();
    library
}

const FAMILIES: [&str; 7] = ["lock", "stock", "bloom", "cache", "rate", "once", "delay"];

/// Commands of each family, some that other modules are known to have among them.
const TAKEN: [(&str, &str); 11] = [
    ("lock.acquire", "lock"),
    ("SEM.INFO", "lock"),
    ("stock.get", "stock"),
    ("bf.add", "bloom"),
    ("BF.RESERVE", "bloom"),
    ("cf.insertnx", "bloom"),
    ("cf.compact", "bloom"),
    ("cache.get", "cache"),
    ("CL.THROTTLE", "rate"),
    ("once.info", "once"),
    ("delay.add", "delay"),
];

fn other_families(family: &str) -> String {
    let others = FAMILIES.into_iter().filter(|other| *other != family);
    others.collect::<Vec<_>>().join(",")
}

/// The lines of the log that say that another module has a command.
fn lines_on_taken_names(server: &Server) -> Vec<String> {
    let log = server.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("another module has"));
    lines.map(str::to_owned).collect()
}

/// One command that works for each family that is loaded.
fn works(server: &Server, family: &str) {
    match family {
        "lock" => assert!(ask(server, "LOCK.ACQUIRE works:lock me").int() > 0),
        "stock" => assert_eq!(ask(server, "STOCK.SET works:stock 5"), "OK"),
        "bloom" => assert_eq!(ask(server, "BF.ADD works:bloom x"), 1),
        "cache" => assert_eq!(ask(server, "CACHE.SET works:cache v PX 60000").int(), 1),
        "rate" => assert_eq!(ask(server, "RATE.ONCE works:rate PX 60000"), 1),
        "once" => assert!(!ask(server, "ONCE.BEGIN works:once LEASE 60000").is_err()),
        _ => assert_eq!(
            ask(server, "DELAY.SET works:delay STREAM works:stream"),
            "OK"
        ),
    }
}

#[test]
fn a_family_is_not_loaded_if_another_module_has_one_of_its_commands() {
    let library = taker("whole");
    for (name, family) in TAKEN {
        let line = format!("{} {name}", library.display());
        let server = Server::builder().config("loadmodule", &line).start();
        let families = server.info("sluice_families");
        assert_eq!(
            families.as_deref(),
            Some(&*other_families(family)),
            "{name}"
        );
        assert_eq!(
            ask(&server, &format!("{name} k")),
            7,
            "{name}: the other module's command"
        );
        let lines = lines_on_taken_names(&server);
        assert_eq!(lines.len(), 1, "{lines:?}");
        let named = format!("another module has {}", name.to_uppercase());
        assert!(lines[0].contains(&named), "{lines:?}");
        assert!(
            lines[0].contains(&format!("The family {family} is not loaded")),
            "{lines:?}"
        );
        // Nothing of the family is there.
        let prefixes: &[&str] = match family {
            "lock" => &["lock.", "sem."],
            "stock" => &["stock."],
            "bloom" => &["bf.", "cf."],
            "cache" => &["cache."],
            "rate" => &["rate.", "cl."],
            "once" => &["once."],
            _ => &["delay."],
        };
        let commands = ask(&server, "COMMAND LIST");
        for command in commands.array().iter().map(Value::text) {
            let of_family = prefixes.iter().any(|prefix| command.starts_with(prefix));
            assert!(
                !of_family || command.eq_ignore_ascii_case(name),
                "{name}: {command}"
            );
        }
        let section = format!("# sluice_{family}\r\n");
        assert!(
            !ask(&server, "INFO sluice").text().contains(&section),
            "{name}"
        );
        for other in FAMILIES.into_iter().filter(|other| *other != family) {
            works(&server, other);
        }
        // What is there is there after a restart, too.
        server.crash();
        assert_eq!(server.info("sluice_families"), families, "{name}");
    }
    fs::remove_file(library).unwrap();
}

#[test]
fn all_names_that_are_taken_are_in_the_log() {
    let library = taker("several");
    let line = format!("{} bf.add BF.EXISTS cf.add sem.info", library.display());
    let server = Server::builder().config("loadmodule", &line).start();
    assert_eq!(
        server.info("sluice_families").as_deref(),
        Some("stock,cache,rate,once,delay")
    );
    let lines = lines_on_taken_names(&server);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].contains("SEM.INFO") && lines[0].contains("lock"),
        "{lines:?}"
    );
    assert!(lines[1].contains("BF.ADD, BF.EXISTS, CF.ADD"), "{lines:?}");
    fs::remove_file(library).unwrap();
}

#[test]
fn a_name_that_is_taken_stops_the_load_of_families_that_are_named() {
    let library = taker("start");
    for (name, family) in TAKEN {
        let line = format!("{} {name}", library.display());
        let taken = || Server::builder().config("loadmodule", &line);
        for list in [family.to_owned(), FAMILIES.join(",")] {
            let log = taken().module_args(&["families", &list]).start_refused();
            let ours = log.lines().find(|line| line.contains("another module has"));
            let ours = ours.unwrap_or_else(|| panic!("{name}: the log does not say why\n{log}"));
            for word in [&name.to_uppercase(), family, "families"] {
                assert!(ours.contains(word), "{name}: {ours}");
            }
            assert!(!log.contains("REDIS BUG REPORT"), "{log}");
        }
        let others = other_families(family);
        let server = taken().module_args(&["families", &others]).start();
        assert_eq!(server.info("sluice_families").as_deref(), Some(&*others));
        assert!(lines_on_taken_names(&server).is_empty());
    }
    // No family is left.
    let line = format!(
        "{} lock.held stock.get cf.del cache.get rate.once once.fail delay.get",
        library.display()
    );
    let log = Server::builder()
        .config("loadmodule", &line)
        .start_refused();
    assert!(log.contains("no family can be loaded"), "{log}");
    fs::remove_file(library).unwrap();
}

#[test]
fn a_server_lives_on_after_a_load_that_found_a_name_taken() {
    let (path, library) = (module(), taker("run"));
    let server = Server::builder().no_module().start();
    assert_eq!(load(&server, &library, &["sem.info", "bf.exists"]), "OK");
    for list in ["lock", "lock,stock", "bloom"] {
        assert!(load(&server, &path, &["families", list]).is_err(), "{list}");
    }
    // Nothing of it is left, and the other module works on.
    for (name, _) in COMMANDS.into_iter().chain(FILTER_COMMANDS) {
        let is_taken = ["sem.info", "bf.exists"].contains(&name);
        assert_eq!(knows(&server, name), is_taken, "{name}");
    }
    assert_eq!(ask(&server, "SEM.INFO k"), 7);
    assert!(listed(&server, "sluice").is_none() && listed(&server, "taker").is_some());
    assert!(!ask(&server, "INFO everything").text().contains("sluice_"));
    ask(&server, "SET k v");
    ask(&server, "DEL k");
    // Without the option the other families are loaded.
    assert_eq!(load(&server, &path, &[]), "OK");
    assert_eq!(
        server.info("sluice_families").as_deref(),
        Some("stock,cache,rate,once,delay")
    );
    assert_eq!(ask(&server, "BF.EXISTS k x"), 7);
    for family in ["stock", "cache", "rate", "once", "delay"] {
        works(&server, family);
    }
    fs::remove_file(library).unwrap();
}

#[test]
fn a_guard_of_another_module_is_of_the_wrong_type() {
    let library = taker("guard");
    let line = format!("{} bf.add", library.display());
    let server = Server::builder().config("loadmodule", &line).start();
    let mut client = Raw::connect(&server);
    // A filter that is not there guards nothing, as ever.
    let reply = client.run("CACHE.FETCH k LEASE 60000 GUARD none x");
    assert_eq!(reply.array()[0], "LEASE");
    client.must("STOCK.SET s 5"); // a value of a module, and no filter
    client.must("SET string v");
    for filter in ["s", "string"] {
        let reply = client.run(&format!("CACHE.FETCH new LEASE 60000 GUARD {filter} x"));
        assert_eq!(reply.err(), WRONGTYPE, "{filter}");
    }
    fs::remove_file(library).unwrap();
}

/// The user who only reads, as the documentation has it.
#[test]
fn the_documented_user_only_reads() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let rights = "+@read -@dangerous -cache.fetch -cache.fail +info";
    ask(&server, &format!("ACL SETUSER look on >secret ~* {rights}"));
    if client.must("ACL DRYRUN look CACHE.GET k") != "OK" {
        return; // Redis 7.0, where modules have no categories
    }
    for form in forms() {
        let info = client.must(&format!("COMMAND INFO {}", form.name));
        let is_flag = |flag: &Value| *flag == "readonly";
        let reads = info.array()[0].array()[2].array().iter().any(is_flag)
            && !["CACHE.FETCH", "CACHE.FAIL", "SLUICE.HOT"].contains(&form.name);
        let line = form.plain().join(" ");
        let reply = client.must(&format!("ACL DRYRUN look {line}"));
        assert_eq!(reply == "OK", reads, "{line}: {reply:?}");
    }
    assert_eq!(client.must("ACL DRYRUN look INFO"), "OK");
}

/// Can modules add categories to the ACLs of this server?
fn modules_add_categories(server: &Server) -> bool {
    let version = server.info("redis_version").unwrap();
    let mut numbers = version
        .split('.')
        .map(|number| number.parse::<u32>().unwrap());
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    server.info("valkey_version").is_some() || version >= (7, 4)
}

#[test]
fn filters_are_in_the_acl_categories_of_redisbloom() {
    let server = Server::start();
    let categories = ask(&server, "ACL CAT");
    let has = |name: &str| categories.array().iter().any(|category| *category == name);
    let are_there = modules_add_categories(&server);
    assert_eq!((has("bloom"), has("cuckoo")), (are_there, are_there));
    if !are_there {
        return; // Redis before 7.4
    }
    for (category, prefix) in [("bloom", "bf."), ("cuckoo", "cf.")] {
        // `ACL CAT` leaves the commands of modules out on some servers.
        let list = ask(&server, &format!("COMMAND LIST FILTERBY ACLCAT {category}"));
        let mut listed: Vec<_> = list.array().iter().map(Value::text).collect();
        listed.sort_unstable();
        let of_family = FILTER_COMMANDS.into_iter().map(|(name, _)| name);
        let mut expected: Vec<_> = of_family.filter(|name| name.starts_with(prefix)).collect();
        expected.sort_unstable();
        assert_eq!(listed, expected);
    }
    // An ACL as people have it with RedisBloom.
    let server = Server::builder()
        .config("user", "bob on >pw ~* +@bloom")
        .config("user", "eve on >pw ~* +@all -@cuckoo")
        .start();
    let mut client = Raw::connect(&server);
    client.must("AUTH bob pw");
    client.must("BF.ADD b x");
    assert!(client.run("CF.ADD c x").err().starts_with("NOPERM "));
    assert!(client.run("GET k").err().starts_with("NOPERM "));
    assert!(client.run("BF.APPLY b x").err().starts_with("NOPERM "));
    client.must("AUTH eve pw");
    client.must("BF.EXISTS b x");
    assert!(client.run("CF.EXISTS c x").err().starts_with("NOPERM "));
    // Without the family the categories are not there.
    let server = Server::builder().module_args(&["families", "lock"]).start();
    assert!(
        ask(&server, "ACL CAT")
            .array()
            .iter()
            .all(|category| *category != "bloom")
    );
}

// --- Configuration at run time ---------------------------------------------------------------------------------------

#[test]
fn settings_change_at_run_time() {
    let server = Server::start();
    assert_eq!(config(&server, "sluice.lock-default-lease"), "30000");
    assert_lease(lease_of_a_lock(&server), 30_000);
    ask(
        &server,
        "CONFIG SET sluice.lock-default-lease 600000 sluice.lock-max-waiters 3",
    );
    let assert_default = |left: i64| assert_lease(left, 600_000);
    assert_default(lease_of_a_lock(&server));
    assert_eq!(config(&server, "sluice.lock-max-waiters"), "3");
    // It counts for RENEW, UPGRADE and permits as well.
    ask(&server, "LOCK.ACQUIRE k me SHARED PX 60000");
    ask(&server, "LOCK.UPGRADE k me");
    assert_default(ask(&server, "PTTL k").int());
    ask(&server, "LOCK.RENEW k me PX 6000000");
    ask(&server, "LOCK.RENEW k me");
    assert_default(ask(&server, "PTTL k").int());
    ask(&server, "SEM.ACQUIRE s me LIMIT 1");
    assert_default(ask(&server, "PTTL s").int());

    let mut client = Raw::connect(&server);
    for (name, value) in [
        ("sluice.lock-default-lease", "0"),
        ("sluice.lock-default-lease", "-1"),
        ("sluice.lock-default-lease", "abc"),
        ("sluice.lock-default-lease", "315360000001"),
        ("sluice.lock-default-lease", ""),
        ("sluice.lock-max-waiters", "-1"),
        ("sluice.nonsense", "1"),
    ] {
        let reply = client.call(["CONFIG", "SET", name, value]);
        assert!(reply.is_err(), "{name} {value}: {reply:?}");
    }
    assert_eq!(config(&server, "sluice.lock-default-lease"), "600000");
    client.must("CONFIG SET sluice.lock-default-lease 315360000000");
    client.must("CONFIG SET sluice.lock-default-lease 1");
}

#[test]
fn a_rewritten_configuration_keeps_the_settings() {
    let restart = |server: &Server| {
        server.crash();
    };
    let lease = |server: &Server| config(server, "sluice.lock-default-lease");
    for arguments in [&[][..], &["lock-default-lease", "5000", "families", "lock"]] {
        let server = Server::builder().module_args(arguments).start();
        let first = lease(&server);
        // The last round goes back to the built-in default, whatever `loadmodule` says.
        for value in ["9000", &first, "30000", "8000"] {
            ask(
                &server,
                &format!("CONFIG SET sluice.lock-default-lease {value}"),
            );
            ask(&server, "CONFIG REWRITE");
            restart(&server);
            assert_eq!(lease(&server), value, "{arguments:?}");
            assert_eq!(config(&server, "sluice.lock-max-waiters"), "100000");
        }
        // What was rewritten once is read as well as written.
        ask(&server, "CONFIG REWRITE");
        restart(&server);
        assert_eq!(lease(&server), "8000");
    }
}

#[test]
fn the_configuration_file_can_have_the_settings() {
    let server = Server::builder()
        .config("sluice.lock-default-lease", "6000")
        .start();
    assert_lease(lease_of_a_lock(&server), 6000);
    let log = Server::builder()
        .config("sluice.lock-default-lease", "0")
        .start_refused();
    assert!(log.contains("lock-default-lease"), "{log}");
    // The server itself refuses what no module has registered.
    Server::builder()
        .config("sluice.nonsense", "1")
        .start_refused();
}

// --- What a server shows ---------------------------------------------------------------------------------------------

/// Many clients put all sections of `INFO` into one map.
#[test]
fn no_field_of_info_occurs_twice_and_each_names_its_family() {
    let server = Server::start();
    let info = ask(&server, "INFO everything");
    let fields = info.text().lines().filter_map(|line| line.split_once(':'));
    let names = fields.map(|(name, _)| name);
    // Some servers have fields of their own twice.
    let mut ours: Vec<_> = names.filter(|name| name.starts_with("sluice_")).collect();
    let all = ours.len();
    ours.sort_unstable();
    ours.dedup();
    assert_eq!(ours.len(), all, "a field occurs twice");
    let (mut section, mut seen) = ("", 0);
    for line in info.text().lines() {
        if let Some(heading) = line.strip_prefix("# ") {
            section = heading;
        } else if let Some(name) = line.split(':').next()
            && let Some(field) = name.strip_prefix("sluice_")
        {
            let family = section.strip_prefix("sluice_");
            let prefix = match family {
                Some("bloom") => "filter",
                Some(family) => family,
                None => {
                    assert_eq!(section, "sluice", "{name}");
                    assert!(
                        ["version", "families", "evictable"].contains(&field),
                        "{name}"
                    );
                    seen += 1;
                    continue;
                }
            };
            assert!(
                field.starts_with(&format!("{prefix}_")),
                "{section}: {name}"
            );
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen}");
    assert_eq!(seen, all);
}

#[test]
fn info_lists_the_families_that_are_loaded() {
    let families = |server: &Server| server.info("sluice_families");
    let all = "lock,stock,bloom,cache,rate,once,delay";
    assert_eq!(families(&Server::start()).as_deref(), Some(all));
    let server = Server::builder()
        .module_args(&["families", "rate,LOCK,rate"])
        .start();
    assert_eq!(families(&server).as_deref(), Some("lock,rate"));
}

#[test]
fn info_and_the_log_tell_whether_the_server_may_evict_keys() {
    const LINE: &str = "may evict";
    let lines = |server: &Server| server.log().matches(LINE).count();
    let evictable = |server: &Server| server.info_int("sluice_evictable");
    let server = Server::start();
    assert_eq!(evictable(&server), 0);
    for (line, expected) in [
        ("maxmemory-policy allkeys-lru", 0),
        ("maxmemory 1gb", 1),
        ("maxmemory-policy volatile-ttl", 1),
        ("maxmemory-policy noeviction", 0),
        ("maxmemory-policy volatile-lru", 1),
        ("maxmemory 0", 0),
    ] {
        ask(&server, &format!("CONFIG SET {line}"));
        assert_eq!(evictable(&server), expected, "{line}");
        if line == "maxmemory 1gb" {
            eventually(SOON, || lines(&server) == 1);
        }
    }
    // Once for all the time that it is so, and again when it becomes so.
    ask(
        &server,
        "CONFIG SET maxmemory-policy noeviction maxmemory 1gb",
    );
    let cycles = || {
        let hz = server.info_int("uptime_in_seconds");
        eventually(SOON, || server.info_int("uptime_in_seconds") > hz + 1);
    };
    cycles();
    let before = lines(&server);
    ask(&server, "CONFIG SET maxmemory-policy allkeys-random");
    eventually(SOON, || lines(&server) == before + 1);
    cycles();
    assert_eq!(lines(&server), before + 1);

    let server = Server::builder()
        .config("maxmemory", "1gb")
        .config("maxmemory-policy", "allkeys-lfu")
        .start();
    assert_eq!(evictable(&server), 1);
    assert_eq!(lines(&server), 1);
    assert_eq!(
        lines(&Server::builder().config("maxmemory", "1gb").start()),
        0
    );
}

#[test]
fn info_has_a_section_with_all_counters() {
    let server = Server::start();
    let counters = [
        "acquired",
        "reentered",
        "refused",
        "waited",
        "waiting",
        "timeouts",
        "handoffs",
        "renewed",
        "expired_leases",
        "watchdog_holds",
        "watchdog_released",
        "deadlocks",
    ];
    for sections in ["sluice", "everything", "modules", "sluice_lock"] {
        let info = ask(&server, &format!("INFO {sections}"));
        let lines: Vec<_> = info.text().lines().collect();
        assert!(
            lines
                .iter()
                .any(|line| line.starts_with('#') && line.to_lowercase().contains("lock")),
            "{sections}: {lines:?}"
        );
        for counter in counters {
            let field = format!("sluice_lock_{counter}:");
            let value = lines.iter().find_map(|line| line.strip_prefix(&field));
            assert_eq!(value, Some("0"), "{sections}: {counter}");
        }
    }
    assert!(!ask(&server, "INFO").text().contains("sluice_lock_acquired"));

    let module = listed(&server, "sluice").unwrap();
    assert!(module.field("ver").int() > 0);
    assert!(module.field("path").text().ends_with(".so"));
}

#[test]
fn info_has_a_section_of_filters_with_all_counters() {
    let server = Server::start();
    let counters = [
        "keys",
        "layers",
        "items_added",
        "lookups",
        "hits",
        "bytes",
        "full",
        "refused_memory",
    ];
    for sections in ["sluice", "everything", "modules", "sluice_bloom"] {
        let info = ask(&server, &format!("INFO {sections}"));
        let lines: Vec<_> = info.text().lines().collect();
        assert!(lines.contains(&"# sluice_bloom"), "{sections}: {lines:?}");
        for counter in counters {
            let field = format!("sluice_filter_{counter}:");
            let value = lines.iter().find_map(|line| line.strip_prefix(&field));
            assert_eq!(value, Some("0"), "{sections}: {counter}");
        }
    }
    assert!(!ask(&server, "INFO").text().contains("sluice_filter_keys"));
}

#[test]
fn info_has_a_section_of_limits_with_all_counters() {
    let server = Server::start();
    let counters = [
        "allowed",
        "limited",
        "peeked",
        "refunded",
        "once_first",
        "once_duplicate",
    ];
    for sections in ["sluice", "everything", "modules", "sluice_rate"] {
        let info = ask(&server, &format!("INFO {sections}"));
        let lines: Vec<_> = info.text().lines().collect();
        assert!(lines.contains(&"# sluice_rate"), "{sections}: {lines:?}");
        for counter in counters {
            let field = format!("sluice_rate_{counter}:");
            let value = lines.iter().find_map(|line| line.strip_prefix(&field));
            assert_eq!(value, Some("0"), "{sections}: {counter}");
        }
    }
    assert!(!ask(&server, "INFO").text().contains("sluice_rate_allowed"));
}

#[test]
fn every_command_is_documented() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    client.hello3();
    let list = client.must("COMMAND LIST FILTERBY MODULE sluice");
    let ours: Vec<_> = match &list {
        Value::Set(items) | Value::Array(items) => {
            items.iter().map(|item| item.text().to_owned()).collect()
        }
        other => panic!("{other:?}"),
    };
    let known = COMMANDS.into_iter().chain(FILTER_COMMANDS);
    for (name, _) in known.chain(RATE_COMMANDS) {
        assert!(ours.iter().any(|our| our == name), "{name} is not listed");
    }
    for name in &ours {
        let docs = client.must(&format!("COMMAND DOCS {name}"));
        let docs = docs.field(name);
        for field in ["summary", "complexity", "since"] {
            assert!(!docs.field(field).text().is_empty(), "{name}: {field}");
        }
        assert!(docs.field("complexity").text().starts_with("O("), "{name}");
        assert_eq!(docs.field("group"), &"module");
        let arguments = docs.field("arguments").array();
        assert!(!arguments.is_empty(), "{name}");
        for argument in arguments {
            assert!(!argument.field("name").text().is_empty(), "{name}");
            assert!(!argument.field("type").text().is_empty(), "{name}");
        }
    }
    // The tokens are those of the contract.
    let tokens = |name: &str| {
        let docs = ask(&server, &format!("COMMAND DOCS {name}"));
        let mut found = Vec::new();
        collect_tokens(docs.field(name).field("arguments"), &mut found);
        found.sort();
        found.join(" ")
    };
    assert_eq!(
        tokens("lock.acquire"),
        "BLOCK ID LINGER MAXHOLD NOTIFY PX SHARED WATCHDOG"
    );
    assert_eq!(tokens("lock.release"), "ALL ID");
    assert_eq!(tokens("lock.renew"), "PX");
    assert_eq!(tokens("lock.upgrade"), "BLOCK PX");
    assert_eq!(tokens("lock.downgrade"), "");
    assert_eq!(
        tokens("lock.macquire"),
        "BLOCK ID LINGER MAXHOLD NOTIFY PX WATCHDOG"
    );
    assert_eq!(tokens("lock.cancel"), "");
    assert_eq!(tokens("lock.mrelease"), "ALL ID");
    assert_eq!(tokens("lock.guard"), "PX");
    assert_eq!(
        tokens("sem.acquire"),
        "BLOCK ID LIMIT LINGER MAXHOLD NOTIFY PERMITS PX WATCHDOG"
    );
    assert_eq!(
        tokens("sem.macquire"),
        "BLOCK ID LINGER MAXHOLD NOTIFY PERMITS PX WATCHDOG"
    );
    assert_eq!(tokens("sem.mrelease"), "ALL ID PERMITS");
    assert_eq!(tokens("sem.release"), "ALL ID PERMITS");
    assert_eq!(tokens("sem.renew"), "PX");
    assert_eq!(tokens("bf.reserve"), "EXPANSION LIKE NONSCALING");
    assert_eq!(
        tokens("bf.insert"),
        "CAPACITY ERROR EXPANSION ITEMS NOCREATE NONSCALING"
    );
    assert_eq!(tokens("bf.info"), "CAPACITY EXPANSION FILTERS ITEMS SIZE");
    assert_eq!(tokens("cf.insert"), "CAPACITY ITEMS NOCREATE");
    assert_eq!(tokens("cf.insertnx"), "CAPACITY ITEMS NOCREATE");
    assert_eq!(tokens("rate.gcra"), "AHEAD COST PEEK");
    assert_eq!(tokens("rate.window"), "COST EXACT PEEK SLIDING");
    assert_eq!(tokens("rate.tiers"), "AHEAD COST PEEK");
    assert_eq!(tokens("rate.mgcra"), "AHEAD COST PEEK");
    assert_eq!(tokens("rate.once"), "PX");
    for name in [
        "bf.add",
        "bf.madd",
        "bf.merge",
        "cf.del",
        "cf.compact",
        "rate.charge",
        "rate.refund",
        "cl.throttle",
    ] {
        assert_eq!(tokens(name), "", "{name}");
    }
}

fn collect_tokens(arguments: &Value, found: &mut Vec<String>) {
    for argument in arguments.array() {
        if let Some(token) = argument.get("token") {
            found.push(token.text().to_owned());
        }
        if let Some(parts) = argument.get("arguments") {
            collect_tokens(parts, found);
        }
    }
}

#[test]
fn every_command_tells_its_arity_flags_and_keys() {
    let server = Server::start();
    for (name, arity) in COMMANDS {
        let info = ask(&server, &format!("COMMAND INFO {name}"));
        let info = info.array()[0].array();
        assert_eq!(info[0], name);
        assert_eq!(info[1], arity, "{name}");
        let flags: Vec<_> = info[2].array().iter().map(Value::text).collect();
        let is = |flag: &str| flags.contains(&flag);
        assert_eq!(is("readonly"), READS.contains(&name), "{name}: {flags:?}");
        assert_eq!(is("write"), !READS.contains(&name), "{name}: {flags:?}");
        assert_eq!(
            is("blocking"),
            BLOCKING.contains(&name),
            "{name}: {flags:?}"
        );
        assert!(is("module"), "{name}: {flags:?}");
        // What can grow memory is refused when there is none; what gives it back never is.
        let grows = name.ends_with("acquire") || name == "lock.guard";
        assert_eq!(is("denyoom"), grows, "{name}: {flags:?}");

        let specs = info[8].array();
        assert_eq!(specs.len(), 1, "{name}");
        let spec: Vec<_> = specs[0]
            .field("flags")
            .array()
            .iter()
            .map(Value::text)
            .collect();
        let read = READS.contains(&name);
        assert_eq!(spec.contains(&"RO"), read, "{name}: {spec:?}");
        assert_eq!(spec.contains(&"RW"), !read, "{name}: {spec:?}");
        assert!(
            !spec.contains(&"not_key") && !spec.contains(&"incomplete"),
            "{name}: {spec:?}"
        );

        // Too few words are refused by the server itself.
        let too_few = vec![name; usize::try_from(arity.abs() - 1).unwrap()];
        let reply = Raw::connect(&server).call(too_few);
        assert!(
            reply.err().contains("wrong number of arguments"),
            "{name}: {reply:?}"
        );
    }
}

#[test]
fn every_command_of_filters_has_its_arity_flags_and_keys() {
    let server = Server::start();
    for (name, arity) in FILTER_COMMANDS {
        let info = ask(&server, &format!("COMMAND INFO {name}"));
        let info = info.array()[0].array();
        assert_eq!(info[0], name);
        assert_eq!(info[1], arity, "{name}");
        let flags: Vec<_> = info[2].array().iter().map(Value::text).collect();
        let is = |flag: &str| flags.contains(&flag);
        let read = FILTER_READS.contains(&name);
        assert_eq!(is("readonly"), read, "{name}: {flags:?}");
        assert_eq!(is("write"), !read, "{name}: {flags:?}");
        let slow = FILTER_SLOW.contains(&name);
        assert_eq!(is("fast"), !slow, "{name}: {flags:?}");
        assert!(is("module") && !is("blocking"), "{name}: {flags:?}");
        // What gives memory back is never refused.
        let grows = !read && !["cf.del", "cf.compact"].contains(&name);
        assert_eq!(is("denyoom"), grows, "{name}: {flags:?}");
        let specs = info[8].array();
        let several = ["bf.reserve", "bf.merge"].contains(&name);
        assert_eq!(specs.len(), if several { 2 } else { 1 }, "{name}");
        for (index, spec) in specs.iter().enumerate() {
            let flags = spec.field("flags").array().iter().map(Value::text);
            let flags: Vec<_> = flags.collect();
            let only_read = read || index == 1;
            assert_eq!(flags.contains(&"RO"), only_read, "{name}: {flags:?}");
            assert_eq!(flags.contains(&"RW"), !only_read, "{name}: {flags:?}");
            assert!(!flags.contains(&"incomplete"), "{name}: {flags:?}");
        }
    }
    let mut client = Raw::connect(&server);
    let listed = |client: &mut Raw, category: &str| {
        let list = client.run(&format!("ACL CAT {category}"));
        let names = list.array().to_vec();
        move |name: &str| names.iter().any(|item| *item == name)
    };
    if !listed(&mut client, "write")("bf.add") {
        return; // a server before 7.2
    }
    let categories = ["read", "write", "fast", "slow"].map(|name| listed(&mut client, name));
    for (name, _) in FILTER_COMMANDS {
        let (read, slow) = (FILTER_READS.contains(&name), FILTER_SLOW.contains(&name));
        let real = categories.each_ref().map(|is| is(name));
        assert_eq!(real, [read, !read, !slow, slow], "{name}");
    }
}

#[test]
fn every_command_of_limits_has_its_arity_flags_and_key() {
    let server = Server::start();
    for (name, arity) in RATE_COMMANDS {
        let info = ask(&server, &format!("COMMAND INFO {name}"));
        let info = info.array()[0].array();
        assert_eq!(info[0], name);
        assert_eq!(info[1], arity, "{name}");
        let flags: Vec<_> = info[2].array().iter().map(Value::text).collect();
        let has_counted_keys = name == "rate.mgcra";
        for (flag, expected) in [
            ("write", true),
            ("module", true),
            ("fast", !has_counted_keys),
        ] {
            assert_eq!(flags.contains(&flag), expected, "{name}: {flags:?}");
        }
        // The server refuses no command that may be a PEEK, a charge or a refund.
        let grows = ["rate.once", "cl.throttle"].contains(&name);
        assert_eq!(flags.contains(&"denyoom"), grows, "{name}: {flags:?}");
        if !has_counted_keys {
            // The key is the first word behind the command.
            assert_eq!([&info[3], &info[4], &info[5]].map(Value::int), [1, 1, 1]);
        }
        assert_eq!(info[8].array().len(), 1, "{name}");
    }
}

#[test]
fn users_are_kept_to_their_filters() {
    let server = Server::start();
    ask(&server, "ACL SETUSER bob on >pw ~own:* %R~shared:* +@all");
    for key in ["other", "shared:1"] {
        ask(&server, &format!("BF.RESERVE {key} 0.01 100"));
    }
    let mut client = Raw::connect(&server);
    client.must("AUTH bob pw");
    for line in [
        "BF.ADD other x",
        "BF.EXISTS other x",
        "BF.ADD shared:1 x",
        "BF.RESERVE own:1 LIKE other",
        "BF.RESERVE other LIKE own:1",
        "BF.MERGE own:1 1 other",
        "BF.MERGE own:1 2 shared:1 other",
        "BF.MERGE shared:1 1 own:1",
        "CF.DEL other x",
        "CF.COUNT other x",
    ] {
        let reply = client.run(line);
        assert!(reply.err().starts_with("NOPERM "), "{line}: {reply:?}");
    }
    for line in [
        "BF.EXISTS shared:1 x",
        "BF.RESERVE own:1 LIKE shared:1",
        "BF.MERGE own:2 2 own:1 shared:1",
        "CF.ADD own:3 x",
    ] {
        client.must(line);
    }
}

#[test]
fn the_keys_of_every_command_are_found() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let keys = |client: &mut Raw, line: &str| {
        let keys = client.run(&format!("COMMAND GETKEYS {line}"));
        if keys.is_err() {
            return format!("{keys:?}");
        }
        let keys: Vec<_> = keys.array().iter().map(Value::text).collect();
        keys.join(" ")
    };
    for (line, expected) in [
        ("LOCK.ACQUIRE a me BLOCK 0", "a"),
        ("LOCK.INFO a", "a"),
        ("LOCK.GUARD a 5", "a"),
        ("SEM.ACQUIRE a me LIMIT 5", "a"),
        ("LOCK.MACQUIRE 1 a me", "a"),
        ("LOCK.MACQUIRE 3 a b c me PX 5 BLOCK 0", "a b c"),
        ("LOCK.MRELEASE 2 a b me ALL", "a b"),
        ("LOCK.CANCEL a id", "a"),
        ("SEM.MACQUIRE 2 a 5 b 3 me PX 5 BLOCK 0", "a b"),
        ("SEM.MRELEASE 2 a b me ALL", "a b"),
        ("SEM.CANCEL a id", "a"),
        ("BF.RESERVE a 0.01 100", "a"),
        ("BF.RESERVE a LIKE b", "a b"),
        ("bf.reserve a like b", "a b"),
        ("BF.INSERT a CAPACITY 5 ITEMS x y LIKE z", "a"),
        ("BF.MADD a x LIKE z", "a"),
        ("BF.MERGE a 1 b", "a b"),
        ("BF.MERGE a 3 b c d", "a b c d"),
        ("CF.INSERT a ITEMS x", "a"),
        ("CF.COMPACT a", "a"),
        ("RATE.GCRA a 1 1 1000 COST 5", "a"),
        ("RATE.WINDOW a 1 1000 SLIDING", "a"),
        ("RATE.TIERS a 2 1 1 1 2 2 2", "a"),
        ("RATE.MGCRA 2 a 1 1 1 b 2 2 2 COST 5", "a b"),
        ("RATE.CHARGE a 1", "a"),
        ("RATE.REFUND a 1", "a"),
        ("RATE.ONCE a PX 5", "a"),
        ("CL.THROTTLE a 1 1 1 1", "a"),
    ] {
        assert_eq!(keys(&mut client, line), expected, "{line}");
        let with_flags = client.run(&format!("COMMAND GETKEYSANDFLAGS {line}"));
        assert_eq!(
            with_flags.array().len(),
            expected.split(' ').count(),
            "{line}"
        );
    }
    for line in [
        "LOCK.MACQUIRE 0 a me",
        "LOCK.MACQUIRE 9 a me",
        "LOCK.MACQUIRE x a me",
        "LOCK.MACQUIRE -1 a me",
        "SEM.MACQUIRE 2 a 5",
        "SEM.MRELEASE 9 a me",
    ] {
        let reply = client.run(&format!("COMMAND GETKEYS {line}"));
        assert!(reply.is_err(), "{line}: {reply:?}");
    }
}

/// Keys are what a user is allowed by: those of the commands with several keys too.
#[test]
fn users_are_kept_to_their_keys() {
    let server = Server::start();
    ask(&server, "ACL SETUSER bob on >pw ~own:* +@all -debug");
    ask(&server, "ACL SETUSER eve on >pw %R~own:* +@all");
    let mut client = Raw::connect(&server);
    client.must("AUTH bob pw");
    for line in [
        "LOCK.ACQUIRE other me",
        "LOCK.MACQUIRE 2 own:1 other me",
        "LOCK.MACQUIRE 2 other own:1 me BLOCK 0",
        "LOCK.MRELEASE 2 own:1 other me",
        "LOCK.HELD other me",
        "SEM.ACQUIRE other me LIMIT 1",
        "LOCK.GUARD other 5",
    ] {
        let reply = client.run(line);
        assert!(reply.err().starts_with("NOPERM "), "{line}: {reply:?}");
    }
    assert!(!client.must("LOCK.MACQUIRE 2 own:1 own:2 me").is_nil());
    client.must("AUTH eve pw");
    assert!(client.must("LOCK.HELD own:1 me").int() > 0);
    client.must("LOCK.INFO own:1");
    for line in [
        "LOCK.ACQUIRE own:1 me",
        "LOCK.RELEASE own:1 me",
        "LOCK.MRELEASE 1 own:1 me",
    ] {
        let reply = client.run(line);
        assert!(reply.err().starts_with("NOPERM "), "{line}: {reply:?}");
    }
}

/// The categories are set where the server lets modules set them.
#[test]
fn categories_are_those_of_the_flags() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let listed = |client: &mut Raw, category: &str| {
        let list = client.run(&format!("ACL CAT {category}"));
        let names = list.array().to_vec();
        move |name: &str| names.iter().any(|item| *item == name)
    };
    if !listed(&mut client, "write")("lock.acquire") {
        return; // a server before 7.2
    }
    let (read, write) = (listed(&mut client, "read"), listed(&mut client, "write"));
    let blocking = listed(&mut client, "blocking");
    for (name, _) in COMMANDS {
        assert_eq!(read(name), READS.contains(&name), "{name}");
        assert_eq!(write(name), !READS.contains(&name), "{name}");
        assert_eq!(blocking(name), BLOCKING.contains(&name), "{name}");
    }
    for name in [
        "stock.get",
        "stock.mget",
        "stock.order",
        "stock.info",
        "delay.get",
        "delay.range",
        "delay.info",
    ] {
        assert!(read(name) && !write(name), "{name}");
    }
    for name in [
        "stock.set",
        "stock.deduct",
        "stock.mreserve",
        "stock.cancel",
        "delay.set",
        "delay.add",
        "delay.cancel",
    ] {
        assert!(write(name) && !read(name), "{name}");
    }
}

/// They can make a key whatever they like, as `RESTORE` can.
#[test]
fn the_internal_commands_need_the_permission_to_restore() {
    let server = Server::start();
    ask(&server, "ACL SETUSER bob on >pw ~* +@all -restore");
    let mut client = Raw::connect(&server);
    client.must("AUTH bob pw");
    let needs = "NOPERM this internal command needs the permission to RESTORE the key";
    for line in [
        "LOCK.APPLY k x",
        "LOCK.FENCE 9",
        "STOCK.APPLY k x",
        "BF.APPLY k x",
        "CF.APPLY k x",
        "RATE.APPLY k x",
        "ONCE.APPLY k x",
        "SLUICE.APPLY k DEL",
    ] {
        assert_eq!(client.run(line).err(), needs, "{line}");
    }
    // Who may restore some keys may apply to those.
    ask(&server, "ACL SETUSER eve on >pw ~own:* +@all");
    client.must("AUTH eve pw");
    let bad = "ERR invalid replicated effect";
    for name in ["LOCK", "STOCK", "BF", "CF", "RATE", "ONCE", "SLUICE"] {
        let line = format!("{name}.APPLY own:k x");
        assert_eq!(client.run(&line).err(), bad, "{line}");
    }
    for line in ["SET 0 v more", "PEXPIREAT 1 more", "DEL more"] {
        let reply = client.run(&format!("SLUICE.APPLY own:k {line}"));
        assert_eq!(reply.err(), bad, "{line}");
    }
    assert_eq!(client.run("EXISTS own:k"), 0);
    assert!(client.run("LOCK.APPLY other x").is_err());
    assert_eq!(client.run("LOCK.FENCE 9").err(), needs);
}

#[test]
fn the_internal_commands_are_dangerous() {
    let server = Server::start();
    ask(&server, "ACL SETUSER bob on >pw ~* +@all -@dangerous");
    let mut client = Raw::connect(&server);
    client.must("AUTH bob pw");
    assert!(client.must("LOCK.ACQUIRE k me").int() > 0);
    let categories = client.run("ACL CAT dangerous");
    let set = categories.is_err() || categories.array().iter().any(|item| *item == "lock.apply");
    if set {
        for name in ["LOCK", "STOCK", "BF", "CF", "RATE", "ONCE", "SLUICE"] {
            let reply = client.call([&format!("{name}.APPLY"), "k", "x"]);
            assert!(reply.err().starts_with("NOPERM "), "{reply:?}");
        }
    }
}
