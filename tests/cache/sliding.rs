//! `SLIDE` of `CACHE.FETCH`: a hit writes only where the server accepts a command that writes, and no failover stops the server.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::cache::{about, nearly, number};
use crate::support::cluster::{master_and_replica, one_node, take_over, with_changing_masters};
use crate::support::{
    EndOnDrop, Lines, Random, Raw, SOON, Server, Value, ask, assert_identical, await_failover,
    eventually, pair, quiet, server_and_client, wait_for_replica_sync,
};

const SCRIPT: &str = "return redis.call('CACHE.FETCH', KEYS[1], 'LEASE', 5, 'SLIDE', 900000)";

/// A library with the functions `look`, which writes nothing, and `keep`.
const LIBRARY: &str = "#!lua name=lib\n\
    local function fetch(keys) return redis.call('CACHE.FETCH', keys[1], 'LEASE', 5, 'SLIDE', 900000) end\n\
    redis.register_function{function_name='look', flags={'no-writes'}, callback=fetch}\n\
    redis.register_function{function_name='keep', callback=fetch}";

/// Calls a script for a new entry. Returns whether the entry has slid.
#[track_caller]
fn slides(client: &mut Raw, command: &str, script: &str) -> bool {
    client.must("CACHE.SET k v PX 60000");
    let reply = client.call([command, script, "1", "k"]);
    has_slid(client, &reply)
}

#[track_caller]
fn has_slid(client: &mut Raw, reply: &Value) -> bool {
    let left = number(reply, "HIT v");
    nearly(about(client, "k", "fresh_ms"), left);
    match left {
        900_000 => true,
        _ => {
            nearly(left, 60_000);
            false
        }
    }
}

/// The script for `no-writes`, and its digest.
fn declared(client: &mut Raw) -> (String, String) {
    let script = format!("#!lua flags=no-writes\n{SCRIPT}");
    let digest = client.call(["SCRIPT", "LOAD", &script]);
    (script, digest.text().to_owned())
}

// Scripts

/// The module has not seen a command of any script.
#[test]
fn the_first_script_of_a_server_slides_if_it_may_write() {
    for (command, script, expected) in [
        ("EVAL", SCRIPT, true),
        ("EVAL_RO", SCRIPT, false),
        ("EVALSHA", "", true),
        ("EVALSHA_RO", "", false),
        ("FCALL", "keep", true),
        ("FCALL", "look", false),
        ("FCALL_RO", "look", false),
        ("eval", SCRIPT, true),
        ("eval_ro", SCRIPT, false),
    ] {
        let (server, mut client) = server_and_client();
        let digest = client.call(["SCRIPT", "LOAD", SCRIPT]).text().to_owned();
        client.call(["FUNCTION", "LOAD", LIBRARY]);
        // What other clients have called does not matter.
        let mut other = Raw::connect(&server);
        other.call(["EVAL_RO", "return 1", "0"]);
        let script = if script.is_empty() { &digest } else { script };
        assert_eq!(
            slides(&mut client, command, script),
            expected,
            "{command} {script}"
        );
        assert_eq!(
            slides(&mut client, command, script),
            expected,
            "{command} {script}"
        );
    }
}

#[test]
fn a_script_slides_long_after_the_last_lease() {
    let (_server, mut client) = server_and_client();
    assert!(slides(&mut client, "EVAL", SCRIPT));
    let (script, digest) = declared(&mut client);
    // After ten seconds without a lease, the module looks at no command any more, unless scripts slide.
    thread::sleep(Duration::from_millis(11_000));
    assert!(slides(&mut client, "EVAL", SCRIPT));
    assert!(!slides(&mut client, "EVAL", &script));
    assert!(!slides(&mut client, "EVALSHA", &digest));
    assert!(!slides(&mut client, "EVAL_RO", SCRIPT));
}

#[test]
fn a_script_or_function_that_declares_to_write_nothing_slides_nothing() {
    let (_server, mut client) = server_and_client();
    assert!(slides(&mut client, "EVAL", SCRIPT));
    let (script, digest) = declared(&mut client);
    assert!(!slides(&mut client, "EVALSHA", &digest));
    assert!(!slides(&mut client, "EVALSHA", &digest.to_uppercase()));
    client.must("SCRIPT FLUSH");
    assert!(!slides(&mut client, "EVAL", &script));
    assert!(!slides(&mut client, "EVALSHA", &digest));
    client.call(["FUNCTION", "LOAD", LIBRARY]);
    assert!(!slides(&mut client, "FCALL", "look"));
    assert!(slides(&mut client, "FCALL", "keep"));
    // A function has the flags of its newest version.
    let other = LIBRARY.replace("flags={'no-writes'}, ", "");
    client.call(["FUNCTION", "LOAD", "REPLACE", &other]);
    assert!(slides(&mut client, "FCALL", "look"));
    assert!(slides(&mut client, "EVAL", SCRIPT));
    // The server refuses no other command of the script.
    let script = format!("{SCRIPT} -- no-writes");
    assert!(slides(&mut client, "EVAL", &script));
}

#[test]
fn a_script_in_a_transaction_slides_if_it_may_write() {
    let (server, mut client) = server_and_client();
    client.call(["FUNCTION", "LOAD", LIBRARY]);
    let transact = |client: &mut Raw, command: &str, script: &str| {
        client.run_all(["CACHE.SET k v PX 60000", "MULTI"]);
        assert_eq!(client.call([command, script, "1", "k"]), "QUEUED");
        let reply = client.must("EXEC").array()[0].clone();
        has_slid(client, &reply)
    };
    // The server names functions also on a server where no script has run.
    assert!(transact(&mut client, "FCALL", "keep"));
    assert!(!transact(&mut client, "FCALL", "look"));
    assert!(!transact(&mut client, "FCALL_RO", "look"));
    assert!(slides(&mut client, "EVAL", SCRIPT));
    // On Redis 7.0, which names no clients, the module looks ten times a second whether a transaction is open from before.
    eventually(SOON, || transact(&mut client, "EVAL", SCRIPT));
    assert!(transact(&mut client, "EVAL", SCRIPT));
    // The commands of another client in between are not those of the transaction.
    let mut other = Raw::connect(&server);
    client.run_all(["CACHE.SET k v PX 60000", "MULTI"]);
    client.call(["EVAL", SCRIPT, "1", "k"]);
    other.must("PING");
    let reply = client.must("EXEC").array()[0].clone();
    assert!(has_slid(&mut client, &reply));
    assert!(!transact(&mut client, "EVAL_RO", SCRIPT));
    assert!(slides(&mut client, "EVAL", SCRIPT));
    assert!(!slides(&mut client, "EVAL_RO", SCRIPT));
    // A script that was queued and dropped.
    client.run_all(["CACHE.SET k v PX 60000", "MULTI"]);
    client.call(["EVAL_RO", SCRIPT, "1", "k"]);
    client.must("DISCARD");
    eventually(SOON, || transact(&mut client, "EVAL", SCRIPT));
}

// Servers that accept no writes

/// A command that writes, and whether its error begins like this.
#[track_caller]
fn refuses(client: &mut Raw, error: &str) -> bool {
    let reply = client.run("CACHE.SET other v PX 60000");
    reply.is_err() && reply.err().starts_with(error)
}

/// Fetches the entry, alone and from a script. Returns whether it has slid; both agree.
#[track_caller]
fn fetch_slides(client: &mut Raw) -> bool {
    let reply = client.must("CACHE.FETCH k LEASE 5 SLIDE 900000");
    has_slid(client, &reply)
}

#[test]
fn a_server_that_cannot_save_its_dataset_serves_hits_that_do_not_slide() {
    let server = quiet().rdb(true).start();
    let mut client = Raw::connect(&server);
    client.must("CACHE.SET k v PX 60000");
    let name = client
        .must("CONFIG GET dbfilename")
        .field("dbfilename")
        .text()
        .to_owned();
    let obstacle = server.dir().join(name);
    fs::create_dir(&obstacle).expect("a directory where the file goes");
    client.must("BGSAVE");
    eventually(SOON, || refuses(&mut client, "MISCONF"));
    assert!(!fetch_slides(&mut client));
    fs::remove_dir(&obstacle).expect("the directory is empty");
    client.must("BGSAVE");
    eventually(SOON, || !refuses(&mut client, "MISCONF"));
    assert!(fetch_slides(&mut client));
}

#[test]
fn a_cluster_that_is_down_serves_hits_that_do_not_slide() {
    let (server, mut client) = one_node();
    client.must("CACHE.SET k v PX 60000");
    client.must("CONFIG SET cluster-allow-reads-when-down yes");
    client.must("CLUSTER DELSLOTS 0");
    eventually(SOON, || refuses(&mut client, "CLUSTERDOWN"));
    assert!(!fetch_slides(&mut client));
    client.must("CLUSTER ADDSLOTS 0");
    eventually(SOON, || !refuses(&mut client, "CLUSTERDOWN"));
    assert!(fetch_slides(&mut client));
    let log = server.log();
    assert!(!log.contains("internal error"), "{log}");
}

#[test]
fn a_hit_slides_where_pexpireat_has_another_name() {
    let server = quiet().config("rename-command", "PEXPIREAT \"\"").start();
    let mut client = Raw::connect(&server);
    client.must("CACHE.SET k v PX 60000");
    assert!(fetch_slides(&mut client));
    client.must("CACHE.SET k v PX 60000");
    client.must("CONFIG SET min-replicas-to-write 1");
    if server
        .info("redis_version")
        .is_some_and(|version| !version.starts_with("7.0."))
    {
        assert!(!fetch_slides(&mut client));
    }
}

// Failovers

/// Clients of two servers whose every second command is a hit that is due to slide, until `work` is done.
fn sliding_load(servers: [&Server; 2], work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndOnDrop(&stop);
        for number in 0..6 {
            let stop = &stop;
            scope.spawn(move || {
                let mut random = Random(0x5eed ^ (number * 7919 + 1));
                while !stop.load(Ordering::Relaxed) {
                    let mut client = Raw::connect(servers[random.below(2) as usize]);
                    client.ask("READONLY");
                    if !matches!(client.try_read(Duration::from_secs(5)), Ok(Some(_))) {
                        continue;
                    }
                    for _ in 0..30 {
                        let key = random.below(8);
                        let slide = 100_000 * (1 + random.below(9));
                        let fetch = format!("CACHE.FETCH {{t}}{key} LEASE 5 SLIDE {slide}");
                        match random.below(4) {
                            0 => {
                                client.ask(&format!("CACHE.SET {{t}}{key} v PX 60000 STALE 60000"))
                            }
                            1 => client.send([
                                "EVAL",
                                &SCRIPT.replace("900000", &slide.to_string()),
                                "1",
                                &format!("{{t}}{key}"),
                            ]),
                            _ => client.ask(&fetch),
                        }
                        match client.try_read(Duration::from_secs(5)) {
                            Ok(Some(Value::Error(text))) => {
                                assert!(!text.contains("internal"), "{text}");
                            }
                            Ok(Some(_)) => {}
                            _ => break,
                        }
                    }
                }
            });
        }
        work();
        stop.store(true, Ordering::Relaxed);
    });
    for server in servers {
        let log = server.log();
        assert!(server.is_running());
        assert!(
            !log.contains("internal error") && !log.contains("ASSERTION"),
            "{log}"
        );
    }
}

#[test]
fn failovers_under_hits_that_slide_keep_the_datasets_identical() {
    let (one, other) = pair();
    let servers = [&one, &other];
    sliding_load(servers, || {
        for turn in 0..3 {
            let (now, next) = (servers[turn % 2], servers[(turn + 1) % 2]);
            thread::sleep(Duration::from_millis(200));
            let before = now.info_int("sluice_cache_hits");
            eventually(SOON, || now.info_int("sluice_cache_hits") > before + 20);
            let mut client = Raw::connect(now);
            client.must("CACHE.SET k v PX 60000");
            // The replica is silent for a while, so that the pause of the failover lasts.
            next.stop_signal();
            client.must("CACHE.SET last v PX 60000");
            client.must("FAILOVER");
            assert!(!fetch_slides(&mut client));
            assert_eq!(
                now.info("master_failover_state").as_deref(),
                Some("waiting-for-sync")
            );
            next.cont_signal();
            await_failover(now, next);
        }
    });
    assert_identical(&other, &one);
}

#[test]
fn manual_failovers_of_a_cluster_under_hits_that_slide_keep_the_datasets_identical() {
    let is_up = |node: &Server| node.info("master_link_status").as_deref() == Some("up");
    with_changing_masters(master_and_replica, |[one, other]| {
        sliding_load([one, other], || {
            for (now, next) in [(one, other), (other, one)] {
                // A master ignores the request of a node that it does not know as its replica yet.
                let id = ask(now, "CLUSTER MYID");
                let replicas = format!("CLUSTER REPLICAS {}", id.text());
                eventually(SOON, || ask(now, &replicas).array().len() == 1);
                let before = now.info_int("sluice_cache_hits");
                eventually(SOON, || now.info_int("sluice_cache_hits") > before + 20);
                take_over(next);
                eventually(SOON * 2, || {
                    now.info("role").as_deref() == Some("slave") && is_up(now)
                });
            }
        });
        eventually(SOON, || {
            wait_for_replica_sync(one, other);
            one.digest() == other.digest()
        });
    });
}
