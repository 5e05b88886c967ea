//! What the commands of locks reply and do, sentence by sentence of the contract. Nobody waits here: see `waiting.rs`.

use crate::support::lock::{about, fence, holder, holders, is_watched, lease_of, queue};
use crate::support::{
    KeyspaceEvents, Lines, Raw, SOON, SYNTAX, Server, UNSAFE_INTEGER, Value, WRONGTYPE, await_gone,
    eventually, field_of, now_ms, now_us, server_and_client, until_pong, waiter,
    with_growing_lease,
};

// ACQUIRE

#[test]
fn a_free_lock_is_granted_with_a_fence() {
    let (_server, mut client) = server_and_client();
    fence(&client.run("LOCK.ACQUIRE k me"));
    assert_eq!(client.run("EXISTS k"), 1);
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), 1)]);
}

#[test]
fn an_exclusive_lock_keeps_all_others_out() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    assert!(client.run("LOCK.ACQUIRE k you").is_nil());
    assert!(client.run("LOCK.ACQUIRE k you SHARED").is_nil());
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), 1)]);
}

#[test]
fn the_owner_and_not_the_connection_is_what_holds() {
    let (server, mut client) = server_and_client();
    let first = fence(&client.run("LOCK.ACQUIRE k me"));
    let mut other = Raw::connect(&server);
    assert_eq!(other.run("LOCK.ACQUIRE k me"), first);
    assert!(client.run("LOCK.ACQUIRE k you").is_nil());
    drop(client);
    assert_eq!(other.run("LOCK.HELD k me"), first);
    assert_eq!(other.run("LOCK.RELEASE k me"), 1);
    assert_eq!(other.run("LOCK.RELEASE k me"), 0);
}

#[test]
fn reentering_counts_and_keeps_the_fence() {
    let (_server, mut client) = server_and_client();
    let first = fence(&client.run("LOCK.ACQUIRE k me"));
    for count in 2..=5 {
        assert_eq!(client.run("LOCK.ACQUIRE k me"), first);
        assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), count)]);
    }
    for left in (0..5).rev() {
        assert_eq!(client.run("LOCK.RELEASE k me"), left);
    }
    assert_eq!(client.run("EXISTS k"), 0);
}

#[test]
fn an_exclusive_holder_reenters_with_shared() {
    let (_server, mut client) = server_and_client();
    let first = fence(&client.run("LOCK.ACQUIRE k me"));
    assert_eq!(client.run("LOCK.ACQUIRE k me SHARED"), first);
    let info = client.run("LOCK.INFO k");
    assert_eq!(info.field("mode"), &"exclusive");
    assert_eq!(holders(&info), [("me".into(), 2)]);
    assert!(client.run("LOCK.ACQUIRE k you SHARED").is_nil());
    assert_eq!(client.run("LOCK.RELEASE k me"), 1);
    assert!(client.run("LOCK.ACQUIRE k you SHARED").is_nil());
}

#[test]
fn a_shared_holder_that_asks_for_the_exclusive_lock_gets_nil_at_once() {
    let (_server, mut client) = server_and_client();
    let first = fence(&client.run("LOCK.ACQUIRE k me SHARED"));
    assert!(client.run("LOCK.ACQUIRE k me").is_nil());
    // BLOCK changes nothing: it would wait for itself.
    assert!(client.run("LOCK.ACQUIRE k me BLOCK 0").is_nil());
    client.run("LOCK.ACQUIRE k you SHARED");
    assert!(client.run("LOCK.ACQUIRE k me BLOCK 0").is_nil());
    assert_eq!(client.run("LOCK.HELD k me"), first);
    let info = client.run("LOCK.INFO k");
    assert_eq!(info.field("mode"), &"shared");
    assert_eq!(holder(&info, "me").field("count"), &1);
}

#[test]
fn shared_holders_have_their_own_counts_fences_and_leases() {
    let (_server, mut client) = server_and_client();
    let a = fence(&client.run("LOCK.ACQUIRE k a SHARED PX 50000"));
    let b = fence(&client.run("LOCK.ACQUIRE k b SHARED PX 100000"));
    assert!(b > a, "{b} must be larger than {a}");
    assert_eq!(client.run("LOCK.ACQUIRE k a SHARED PX 1"), a);
    assert_eq!(client.run("LOCK.HELD k a"), a);
    assert_eq!(client.run("LOCK.HELD k b"), b);

    let info = client.run("LOCK.INFO k");
    assert_eq!(info.field("mode"), &"shared");
    assert_eq!(holder(&info, "a").field("count"), &2);
    assert_eq!(holder(&info, "b").field("count"), &1);
    assert_eq!(holder(&info, "a").field("fence"), &a);
    assert_eq!(holder(&info, "b").field("fence"), &b);
    about(lease_of(&info, "a"), 50_000);
    about(lease_of(&info, "b"), 100_000);
    assert!(client.run("LOCK.ACQUIRE k c").is_nil());

    assert_eq!(client.run("LOCK.RELEASE k a ALL"), 0);
    assert_eq!(client.run("LOCK.HELD k b"), b);
    assert!(client.run("LOCK.HELD k a").is_nil());
}

#[test]
fn reentering_makes_the_lease_the_later_of_the_old_and_the_new_one() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 100000");
    client.run("LOCK.ACQUIRE k me PX 1000");
    about(client.run("PTTL k").int(), 100_000);
    client.run("LOCK.ACQUIRE k me PX 500000");
    about(client.run("PTTL k").int(), 500_000);
    about(lease_of(&client.run("LOCK.INFO k"), "me"), 500_000);
}

#[test]
fn a_reentering_shared_holder_passes_a_waiting_exclusive_one() {
    let (server, mut client) = server_and_client();
    let first = fence(&client.run("LOCK.ACQUIRE k me SHARED"));
    let _waiter = waiter(&server, "LOCK.ACQUIRE k other BLOCK 0");
    // It holds the lock already: waiting behind the other would never end.
    assert_eq!(client.run("LOCK.ACQUIRE k me SHARED"), first);
    // Somebody new has somebody queued ahead.
    assert!(client.run("LOCK.ACQUIRE k third SHARED").is_nil());
}

#[test]
fn the_ttl_is_the_longest_lease_held() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k a SHARED PX 50000");
    client.run("LOCK.ACQUIRE k b SHARED PX 200000");
    client.run("LOCK.ACQUIRE k c SHARED PX 100000");
    about(client.run("PTTL k").int(), 200_000);
    client.run("LOCK.RELEASE k b");
    about(client.run("PTTL k").int(), 100_000);
    client.run("LOCK.RENEW k c PX 30000");
    about(client.run("PTTL k").int(), 50_000);
    client.run("LOCK.RELEASE k a");
    about(client.run("PTTL k").int(), 30_000);
    client.run("LOCK.RENEW k c PX 400000");
    about(client.run("PTTL k").int(), 400_000);
}

#[test]
fn a_hold_ends_at_its_lease_and_the_key_with_the_last_one() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 30");
    await_gone(&mut client, "k");
    assert!(client.run("LOCK.HELD k me").is_nil());
    assert!(client.run("LOCK.INFO k").is_nil());

    client.run("LOCK.ACQUIRE k short SHARED PX 30");
    client.run("LOCK.ACQUIRE k long SHARED PX 100000");
    eventually(SOON, || client.run("LOCK.HELD k short").is_nil());
    assert_eq!(
        holders(&client.run("LOCK.INFO k")),
        [("long".to_string(), 1)]
    );
    assert!(client.run("LOCK.RELEASE k short").is_nil());
    // The one that has lost its hold may ask anew, and gets a new fence.
    fence(&client.run("LOCK.ACQUIRE k short SHARED"));
}

#[test]
fn an_ended_hold_leaves_nothing_for_its_owner_to_reenter() {
    let (_server, mut client) = server_and_client();
    let first = fence(&client.run("LOCK.ACQUIRE k me PX 20"));
    client.run("LOCK.ACQUIRE k me PX 20");
    await_gone(&mut client, "k");
    let second = fence(&client.run("LOCK.ACQUIRE k me PX 20000"));
    assert!(second > first);
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), 1)]);
}

#[test]
fn without_px_the_lease_is_the_default_of_the_configuration() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    about(client.run("PTTL k").int(), 30_000);
    assert_eq!(
        client.run("CONFIG SET sluice.lock-default-lease 600000"),
        "OK"
    );
    client.run("LOCK.RENEW k me");
    about(client.run("PTTL k").int(), 600_000);
    client.run("LOCK.ACQUIRE other me");
    about(client.run("PTTL other").int(), 600_000);
    client.run("SEM.ACQUIRE sem me LIMIT 1");
    about(client.run("PTTL sem").int(), 600_000);
    client.run("LOCK.MACQUIRE 1 many me");
    about(client.run("PTTL many").int(), 600_000);
    drop(server);

    let server = Server::builder()
        .module_args(&["lock-default-lease", "700000"])
        .start();
    let mut client = Raw::connect(&server);
    client.run("LOCK.ACQUIRE k me");
    about(client.run("PTTL k").int(), 700_000);
    let setting = client.run("CONFIG GET sluice.lock-default-lease");
    assert_eq!(setting.field("sluice.lock-default-lease"), &"700000");
}

#[test]
fn a_lease_may_last_ten_years() {
    let (_server, mut client) = server_and_client();
    let ten_years = 315_360_000_000;
    client.run("LOCK.ACQUIRE k me PX 315360000000");
    about(client.run("PTTL k").int(), ten_years);
    fence(&client.run("LOCK.RENEW k me PX 315360000000"));
    about(lease_of(&client.run("LOCK.INFO k"), "me"), ten_years);
}

// Native commands and the lease

#[test]
fn expire_ends_a_hold_sooner() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 100000");
    assert_eq!(client.run("PEXPIRE k 30"), 1);
    await_gone(&mut client, "k");
    assert!(client.run("LOCK.HELD k me").is_nil());
    assert!(client.run("LOCK.RELEASE k me").is_nil());
    fence(&client.run("LOCK.ACQUIRE k you"));
}

#[test]
fn expire_in_the_past_ends_a_hold_at_once() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 100000");
    client.run("PEXPIREAT k 1");
    assert!(client.run("LOCK.HELD k me").is_nil());
    fence(&client.run("LOCK.ACQUIRE k you"));
}

#[test]
fn persist_does_not_let_a_hold_outlive_its_lease() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 200");
    client.run("PERSIST k");
    eventually(SOON, || client.run("LOCK.HELD k me").is_nil());
    // Free for others, and really gone: a lock exists exactly while somebody holds it.
    eventually(SOON, || client.run("EXISTS k") == 0);
    assert!(client.run("LOCK.INFO k").is_nil());
    fence(&client.run("LOCK.ACQUIRE k you"));
}

#[test]
fn a_later_expire_does_not_let_a_hold_outlive_its_lease() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 200");
    client.run("EXPIRE k 100000");
    eventually(SOON, || client.run("LOCK.HELD k me").is_nil());
    eventually(SOON, || client.run("EXISTS k") == 0);
    fence(&client.run("LOCK.ACQUIRE k you"));
}

#[test]
fn a_persisted_lock_is_free_for_others_the_moment_its_lease_ends() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 100");
    client.run("PERSIST k");
    eventually(SOON, || client.run("LOCK.ACQUIRE k you").int_or_nil());
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("you".into(), 1)]);
}

#[test]
fn native_commands_work_on_locks() {
    let (_server, mut client) = server_and_client();
    let first = fence(&client.run("LOCK.ACQUIRE k me PX 100000"));
    assert_eq!(client.run("EXISTS k"), 1);
    let kind = client.run("TYPE k").text().to_string();
    assert_eq!(client.run("RENAME k other"), "OK");
    assert!(client.run("LOCK.HELD k me").is_nil());
    assert_eq!(client.run("LOCK.HELD other me"), first);
    about(client.run("PTTL other").int(), 100_000);

    assert_eq!(client.run("COPY other k"), 1);
    assert_eq!(client.run("LOCK.HELD k me"), first);
    assert_eq!(client.run("LOCK.RELEASE k me"), 0);
    assert_eq!(client.run("LOCK.HELD other me"), first);

    assert_eq!(client.run("MOVE other 1"), 1);
    assert_eq!(client.run("EXISTS other"), 0);
    client.run("SELECT 1");
    assert_eq!(client.run("LOCK.HELD other me"), first);
    client.run("SWAPDB 0 1");
    client.run("SELECT 0");
    assert_eq!(client.run("LOCK.HELD other me"), first);

    let scanned = client.call(["SCAN", "0", "TYPE", &kind, "COUNT", "100"]);
    assert_eq!(scanned.array()[1].array(), [Value::Bulk(b"other".into())]);
    assert!(client.run("MEMORY USAGE other").int() > 0);
    assert!(!client.run("OBJECT ENCODING other").is_err());
    assert!(!client.run("OBJECT FREQ other").is_nil());

    let dump = client.run("DUMP other");
    let digest = client.run("DEBUG DIGEST-VALUE other");
    client.run("UNLINK other");
    assert!(client.run("LOCK.HELD other me").is_nil());
    let restored = client.call([b"RESTORE".as_slice(), b"other", b"100000", dump.bytes()]);
    assert_eq!(restored, "OK");
    assert_eq!(client.run("LOCK.HELD other me"), first);
    assert_eq!(client.run("DEBUG DIGEST-VALUE other"), digest);
}

#[test]
fn a_restored_lock_keeps_its_leases_whatever_ttl_it_gets() {
    let (_server, mut client) = server_and_client();
    let replies = client.transact(["LOCK.ACQUIRE k me PX 2000", "DUMP k"]);
    let end = now_ms(&mut client) + 2000;
    let dump = &replies[1];
    client.run("DEL k");
    let restored = client.call([b"RESTORE".as_slice(), b"k", b"0", dump.bytes()]);
    assert_eq!(restored, "OK");
    eventually(SOON, || client.run("EXISTS k") == 0);
    // Redis 8.0 and later remove a key within the last millisecond of its lease.
    eventually(SOON, || now_ms(&mut client) > end);
    // All its leases are over: there is nothing to restore that anybody could see.
    client.call([b"RESTORE".as_slice(), b"k", b"100000", dump.bytes()]);
    assert!(client.run("LOCK.HELD k me").is_nil());
    eventually(SOON, || client.run("EXISTS k") == 0);
    fence(&client.run("LOCK.ACQUIRE k you"));
}

#[test]
fn a_fence_given_after_a_restore_is_larger_than_the_restored_one() {
    let (_server, mut client) = server_and_client();
    let (other_server, mut other) = server_and_client();
    // The other server's fences are far ahead of the clock.
    client.run("LOCK.ACQUIRE warm me");
    other.call(["LOCK.FENCE", "9000000000000000"]);
    let ahead = fence(&other.run("LOCK.ACQUIRE k me SHARED"));
    let dump = other.run("DUMP k");
    drop(other_server);
    let restored = client.call([b"RESTORE".as_slice(), b"k", b"0", dump.bytes()]);
    assert_eq!(restored, "OK");
    assert_eq!(client.run("LOCK.HELD k me"), ahead);
    let next = fence(&client.run("LOCK.ACQUIRE k you SHARED"));
    assert!(next > ahead, "{next} must be larger than {ahead}");
}

#[test]
fn del_is_the_forced_unlock() {
    let (_server, mut client) = server_and_client();
    let first = fence(&client.run("LOCK.ACQUIRE k me"));
    client.run("LOCK.ACQUIRE k me");
    assert_eq!(client.run("DEL k"), 1);
    assert!(client.run("LOCK.HELD k me").is_nil());
    assert!(client.run("LOCK.RELEASE k me").is_nil());
    let second = fence(&client.run("LOCK.ACQUIRE k me"));
    assert!(second > first);
    assert_eq!(client.run("LOCK.RELEASE k me"), 0);
}

// Fences

#[test]
fn fences_rise_over_keys_databases_del_and_flushall() {
    let (_server, mut client) = server_and_client();
    let mut last = 0;
    let mut rises = |reply: Value| {
        let next = fence(&reply);
        assert!(next > last, "{next} must be larger than {last}");
        last = next;
    };
    for round in 0..50 {
        rises(client.call(["LOCK.ACQUIRE", &format!("k{round}"), "me"]));
        rises(client.call(["SEM.ACQUIRE", &format!("s{round}"), "me", "LIMIT", "2"]));
        rises(client.run("LOCK.ACQUIRE k me SHARED"));
        rises(client.run("LOCK.ACQUIRE k you SHARED"));
        client.run("DEL k");
    }
    client.run("FLUSHALL");
    rises(client.run("LOCK.ACQUIRE k me"));
    client.run("FLUSHDB ASYNC");
    rises(client.run("LOCK.ACQUIRE k me"));
    client.run("SELECT 5");
    rises(client.run("LOCK.ACQUIRE k me"));
    for fence in client.run("LOCK.MACQUIRE 3 x y z me").array() {
        rises(fence.clone());
    }
    rises(client.run("LOCK.ACQUIRE u me SHARED"));
    rises(client.run("LOCK.UPGRADE u me"));
    client.run("DEBUG RELOAD");
    rises(client.run("LOCK.ACQUIRE v me"));
}

#[test]
fn fences_are_near_unix_time_in_microseconds() {
    let (_server, mut client) = server_and_client();
    let before = now_us(&mut client);
    let given = fence(&client.run("LOCK.ACQUIRE k me"));
    let after = now_us(&mut client);
    // The server may take its clock once per turn of its loop.
    let slack = 1_000_000;
    assert!(
        (before - slack..=after + slack).contains(&given),
        "{given} is not between {before} and {after}"
    );
    assert!(given < UNSAFE_INTEGER);
}

#[test]
fn the_fence_stays_on_everything_but_new_holds_and_upgrades() {
    let (_server, mut client) = server_and_client();
    let first = fence(&client.run("LOCK.ACQUIRE k me"));
    assert_eq!(client.run("LOCK.ACQUIRE k me"), first);
    assert_eq!(client.run("LOCK.RENEW k me"), first);
    assert_eq!(client.run("LOCK.UPGRADE k me"), first);
    client.run("LOCK.RELEASE k me");
    assert_eq!(client.run("LOCK.HELD k me"), first);
    assert_eq!(client.run("LOCK.DOWNGRADE k me"), first);
    assert_eq!(client.run("LOCK.DOWNGRADE k me"), first);
    assert!(fence(&client.run("LOCK.UPGRADE k me")) > first);
}

// RELEASE, RENEW, HELD

#[test]
fn release_returns_the_number_of_remaining_holds_and_nil_for_other_owners() {
    let (_server, mut client) = server_and_client();
    assert!(client.run("LOCK.RELEASE k me").is_nil());
    assert!(client.run("LOCK.RELEASE k me ALL").is_nil());
    for _ in 0..3 {
        client.run("LOCK.ACQUIRE k me");
    }
    assert!(client.run("LOCK.RELEASE k you").is_nil());
    assert!(client.run("LOCK.RELEASE k you ALL").is_nil());
    assert_eq!(client.run("LOCK.RELEASE k me"), 2);
    assert_eq!(client.run("LOCK.RELEASE k me all"), 0);
    assert_eq!(client.run("EXISTS k"), 0);
    assert!(client.run("LOCK.RELEASE k me").is_nil());
}

#[test]
fn renew_sets_the_lease_from_now_on_longer_or_shorter() {
    let (_server, mut client) = server_and_client();
    assert!(client.run("LOCK.RENEW k me PX 1000").is_nil());
    assert_eq!(client.run("EXISTS k"), 0);
    let first = fence(&client.run("LOCK.ACQUIRE k me PX 100000"));
    assert_eq!(client.run("LOCK.RENEW k me PX 50000"), first);
    about(client.run("PTTL k").int(), 50_000);
    assert_eq!(client.run("LOCK.RENEW k me PX 500000"), first);
    about(client.run("PTTL k").int(), 500_000);
    assert!(client.run("LOCK.RENEW k you PX 900000").is_nil());
    about(client.run("PTTL k").int(), 500_000);
    // Its holds stay what they were.
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), 1)]);
    client.run("LOCK.RENEW k me PX 20");
    await_gone(&mut client, "k");
}

#[test]
fn renew_changes_the_lease_of_that_owner_only() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k a SHARED PX 100000");
    client.run("LOCK.ACQUIRE k b SHARED PX 100000");
    client.run("LOCK.RENEW k a PX 500000");
    let info = client.run("LOCK.INFO k");
    about(lease_of(&info, "a"), 500_000);
    about(lease_of(&info, "b"), 100_000);
}

#[test]
fn renew_undoes_an_earlier_expire() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 100000");
    client.run("PEXPIRE k 50000");
    about(client.run("PTTL k").int(), 50_000);
    client.run("LOCK.RENEW k me PX 200000");
    about(client.run("PTTL k").int(), 200_000);
}

#[test]
fn held_reads_and_changes_nothing() {
    let (_server, mut client) = server_and_client();
    assert!(client.run("LOCK.HELD k me").is_nil());
    assert_eq!(client.run("EXISTS k"), 0);
    let first = fence(&client.run("LOCK.ACQUIRE k me"));
    let digest = client.run("DEBUG DIGEST");
    assert_eq!(client.run("LOCK.HELD k me"), first);
    assert!(client.run("LOCK.HELD k you").is_nil());
    // Owners are exact bytes.
    assert!(client.run("LOCK.HELD k m").is_nil());
    assert!(client.run("LOCK.HELD k ME").is_nil());
    assert_eq!(client.run("DEBUG DIGEST"), digest);
}

// UPGRADE and DOWNGRADE

#[test]
fn upgrade_makes_the_only_shared_hold_exclusive_and_keeps_its_count() {
    let (_server, mut client) = server_and_client();
    let mut shared = 0;
    for _ in 0..3 {
        shared = fence(&client.run("LOCK.ACQUIRE k me SHARED"));
    }
    let exclusive = fence(&client.run("LOCK.UPGRADE k me"));
    assert!(exclusive > shared, "an upgrade gives a new fence");
    let info = client.run("LOCK.INFO k");
    assert_eq!(info.field("mode"), &"exclusive");
    assert_eq!(holders(&info), [("me".into(), 3)]);
    assert_eq!(client.run("LOCK.HELD k me"), exclusive);
    assert!(client.run("LOCK.ACQUIRE k you SHARED").is_nil());
    // Exclusive already: the fence, unchanged.
    assert_eq!(client.run("LOCK.UPGRADE k me"), exclusive);
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), 3)]);
}

/// It is a re-entry without a count: the lease may become longer, never shorter.
#[test]
fn upgrade_of_an_exclusive_hold_changes_nothing_but_a_longer_lease() {
    let (server, mut client) = server_and_client();
    let mut events = KeyspaceEvents::of(&server, "Ed");
    let exclusive = client.run("LOCK.ACQUIRE k me PX 600000 ID a");
    fence(&exclusive);
    let mut watcher = Raw::connect(&server);
    let ends = client.run("PEXPIRETIME k").int();
    let digest = client.run("DEBUG DIGEST");
    events.take();
    for shorter in ["LOCK.UPGRADE k me", "LOCK.UPGRADE k me PX 1000 BLOCK 0"] {
        watcher.run("WATCH k");
        watcher.run("MULTI");
        watcher.run("PING");
        assert_eq!(client.run(shorter), exclusive, "{shorter}");
        assert_eq!(client.run("PEXPIRETIME k"), ends, "{shorter}");
        assert_eq!(client.run("DEBUG DIGEST"), digest, "{shorter}");
        assert!(events.take().is_empty(), "{shorter}");
        assert!(!watcher.run("EXEC").is_nil(), "{shorter} changes the key");
    }
    assert_eq!(client.run("LOCK.UPGRADE k me PX 900000"), exclusive);
    let later = client.run("PEXPIRETIME k").int();
    assert!(later >= ends + 300_000, "{later} after {ends}");
    assert_eq!(events.take(), ["lock.upgrade k"]);
    let info = client.run("LOCK.INFO k");
    assert_eq!(info.field("mode"), &"exclusive");
    assert_eq!(holders(&info), [("me".into(), 1)]);
    // The acquisition can still be repeated.
    assert_eq!(client.run("LOCK.ACQUIRE k me PX 600000 ID a"), exclusive);
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), 1)]);
}

#[test]
fn upgrade_is_nil_while_others_share_and_for_owners_without_a_hold() {
    let (_server, mut client) = server_and_client();
    assert!(client.run("LOCK.UPGRADE k me").is_nil());
    assert!(client.run("LOCK.UPGRADE k me BLOCK 0").is_nil());
    assert_eq!(client.run("EXISTS k"), 0);
    client.run("LOCK.ACQUIRE k me SHARED");
    client.run("LOCK.ACQUIRE k you SHARED");
    let digest = client.run("DEBUG DIGEST");
    assert!(client.run("LOCK.UPGRADE k me").is_nil());
    assert!(client.run("LOCK.UPGRADE k third BLOCK 0").is_nil());
    assert_eq!(client.run("DEBUG DIGEST"), digest);
    client.run("LOCK.RELEASE k you");
    fence(&client.run("LOCK.UPGRADE k me"));
    assert!(client.run("LOCK.UPGRADE k you").is_nil());
}

#[test]
fn upgrade_ignores_shared_holders_with_ended_leases() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me SHARED PX 100000");
    client.run("LOCK.ACQUIRE k you SHARED PX 20");
    eventually(SOON, || !client.run("LOCK.UPGRADE k me").is_nil());
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), 1)]);
}

#[test]
fn downgrade_lets_shared_requests_in() {
    let (_server, mut client) = server_and_client();
    assert!(client.run("LOCK.DOWNGRADE k me").is_nil());
    let first = fence(&client.run("LOCK.ACQUIRE k me PX 100000"));
    client.run("LOCK.ACQUIRE k me");
    assert!(client.run("LOCK.DOWNGRADE k you").is_nil());
    assert_eq!(client.run("LOCK.DOWNGRADE k me"), first);
    let info = client.run("LOCK.INFO k");
    assert_eq!(info.field("mode"), &"shared");
    assert_eq!(holders(&info), [("me".into(), 2)]);
    about(lease_of(&info, "me"), 100_000);
    fence(&client.run("LOCK.ACQUIRE k you SHARED"));
    // Shared already: the fence, unchanged.
    assert_eq!(client.run("LOCK.DOWNGRADE k me"), first);
}

// ID

/// In a script and in a transaction the server's clock stands still.
#[test]
fn a_lease_that_ends_in_a_script_has_ended_for_all_commands() {
    let (_server, mut client) = server_and_client();
    let script = "
        redis.call('LOCK.ACQUIRE', KEYS[1], 'a', 'PX', 20)
        while redis.call('LOCK.HELD', KEYS[1], 'a') do end
        return {
            redis.call('LOCK.HELD', KEYS[1], 'a'), redis.call('LOCK.INFO', KEYS[1]),
            redis.call('LOCK.ACQUIRE', KEYS[1], 'b', 'PX', 600000),
            redis.call('LOCK.ACQUIRE', KEYS[1], 'a', 'PX', 600000),
        }";
    let replies = client.call(["EVAL", script, "1", "k"]);
    let replies = replies.array();
    assert!(replies[0].is_nil() && replies[1].is_nil());
    let given = fence(&replies[2]);
    assert_eq!(client.run("LOCK.HELD k b"), given);
    assert!(client.run("LOCK.HELD k a").is_nil());
    let left = client.run("PTTL k").int();
    assert!(left > 500_000, "{left}");
}

#[test]
fn a_repeated_acquire_returns_the_first_fence_and_changes_nothing() {
    let (_server, mut client) = server_and_client();
    let first = fence(&client.run("LOCK.ACQUIRE k me PX 100000 ID one"));
    let digest = client.run("DEBUG DIGEST");
    for _ in 0..3 {
        assert_eq!(client.run("LOCK.ACQUIRE k me PX 900000 ID one"), first);
    }
    assert_eq!(client.run("DEBUG DIGEST"), digest);
    about(client.run("PTTL k").int(), 100_000);
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), 1)]);
    // Ids are exact bytes.
    client.run("LOCK.ACQUIRE k me ID ONE");
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), 2)]);
}

#[test]
fn a_repeated_reentry_counts_once() {
    let (_server, mut client) = server_and_client();
    let first = fence(&client.run("LOCK.ACQUIRE k me ID one"));
    assert_eq!(client.run("LOCK.ACQUIRE k me ID two"), first);
    assert_eq!(client.run("LOCK.ACQUIRE k me ID two"), first);
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), 2)]);
}

#[test]
fn an_id_belongs_to_one_owner() {
    let (_server, mut client) = server_and_client();
    let a = fence(&client.run("LOCK.ACQUIRE k a SHARED ID one"));
    let b = fence(&client.run("LOCK.ACQUIRE k b SHARED ID one"));
    assert_ne!(a, b);
    assert_eq!(client.run("LOCK.ACQUIRE k a SHARED ID one"), a);
    assert_eq!(client.run("LOCK.ACQUIRE k b SHARED ID one"), b);
    assert!(client.run("LOCK.ACQUIRE k c ID one").is_nil());
    let info = client.run("LOCK.INFO k");
    assert_eq!(holders(&info).len(), 2);
    assert_eq!(holder(&info, "a").field("count"), &1);
}

#[test]
fn an_id_belongs_to_one_key() {
    let (_server, mut client) = server_and_client();
    let k = fence(&client.run("LOCK.ACQUIRE k me ID one"));
    let other = fence(&client.run("LOCK.ACQUIRE other me ID one"));
    assert_ne!(k, other);
}

#[test]
fn a_refused_acquire_may_be_tried_again_with_its_id() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k you");
    assert!(client.run("LOCK.ACQUIRE k me ID one").is_nil());
    client.run("LOCK.RELEASE k you");
    fence(&client.run("LOCK.ACQUIRE k me ID one"));
}

#[test]
fn a_repeated_release_returns_the_first_count_and_changes_nothing() {
    let (_server, mut client) = server_and_client();
    for _ in 0..3 {
        client.run("LOCK.ACQUIRE k me");
    }
    assert_eq!(client.run("LOCK.RELEASE k me ID one"), 2);
    let digest = client.run("DEBUG DIGEST");
    assert_eq!(client.run("LOCK.RELEASE k me ID one"), 2);
    assert_eq!(client.run("LOCK.RELEASE k me ID one"), 2);
    assert_eq!(client.run("DEBUG DIGEST"), digest);
    assert_eq!(client.run("LOCK.RELEASE k me ID two"), 1);
    assert_eq!(client.run("LOCK.RELEASE k me ID two"), 1);
    assert_eq!(client.run("LOCK.RELEASE k me ID three"), 0);
    // The final one finds nothing held.
    assert!(client.run("LOCK.RELEASE k me ID three").is_nil());
}

#[test]
fn acquire_and_release_may_use_the_same_id() {
    let (_server, mut client) = server_and_client();
    let first = fence(&client.run("LOCK.ACQUIRE k me"));
    assert_eq!(client.run("LOCK.ACQUIRE k me ID one"), first);
    // A RELEASE is no repetition of an ACQUIRE: it releases.
    assert_eq!(client.run("LOCK.RELEASE k me ID one"), 1);
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), 1)]);
    assert_eq!(client.run("LOCK.RELEASE k me ID one"), 1);
}

#[test]
fn an_id_does_not_outlive_the_hold() {
    let (_server, mut client) = server_and_client();
    let first = fence(&client.run("LOCK.ACQUIRE k me ID one"));
    client.run("LOCK.RELEASE k me");
    let second = fence(&client.run("LOCK.ACQUIRE k me ID one"));
    assert!(second > first, "a fence of a hold that is over is useless");
    assert_eq!(client.run("LOCK.HELD k me"), second);
}

#[test]
fn a_repeated_acquire_after_another_holder_came_is_no_success() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me ID one PX 20");
    await_gone(&mut client, "k");
    client.run("LOCK.ACQUIRE k you");
    assert!(client.run("LOCK.ACQUIRE k me ID one").is_nil());
}

#[test]
fn macquire_and_mrelease_are_safe_to_repeat() {
    let (_server, mut client) = server_and_client();
    let first = client.run("LOCK.MACQUIRE 2 a b me ID one PX 100000");
    let digest = client.run("DEBUG DIGEST");
    assert_eq!(client.run("LOCK.MACQUIRE 2 a b me ID one PX 900000"), first);
    assert_eq!(client.run("DEBUG DIGEST"), digest);
    client.run("LOCK.MACQUIRE 2 a b me ID two");
    let left = client.run("LOCK.MRELEASE 2 a b me ID three");
    assert_eq!(left, Value::Array(vec![Value::Int(1), Value::Int(1)]));
    assert_eq!(client.run("LOCK.MRELEASE 2 a b me ID three"), left);
    assert_eq!(holders(&client.run("LOCK.INFO a")), [("me".into(), 1)]);
    assert_eq!(holders(&client.run("LOCK.INFO b")), [("me".into(), 1)]);
    let left = client.run("LOCK.MRELEASE 2 a b me ID four");
    assert_eq!(left, Value::Array(vec![Value::Int(0), Value::Int(0)]));
    let left = client.run("LOCK.MRELEASE 2 a b me ID four");
    assert_eq!(left, Value::Array(vec![Value::Nil, Value::Nil]));
}

#[test]
fn ids_and_counts_survive_a_reload() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let first = fence(&client.run("LOCK.ACQUIRE k me ID one"));
    client.run("LOCK.ACQUIRE k me ID two");
    assert_eq!(client.run("LOCK.RELEASE k me ID rel"), 2);
    let digest = client.run("DEBUG DIGEST");
    client.run("DEBUG RELOAD");
    assert_eq!(client.run("DEBUG DIGEST"), digest);
    assert_eq!(client.run("LOCK.ACQUIRE k me ID two"), first);
    assert_eq!(client.run("LOCK.RELEASE k me ID rel"), 2);
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), 2)]);
}

// MACQUIRE and MRELEASE

#[test]
fn macquire_takes_all_keys_or_none() {
    let (_server, mut client) = server_and_client();
    let fences = client.run("LOCK.MACQUIRE 3 a b c me PX 100000");
    let fences: Vec<_> = fences.array().iter().map(fence).collect();
    assert_eq!(fences.len(), 3);
    for (key, fence) in ["a", "b", "c"].into_iter().zip(fences) {
        assert_eq!(client.call(["LOCK.HELD", key, "me"]), fence);
        about(client.call(["PTTL", key]).int(), 100_000);
    }
    let digest = client.run("DEBUG DIGEST");
    assert!(client.run("LOCK.MACQUIRE 3 x b y you").is_nil());
    assert!(client.run("LOCK.MACQUIRE 3 x y c you").is_nil());
    assert_eq!(client.run("DEBUG DIGEST"), digest);
    client.run("LOCK.RELEASE b me");
    client.run("LOCK.MACQUIRE 2 x b you");
    assert_eq!(client.run("EXISTS x b"), 2);
}

#[test]
fn macquire_reenters_what_the_owner_holds() {
    let (_server, mut client) = server_and_client();
    let a = fence(&client.run("LOCK.ACQUIRE a me"));
    let fences = client.run("LOCK.MACQUIRE 2 a b me");
    assert_eq!(fences.array()[0], a);
    assert!(fence(&fences.array()[1]) > a);
    assert_eq!(holders(&client.run("LOCK.INFO a")), [("me".into(), 2)]);
    assert_eq!(holders(&client.run("LOCK.INFO b")), [("me".into(), 1)]);
}

#[test]
fn macquire_is_exclusive_and_so_nil_for_an_owner_that_shares_one_of_the_locks() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE a me SHARED");
    assert!(client.run("LOCK.MACQUIRE 2 a b me").is_nil());
    // It would wait for itself.
    assert!(client.run("LOCK.MACQUIRE 2 a b me BLOCK 0").is_nil());
    assert_eq!(client.run("EXISTS b"), 0);
    assert_eq!(client.run("LOCK.MACQUIRE 2 a b me SHARED").err(), SYNTAX);
}

#[test]
fn mrelease_tells_of_each_key_what_is_left() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.MACQUIRE 2 a b me");
    client.run("LOCK.ACQUIRE a me");
    client.run("LOCK.ACQUIRE theirs you");
    let left = client.run("LOCK.MRELEASE 4 a b free theirs me");
    let expected = vec![Value::Int(1), Value::Int(0), Value::Nil, Value::Nil];
    assert_eq!(left, Value::Array(expected));
    client.run("LOCK.ACQUIRE a me");
    let left = client.run("LOCK.MRELEASE 2 a b me ALL");
    assert_eq!(left, Value::Array(vec![Value::Int(0), Value::Nil]));
    assert_eq!(client.run("EXISTS a b"), 0);
    assert_eq!(client.run("EXISTS theirs"), 1);
}

#[test]
fn several_keys_with_one_of_another_type_change_nothing() {
    let (_server, mut client) = server_and_client();
    client.run("SET string value");
    client.run("LOCK.ACQUIRE a me");
    client.run("SEM.ACQUIRE sem me LIMIT 3");
    let digest = client.run("DEBUG DIGEST");
    for other in ["string", "sem"] {
        let reply = client.call(["LOCK.MACQUIRE", "3", "a", "new", other, "me"]);
        assert_eq!(reply.err(), WRONGTYPE);
        let reply = client.call(["LOCK.MRELEASE", "3", "a", "new", other, "me"]);
        assert_eq!(reply.err(), WRONGTYPE);
        // Also when another key would refuse anyway.
        let reply = client.call(["LOCK.MACQUIRE", "2", "a", other, "you"]);
        assert_eq!(reply.err(), WRONGTYPE);
    }
    assert_eq!(client.run("DEBUG DIGEST"), digest);
}

// INFO

#[test]
fn info_of_a_lock_is_a_map_in_resp3_and_a_flat_array_in_resp2() {
    let (server, mut client) = server_and_client();
    assert!(client.run("LOCK.INFO k").is_nil());
    let first = fence(&client.run("LOCK.ACQUIRE k me PX 100000 WATCHDOG"));
    let _other = waiter(&server, "LOCK.ACQUIRE k you SHARED BLOCK 90000");
    let _third = waiter(&server, "LOCK.ACQUIRE k third BLOCK 0");

    let flat = client.run("LOCK.INFO k");
    let mut modern = Raw::connect(&server);
    modern.hello3();
    let map = modern.run("LOCK.INFO k");
    assert!(matches!(flat, Value::Array(_)), "{flat:?}");
    assert!(matches!(map, Value::Map(_)), "{map:?}");
    assert!(matches!(flat.field("holders").array()[0], Value::Array(_)));
    assert!(matches!(map.field("holders").array()[0], Value::Map(_)));
    assert!(matches!(map.field("waiters").array()[0], Value::Map(_)));

    for info in [flat, map] {
        let names: Vec<_> = info.fields().iter().map(|(name, _)| name.text()).collect();
        assert_eq!(names, ["mode", "holders", "waiters"]);
        assert_eq!(info.field("mode"), &"exclusive");
        let me = holder(&info, "me");
        let names: Vec<_> = me.fields().iter().map(|(name, _)| name.text()).collect();
        assert_eq!(names, ["owner", "count", "fence", "lease_ms", "watchdog"]);
        assert_eq!(me.field("count"), &1);
        assert_eq!(me.field("fence"), &first);
        about(me.field("lease_ms").int(), 100_000);
        assert!(is_watched(&info, "me"));

        assert_eq!(queue(&info), ["you", "third"]);
        let waiters = info.field("waiters").array();
        let names: Vec<_> = waiters[0].fields().iter().map(|f| f.0.text()).collect();
        assert_eq!(names, ["owner", "mode", "waiting_ms", "timeout_ms"]);
        assert_eq!(waiters[0].field("mode"), &"shared");
        assert_eq!(waiters[1].field("mode"), &"exclusive");
        about(waiters[0].field("timeout_ms").int(), 90_000);
        assert_eq!(waiters[1].field("timeout_ms"), &0);
        for waiter in waiters {
            let waiting = waiter.field("waiting_ms").int();
            assert!((0..20_000).contains(&waiting), "{waiting}");
        }
    }
}

#[test]
fn nil_and_integers_have_the_shapes_of_each_protocol() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let mut raw_nil = |line: &str| {
        client.ask(line);
        client.read()
    };
    assert_eq!(raw_nil("LOCK.ACQUIRE k you"), Value::Nil);
    assert_eq!(raw_nil("LOCK.MACQUIRE 2 k j you"), Value::Nil);
    let mut modern = Raw::connect(&server);
    modern.hello3();
    assert_eq!(modern.run("LOCK.ACQUIRE k you"), Value::Nil);
    assert!(matches!(modern.run("LOCK.ACQUIRE k me"), Value::Int(_)));
    assert_eq!(modern.run("LOCK.RELEASE k me"), Value::Int(1));
    let fences = modern.run("LOCK.MACQUIRE 2 x y me");
    assert!(matches!(fences, Value::Array(_)), "{fences:?}");
    let left = modern.run("LOCK.MRELEASE 2 x z me");
    assert_eq!(left, Value::Array(vec![Value::Int(0), Value::Nil]));
    assert_eq!(modern.run("LOCK.GUARD g 1"), Value::Int(1));
}

// GUARD

#[test]
fn guard_remembers_the_largest_fence_and_refuses_smaller_ones() {
    let (_server, mut client) = server_and_client();
    assert_eq!(client.run("LOCK.GUARD g 10"), 1);
    assert_eq!(client.run("LOCK.GUARD g 10"), 1);
    assert_eq!(client.run("LOCK.GUARD g 9"), 0);
    assert_eq!(client.run("LOCK.GUARD g 11"), 1);
    assert_eq!(client.run("LOCK.GUARD g 10"), 0);
    assert_eq!(client.run("LOCK.GUARD g 9007199254740991"), 1);
    assert_eq!(client.run("LOCK.GUARD g 9007199254740990"), 0);
    assert_eq!(client.run("GET g"), "9007199254740991");
    assert_eq!(client.run("TYPE g"), "string");
}

#[test]
fn the_guard_is_a_plain_string_that_may_expire() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.GUARD g 5");
    assert_eq!(client.run("PTTL g"), -1);
    assert_eq!(client.run("GET g"), "5");
    client.run("LOCK.GUARD h 5 PX 100000");
    about(client.run("PTTL h").int(), 100_000);
    assert_eq!(client.run("LOCK.GUARD h 4 PX 900000"), 0);
    about(client.run("PTTL h").int(), 100_000);
    client.run("LOCK.GUARD h 6 PX 300000");
    about(client.run("PTTL h").int(), 300_000);
    client.run("LOCK.GUARD i 5 PX 20");
    await_gone(&mut client, "i");
    assert_eq!(client.run("LOCK.GUARD i 1"), 1);
    // A number that a client has put there itself counts.
    client.run("SET j 100");
    assert_eq!(client.run("LOCK.GUARD j 99"), 0);
    assert_eq!(client.run("LOCK.GUARD j 101"), 1);
    // The guard takes the fences that the locks give.
    let fence = fence(&client.run("LOCK.ACQUIRE k me"));
    assert_eq!(client.call(["LOCK.GUARD", "g", &fence.to_string()]), 1);
    assert_eq!(client.call(["GET", "g"]), fence.to_string().as_str());
}

// INFO sluice

/// Runs `line` and tells by how much each counter has changed, leaving out those that have not.
fn changes(client: &mut Raw, line: &str) -> Vec<(&'static str, i64)> {
    let before = client.run("INFO sluice");
    client.run(line);
    let after = client.run("INFO sluice");
    COUNTERS
        .into_iter()
        .map(|name| {
            let field = format!("sluice_lock_{name}");
            (name, field_of(&after, &field) - field_of(&before, &field))
        })
        .filter(|(_, change)| *change != 0)
        .collect()
}

const COUNTERS: [&str; 12] = [
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

#[test]
fn each_command_counts_what_it_does() {
    let (_server, mut client) = server_and_client();
    let mut changes = |line| {
        let mut changes = changes(&mut client, line);
        changes.sort_unstable();
        changes
    };
    assert_eq!(changes("LOCK.ACQUIRE k me"), [("acquired", 1)]);
    assert_eq!(changes("LOCK.ACQUIRE k me"), [("reentered", 1)]);
    assert_eq!(changes("LOCK.ACQUIRE k you"), [("refused", 1)]);
    assert_eq!(changes("LOCK.RENEW k me"), [("renewed", 1)]);
    assert_eq!(changes("LOCK.RENEW k you"), []);
    assert_eq!(changes("LOCK.HELD k me"), []);
    assert_eq!(changes("LOCK.RELEASE k me"), []);
    assert_eq!(changes("LOCK.RELEASE k me"), []);
    assert_eq!(changes("LOCK.MACQUIRE 3 a b c me"), [("acquired", 3)]);
    assert_eq!(changes("LOCK.MACQUIRE 2 a z you"), [("refused", 1)]);
    assert_eq!(
        changes("SEM.ACQUIRE s me LIMIT 3 PERMITS 2"),
        [("acquired", 1)]
    );
    assert_eq!(changes("SEM.ACQUIRE s me LIMIT 3"), [("reentered", 1)]);
    assert_eq!(changes("SEM.ACQUIRE s you LIMIT 3"), [("refused", 1)]);
    assert_eq!(changes("SEM.RENEW s me"), [("renewed", 1)]);
    assert_eq!(
        changes("LOCK.ACQUIRE w me WATCHDOG"),
        [("acquired", 1), ("watchdog_holds", 1)]
    );
    assert_eq!(changes("LOCK.RELEASE w me"), [("watchdog_holds", -1)]);
    // A repetition with an id changes nothing, and errors neither.
    assert_eq!(changes("LOCK.ACQUIRE i me ID one"), [("acquired", 1)]);
    assert_eq!(changes("LOCK.ACQUIRE s me"), []);
    assert_eq!(changes("LOCK.ACQUIRE k me PX 0"), []);
}

#[test]
fn waits_and_ended_leases_are_counted() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    assert_eq!(server.info_int("sluice_lock_waiting"), 1);
    assert_eq!(server.info_int("sluice_lock_waited"), 1);
    client.run("LOCK.RELEASE k me");
    fence(&next.read());
    assert_eq!(server.info_int("sluice_lock_waiting"), 0);
    assert_eq!(server.info_int("sluice_lock_handoffs"), 1);
    assert_eq!(server.info_int("sluice_lock_acquired"), 2);

    assert!(client.run("LOCK.ACQUIRE k me BLOCK 20").is_nil());
    assert_eq!(server.info_int("sluice_lock_timeouts"), 1);
    assert_eq!(server.info_int("sluice_lock_waited"), 2);
    assert_eq!(server.info_int("sluice_lock_handoffs"), 1);

    client.run("LOCK.RENEW k you PX 20");
    await_gone(&mut client, "k");
    eventually(SOON, || server.info_int("sluice_lock_expired_leases") == 1);
    // Each lease counts, not each key.
    client.run("LOCK.ACQUIRE k a SHARED PX 20");
    client.run("LOCK.ACQUIRE k b SHARED PX 30");
    client.run("LOCK.ACQUIRE k c SHARED PX 100000");
    // That of `c` is renewed until the two others are over: they count at the latest when the lock changes.
    eventually(SOON, || {
        client.run("LOCK.RENEW k c PX 100000");
        server.info_int("sluice_lock_expired_leases") == 3
    });
    assert_eq!(server.info_int("sluice_lock_deadlocks"), 0);
}

#[test]
fn a_lease_counts_as_ended_in_whichever_millisecond_the_server_removes_its_key() {
    let (server, mut client) = server_and_client();
    // Redis 8.0 and later do that in the last millisecond of the lease: of so many, some meet it.
    for number in 0..1000 {
        let lease = 100 + number % 200;
        client.send(format!("LOCK.ACQUIRE k{number} me PX {lease}").split(' '));
    }
    for _ in 0..1000 {
        fence(&client.read());
    }
    eventually(SOON, || client.run("DBSIZE") == 0);
    assert_eq!(server.info_int("sluice_lock_expired_leases"), 1000);
}

#[test]
fn info_has_the_section_of_the_locks_when_asked_for_the_module() {
    let (_server, mut client) = server_and_client();
    let info = client.run("INFO sluice");
    for name in COUNTERS {
        assert_eq!(field_of(&info, &format!("sluice_lock_{name}")), 0, "{name}");
    }
    assert!(info.text().contains("# sluice_lock"), "{info:?}");
}

// Keyspace events

#[test]
fn each_change_emits_an_event_of_the_module_class() {
    let (server, mut client) = server_and_client();
    let mut events = KeyspaceEvents::of(&server, "Ed");
    let mut after = |line: &str| {
        client.run(line);
        events.take()
    };
    assert_eq!(after("LOCK.ACQUIRE k me SHARED"), ["lock.acquire k"]);
    assert_eq!(after("LOCK.ACQUIRE k me SHARED"), ["lock.acquire k"]);
    assert_eq!(after("LOCK.RENEW k me"), ["lock.renew k"]);
    assert_eq!(after("LOCK.UPGRADE k me"), ["lock.upgrade k"]);
    assert_eq!(after("LOCK.DOWNGRADE k me"), ["lock.downgrade k"]);
    assert_eq!(after("LOCK.RELEASE k me"), ["lock.release k"]);
    assert_eq!(after("LOCK.RELEASE k me"), ["lock.release k"]);
    assert_eq!(
        after("LOCK.MACQUIRE 2 a b me"),
        ["lock.macquire a", "lock.macquire b"]
    );
    assert_eq!(
        after("LOCK.MRELEASE 2 a b me"),
        ["lock.mrelease a", "lock.mrelease b"]
    );
    assert_eq!(after("LOCK.GUARD g 5"), ["lock.guard g"]);
    assert_eq!(after("SEM.ACQUIRE s me LIMIT 2"), ["sem.acquire s"]);
    assert_eq!(after("SEM.RENEW s me"), ["sem.renew s"]);
    assert_eq!(after("SEM.RELEASE s me"), ["sem.release s"]);
}

#[test]
fn what_changes_nothing_emits_nothing() {
    let (server, mut client) = server_and_client();
    // Long leases: what would make them longer is a change.
    client.run("LOCK.ACQUIRE k me PX 600000 ID one");
    client.run("LOCK.ACQUIRE k me ID two");
    client.run("LOCK.RELEASE k me ID rel");
    client.run("SEM.ACQUIRE s me LIMIT 1 PX 600000");
    client.run("LOCK.GUARD g 5");
    let mut events = KeyspaceEvents::of(&server, "KEA");
    for line in [
        "LOCK.ACQUIRE k you",
        "LOCK.ACQUIRE k me ID two",
        "LOCK.RELEASE k me ID rel",
        "LOCK.RELEASE k you",
        "LOCK.RENEW k you",
        "LOCK.UPGRADE k me",
        "LOCK.UPGRADE k you",
        "LOCK.DOWNGRADE k you",
        "LOCK.HELD k me",
        "LOCK.INFO k",
        "LOCK.MACQUIRE 2 k new you",
        "LOCK.MRELEASE 2 k new you",
        "LOCK.GUARD g 4",
        "SEM.ACQUIRE s you LIMIT 1",
        "SEM.RELEASE s you",
        "SEM.RENEW s you",
        "SEM.INFO s",
        "LOCK.ACQUIRE s me",
        "LOCK.ACQUIRE k me PX 0",
    ] {
        client.run(line);
        assert_eq!(events.take(), [""; 0], "{line}");
    }
}

#[test]
fn the_end_of_a_lock_emits_what_other_keys_emit() {
    let (server, mut client) = server_and_client();
    let mut events = KeyspaceEvents::of(&server, "KEA");
    client.run("LOCK.ACQUIRE k me PX 20");
    await_gone(&mut client, "k");
    let seen = events.take();
    assert!(seen.contains(&"expired k".to_string()), "{seen:?}");
    client.run("LOCK.ACQUIRE k me");
    client.run("DEL k");
    let seen = events.take();
    assert!(seen.contains(&"del k".to_string()), "{seen:?}");
}

#[test]
fn serving_a_waiter_emits_an_event() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    let mut events = KeyspaceEvents::of(&server, "Ed");
    client.run("LOCK.RELEASE k me");
    fence(&next.read());
    assert_eq!(events.take(), ["lock.release k", "lock.acquire k"]);
}

// Transactions, tracking

#[test]
fn only_what_changes_a_lock_aborts_a_transaction_that_watches_it() {
    let (server, mut client) = server_and_client();
    let mut other = Raw::connect(&server);
    // Long leases: what would make them longer is a change.
    other.run("LOCK.ACQUIRE k me PX 100000 ID one");
    other.run("SEM.ACQUIRE s me LIMIT 1 PX 100000");
    other.run("LOCK.GUARD g 5");
    let mut survives = |line: &str| {
        client.run("WATCH k s g free");
        other.run(line);
        client.run("MULTI");
        client.run("PING");
        !client.run("EXEC").is_nil()
    };
    for line in [
        "LOCK.ACQUIRE k you",
        "LOCK.ACQUIRE k you SHARED",
        "LOCK.ACQUIRE k you BLOCK 10",
        "LOCK.ACQUIRE k me ID one",
        "LOCK.RELEASE k you",
        "LOCK.RENEW k you",
        "LOCK.UPGRADE k you",
        "LOCK.UPGRADE k me",
        "LOCK.DOWNGRADE k you",
        "LOCK.MACQUIRE 2 k free you",
        "LOCK.MRELEASE 2 k free you",
        "LOCK.HELD k me",
        "LOCK.INFO k",
        "LOCK.GUARD g 4",
        "SEM.ACQUIRE s you LIMIT 1",
        "SEM.RELEASE s you",
    ] {
        assert!(survives(line), "{line} aborts the transaction");
    }
    for line in [
        "LOCK.ACQUIRE k me",
        "LOCK.RENEW k me",
        "LOCK.RELEASE k me",
        "LOCK.DOWNGRADE k me",
        "LOCK.UPGRADE k me",
        "LOCK.RELEASE k me",
        "LOCK.ACQUIRE free me",
        "LOCK.GUARD g 6",
        "SEM.RENEW s me",
        "SEM.RELEASE s me",
        "LOCK.MACQUIRE 2 k s me",
        "LOCK.MRELEASE 2 k s me",
    ] {
        assert!(!survives(line), "{line} does not abort the transaction");
    }
}

#[test]
fn serving_a_waiter_aborts_a_transaction_that_watches_the_lock() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 100000");
    let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    let mut watcher = Raw::connect(&server);
    watcher.run("WATCH k");
    client.run("LOCK.RENEW k me PX 20");
    fence(&next.read());
    watcher.run("MULTI");
    watcher.run("PING");
    assert!(watcher.run("EXEC").is_nil());
}

#[test]
fn in_a_transaction_block_counts_as_not_given() {
    let (server, mut client) = server_and_client();
    let mut other = Raw::connect(&server);
    other.run("LOCK.ACQUIRE k you SHARED");
    other.run("SEM.ACQUIRE s you LIMIT 1");
    client.run("LOCK.ACQUIRE k me SHARED");
    client.run("MULTI");
    for line in [
        "LOCK.ACQUIRE k third BLOCK 0",
        "LOCK.UPGRADE k me BLOCK 0",
        "LOCK.MACQUIRE 2 k x me BLOCK 0",
        "SEM.ACQUIRE s me LIMIT 1 BLOCK 0",
        "LOCK.ACQUIRE free me BLOCK 0",
        "LOCK.RELEASE free me",
    ] {
        assert_eq!(client.run(line), "QUEUED");
    }
    let replies = client.run("EXEC");
    let replies = replies.array();
    for reply in &replies[..4] {
        assert!(reply.is_nil(), "{replies:?}");
    }
    fence(&replies[4]);
    assert_eq!(replies[5], 0);
    assert_eq!(server.info_int("sluice_lock_waiting"), 0);
}

#[test]
fn a_release_in_a_transaction_serves_the_waiter_after_it() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    client.run("MULTI");
    client.run("LOCK.RELEASE k me");
    client.run("LOCK.HELD k me");
    client.run("SET other value");
    let replies = client.run("EXEC");
    assert_eq!(replies.array()[0], 0);
    assert!(replies.array()[1].is_nil());
    let given = fence(&next.read());
    assert_eq!(client.run("LOCK.HELD k you"), given);
}

#[test]
fn tracking_clients_hear_of_every_change() {
    let (server, mut client) = server_and_client();
    let mut tracker = Raw::connect(&server);
    tracker.hello3();
    assert_eq!(tracker.run("CLIENT TRACKING ON"), "OK");
    client.run("LOCK.ACQUIRE k me");
    let mut hears = |read: &str, change: &str| {
        tracker.run(read);
        client.run(change);
        let pushes = until_pong(&mut tracker);
        pushes.iter().any(|push| {
            let parts = push.array();
            parts[0] == "invalidate" && parts[1].array()[0] == "k"
        })
    };
    assert!(!hears("LOCK.HELD k me", "LOCK.ACQUIRE k you"));
    assert!(hears("LOCK.HELD k me", "LOCK.ACQUIRE k me"));
    assert!(hears("LOCK.INFO k", "LOCK.RENEW k me"));
    assert!(hears("LOCK.HELD k me", "LOCK.DOWNGRADE k me"));
    assert!(hears("LOCK.HELD k me", "LOCK.UPGRADE k me"));
    assert!(hears("LOCK.INFO k", "LOCK.RELEASE k me ALL"));
    assert!(hears("LOCK.HELD k me", "LOCK.ACQUIRE k me"));
    assert!(hears("LOCK.HELD k me", "DEL k"));
    assert!(hears("SEM.INFO k", "SEM.ACQUIRE k me LIMIT 2"));
    assert!(hears("SEM.INFO k", "SEM.RELEASE k me"));
}

#[test]
fn tracking_clients_hear_of_the_end_of_a_lease() {
    let (server, mut client) = server_and_client();
    let mut tracker = with_growing_lease(100, |lease| {
        let mut tracker = Raw::connect(&server);
        tracker.hello3();
        tracker.run("CLIENT TRACKING ON");
        client.run(&format!("LOCK.ACQUIRE k me PX {lease}"));
        let held = tracker.run("LOCK.HELD k me");
        (!held.is_nil()).then_some(tracker)
    });
    let push = tracker.read_within(SOON);
    let push = push.expect("no invalidation although the lock is gone");
    assert_eq!(push.array()[0], "invalidate");
}

// Lua and functions

/// `EVAL` with the script and words for its keys and arguments.
fn eval(client: &mut Raw, script: &str, rest: &str) -> Value {
    let command = ["EVAL", script].into_iter();
    client.call(command.chain(rest.split_whitespace()))
}

#[test]
fn scripts_call_the_commands_and_read_integers_exactly() {
    let (_server, mut client) = server_and_client();
    let script = "local f = redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1])
        return {string.format('%.0f', f), f}";
    let replies = eval(&mut client, script, "1 k me");
    let held = fence(&client.run("LOCK.HELD k me"));
    assert_eq!(replies.array()[0], held.to_string().as_str());
    assert_eq!(replies.array()[1], held);

    let script = "return redis.call('LOCK.GUARD', KEYS[1], ARGV[1])";
    let reply = eval(&mut client, script, &format!("1 g {held}"));
    assert_eq!(reply, 1);
    assert_eq!(client.run("GET g"), held.to_string().as_str());
    let script = "return redis.call('LOCK.RELEASE', KEYS[1], ARGV[1])";
    assert_eq!(eval(&mut client, script, "1 k me"), 0);
    assert!(eval(&mut client, script, "1 k me").is_nil());
    // A refusal is `false` in Lua, as every nil.
    let script = "return tostring(redis.call('LOCK.HELD', KEYS[1], ARGV[1]))";
    assert_eq!(eval(&mut client, script, "1 k me"), "false");
    // INFO is a map for scripts that ask for RESP3.
    client.run("LOCK.ACQUIRE k me");
    let script = "redis.setresp(3)
        local info = redis.call('LOCK.INFO', KEYS[1])
        return {info.map.mode, info.map.holders[1].map.owner}";
    let reply = eval(&mut client, script, "1 k");
    assert_eq!(reply.array()[0], "exclusive");
    assert_eq!(reply.array()[1], "me");
}

#[test]
fn scripts_cannot_block() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k you");
    client.run("SEM.ACQUIRE s you LIMIT 1");
    for script in [
        "return redis.call('LOCK.ACQUIRE', KEYS[1], 'me', 'BLOCK', 0)",
        "return redis.call('LOCK.MACQUIRE', 1, KEYS[1], 'me', 'BLOCK', 0)",
        "return redis.call('SEM.ACQUIRE', KEYS[2], 'me', 'LIMIT', 1, 'BLOCK', 0)",
    ] {
        assert!(eval(&mut client, script, "2 k s").is_nil(), "{script}");
    }
    assert_eq!(server.info_int("sluice_lock_waiting"), 0);
    assert_eq!(server.info_int("sluice_lock_refused"), 3);
}

#[test]
fn errors_in_scripts_are_errors_and_leave_the_server_well() {
    let (_server, mut client) = server_and_client();
    client.run("SET string value");
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'me')";
    let reply = eval(&mut client, script, "1 string");
    assert!(reply.err().starts_with("WRONGTYPE"), "{reply:?}");
    let script = "return redis.pcall('LOCK.ACQUIRE', KEYS[1], 'me', 'PX').err";
    assert_eq!(eval(&mut client, script, "1 k"), SYNTAX);
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1])";
    assert!(eval(&mut client, script, "1 k").is_err());
    assert_eq!(client.run("EXISTS k"), 0);
}

#[test]
fn read_only_scripts_may_read_and_not_write() {
    let (_server, mut client) = server_and_client();
    let held = fence(&client.run("LOCK.ACQUIRE k me"));
    let script = "return redis.call('LOCK.HELD', KEYS[1], 'me')";
    assert_eq!(client.call(["EVAL_RO", script, "1", "k"]), held);
    let script = "return redis.call('LOCK.RELEASE', KEYS[1], 'me')";
    assert!(client.call(["EVAL_RO", script, "1", "k"]).is_err());
    assert_eq!(client.run("LOCK.HELD k me"), held);
}

#[test]
fn functions_call_the_commands() {
    let (_server, mut client) = server_and_client();
    let library = "#!lua name=locks
        redis.register_function('take', function(keys, args)
            return redis.call('LOCK.ACQUIRE', keys[1], args[1], 'BLOCK', 0, 'PX', 100000)
        end)
        redis.register_function{
            function_name = 'look', flags = {'no-writes'},
            callback = function(keys, args) return redis.call('LOCK.HELD', keys[1], args[1]) end }";
    assert_eq!(client.call(["FUNCTION", "LOAD", library]), "locks");
    let taken = fence(&client.run("FCALL take 1 k me"));
    assert_eq!(client.run("FCALL_RO look 1 k me"), taken);
    assert!(client.run("FCALL take 1 k you").is_nil());
}

#[test]
fn a_release_in_a_script_serves_the_waiter() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    let script =
        "redis.call('LOCK.RELEASE', KEYS[1], 'me') return redis.call('LOCK.HELD', KEYS[1], 'me')";
    assert!(eval(&mut client, script, "1 k").is_nil());
    assert_eq!(client.run("LOCK.HELD k you"), fence(&next.read()));
}

// What the server tells about the commands

const ALL: [&str; 18] = [
    "lock.acquire",
    "lock.release",
    "lock.renew",
    "lock.upgrade",
    "lock.downgrade",
    "lock.macquire",
    "lock.mrelease",
    "lock.cancel",
    "lock.held",
    "lock.info",
    "lock.guard",
    "sem.acquire",
    "sem.release",
    "sem.renew",
    "sem.macquire",
    "sem.mrelease",
    "sem.cancel",
    "sem.info",
];

#[test]
fn each_command_is_documented() {
    let (_server, mut client) = server_and_client();
    for name in ALL {
        let docs = client.call(["COMMAND", "DOCS", name]);
        let docs = docs.field(name);
        for field in ["summary", "complexity"] {
            assert!(!docs.field(field).text().is_empty(), "{name} {field}");
        }
        let arguments = docs.field("arguments").array();
        assert!(!arguments.is_empty(), "{name} has no arguments");
        let token = |argument: &Value| argument.get("token").map(|token| token.text().to_string());
        let mut tokens: Vec<_> = Vec::new();
        for argument in arguments {
            tokens.extend(token(argument));
            if let Some(inner) = argument.get("arguments") {
                tokens.extend(inner.array().iter().filter_map(token));
            }
        }
        let expected: &[&str] = match name {
            "lock.acquire" => &[
                "SHARED", "PX", "BLOCK", "WATCHDOG", "MAXHOLD", "LINGER", "ID", "NOTIFY",
            ],
            "lock.release" | "lock.mrelease" => &["ALL", "ID"],
            "lock.renew" | "sem.renew" | "lock.guard" => &["PX"],
            "lock.upgrade" => &["PX", "BLOCK"],
            "lock.macquire" => &[
                "PX", "BLOCK", "WATCHDOG", "MAXHOLD", "LINGER", "ID", "NOTIFY",
            ],
            "sem.acquire" => &[
                "LIMIT", "PERMITS", "PX", "BLOCK", "WATCHDOG", "MAXHOLD", "LINGER", "ID", "NOTIFY",
            ],
            "sem.macquire" => &[
                "PERMITS", "PX", "BLOCK", "WATCHDOG", "MAXHOLD", "LINGER", "ID", "NOTIFY",
            ],
            "sem.release" | "sem.mrelease" => &["PERMITS", "ALL", "ID"],
            _ => &[],
        };
        assert_eq!(tokens, expected, "{name}");
    }
}

#[test]
fn each_command_has_its_arity_and_flags() {
    let (_server, mut client) = server_and_client();
    for name in ALL {
        let info = client.call(["COMMAND", "INFO", name]);
        let info = info.array()[0].array();
        let arity = match name {
            "lock.acquire" | "lock.release" | "lock.renew" | "lock.upgrade" | "lock.guard"
            | "sem.release" | "sem.renew" => -3,
            "lock.downgrade" | "lock.held" | "lock.cancel" | "sem.cancel" => 3,
            "lock.macquire" | "lock.mrelease" | "sem.mrelease" => -4,
            "lock.info" | "sem.info" => 2,
            _ => -5,
        };
        assert_eq!(info[1], arity, "{name}");
        let flags: Vec<_> = info[2].array().iter().map(Value::text).collect();
        let reads = matches!(name, "lock.held" | "lock.info" | "sem.info");
        assert_eq!(flags.contains(&"readonly"), reads, "{name} {flags:?}");
        assert_eq!(flags.contains(&"write"), !reads, "{name} {flags:?}");
        let blocks = matches!(
            name,
            "lock.acquire" | "lock.macquire" | "lock.upgrade" | "sem.acquire" | "sem.macquire"
        );
        assert_eq!(flags.contains(&"blocking"), blocks, "{name} {flags:?}");
    }
}

#[test]
fn keys_are_found_in_every_form_of_the_commands() {
    let (_server, mut client) = server_and_client();
    let mut keys = |line: &str| {
        let command = format!("COMMAND GETKEYS {line}");
        let keys = client.run(&command);
        let keys: Vec<_> = keys
            .array()
            .iter()
            .map(|key| key.text().to_string())
            .collect();
        keys.join(" ")
    };
    for line in [
        "LOCK.ACQUIRE k me PX 5",
        "LOCK.RELEASE k me",
        "LOCK.RENEW k me",
        "LOCK.UPGRADE k me",
        "LOCK.DOWNGRADE k me",
        "LOCK.HELD k me",
        "LOCK.INFO k",
        "LOCK.GUARD k 5",
        "SEM.ACQUIRE k me LIMIT 3",
        "SEM.RELEASE k me",
        "SEM.RENEW k me",
        "SEM.INFO k",
        "LOCK.MACQUIRE 1 k me",
        "LOCK.MRELEASE 1 k me",
        "LOCK.CANCEL k id",
        "SEM.MACQUIRE 1 k 5 me",
        "SEM.MRELEASE 1 k me",
        "SEM.CANCEL k id",
    ] {
        assert_eq!(keys(line), "k", "{line}");
    }
    assert_eq!(keys("LOCK.MACQUIRE 3 a b c me PX 5"), "a b c");
    assert_eq!(keys("LOCK.MRELEASE 2 a b me ALL"), "a b");
    assert_eq!(keys("SEM.MACQUIRE 2 a 1 b 2 me PX 5"), "a b");
}

#[test]
fn access_rules_hold_for_keys_and_commands() {
    let (server, mut client) = server_and_client();
    client.run("ACL SETUSER app on nopass ~app:* %R~shared:* +lock.acquire +lock.macquire +lock.held +lock.info");
    let mut app = Raw::connect(&server);
    assert_eq!(app.run("AUTH app any"), "OK");
    let refused = |reply: Value| {
        let text = reply.err().to_string();
        assert!(text.starts_with("NOPERM"), "{text}");
    };
    fence(&app.run("LOCK.ACQUIRE app:k me"));
    refused(app.run("LOCK.ACQUIRE other me"));
    // May read, must not write.
    refused(app.run("LOCK.ACQUIRE shared:k me"));
    assert!(app.run("LOCK.HELD shared:k me").is_nil());
    assert!(app.run("LOCK.INFO shared:k").is_nil());
    refused(app.run("LOCK.INFO other"));
    refused(app.run("LOCK.RELEASE app:k me"));
    // Every key counts.
    assert_eq!(app.run("LOCK.MACQUIRE 2 app:a app:b me").array().len(), 2);
    refused(app.run("LOCK.MACQUIRE 2 app:x other me"));
    assert_eq!(client.run("EXISTS app:x other"), 0);

    // Locks are read as well as written: whoever may only write must not learn who holds.
    client.run("ACL SETUSER writer on nopass %W~* +lock.acquire");
    let mut writer = Raw::connect(&server);
    writer.run("AUTH writer any");
    refused(writer.run("LOCK.ACQUIRE app:k me"));
}

#[test]
fn keys_owners_and_ids_are_arbitrary_bytes() {
    let (_server, mut client) = server_and_client();
    let strange: [&[u8]; 6] = [
        b"\0",
        b"a\0b",
        b"\xff\xfe",
        b"%s%n%d",
        b"\r\n$5\r\n",
        "h\u{f6}lle".as_bytes(),
    ];
    for key in strange {
        for owner in strange {
            let first = fence(&client.call([b"LOCK.ACQUIRE", key, owner, b"ID", owner]));
            let again = client.call([b"LOCK.ACQUIRE", key, owner, b"ID", owner]);
            assert_eq!(again, first);
            let info = client.call([b"LOCK.INFO", key]);
            assert_eq!(
                info.field("holders").array()[0].field("owner").bytes(),
                owner
            );
            assert!(client.call([b"LOCK.HELD", key, b"\0\0"]).is_nil());
            assert_eq!(client.call([b"LOCK.RELEASE", key, owner]), 0);
        }
    }
    // An owner that is the start of another is another.
    client.call([b"LOCK.ACQUIRE".as_slice(), b"k", b"a\0", b"SHARED"]);
    client.call([b"LOCK.ACQUIRE".as_slice(), b"k", b"a", b"SHARED"]);
    assert_eq!(client.run("LOCK.INFO k").field("holders").array().len(), 2);
    // The empty key is a key.
    fence(&client.call(["LOCK.ACQUIRE", "", "me"]));
    assert_eq!(client.call(["EXISTS", ""]), 1);
}

#[test]
fn options_are_case_insensitive_and_in_any_order() {
    let (_server, mut client) = server_and_client();
    fence(&client.run("lock.acquire k me id one wAtChDoG px 100000 block 5 shared"));
    let info = client.run("LOCK.INFO k");
    assert_eq!(info.field("mode"), &"shared");
    assert!(is_watched(&info, "me"));
    about(lease_of(&info, "me"), 100_000);
    // An owner or an id may look like an option.
    fence(&client.run("LOCK.ACQUIRE px PX PX 100000 ID ID"));
    assert!(!client.run("LOCK.HELD px PX").is_nil());
    fence(&client.run("SEM.ACQUIRE s LIMIT permits 2 limit 3 PX 100000"));
}

#[test]
fn a_thousand_shared_holders_each_have_their_hold() {
    let (_server, mut client) = server_and_client();
    let owners: Vec<_> = (0..1000).map(|number| format!("owner{number}")).collect();
    let commands = owners
        .iter()
        .map(|owner| ["LOCK.ACQUIRE", "k", owner, "SHARED", "PX", "100000"]);
    let fences = client.pipeline(commands);
    assert!(fences.is_sorted_by(|one, next| fence(one) < fence(next)));
    assert_eq!(holders(&client.run("LOCK.INFO k")).len(), 1000);
    for owner in &owners {
        assert_eq!(client.call(["LOCK.RELEASE", "k", owner]), 0);
    }
    assert_eq!(client.run("EXISTS k"), 0);
}

#[test]
fn memory_usage_grows_with_what_a_lock_holds() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me SHARED");
    let small = client.run("MEMORY USAGE k").int();
    for number in 0..1000 {
        client.call(["LOCK.ACQUIRE", "k", &format!("{number:0>1000}"), "SHARED"]);
    }
    let large = client.run("MEMORY USAGE k").int();
    // A thousand owners of a thousand bytes each.
    assert!(large - small >= 1_000_000, "{small} -> {large}");
    assert!(large < 4_000_000, "{large}");
}

#[test]
fn a_full_server_refuses_new_locks_and_still_lets_old_ones_go() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    client.run("LOCK.GUARD g 1");
    client.run("CONFIG SET maxmemory 1");
    for line in [
        "LOCK.ACQUIRE new me",
        "LOCK.MACQUIRE 1 new me",
        "SEM.ACQUIRE new me LIMIT 1",
        "LOCK.GUARD new 1",
    ] {
        let reply = client.run(line);
        assert!(reply.err().starts_with("OOM"), "{line}: {reply:?}");
    }
    fence(&client.run("LOCK.RENEW k me"));
    assert_eq!(client.run("LOCK.RELEASE k me"), 0);
    assert_eq!(client.run("DBSIZE"), 1);
}

/// Small readings of replies.
trait Reading {
    /// Whether it is a fence; panics when it is neither that nor nil.
    fn int_or_nil(&self) -> bool;
}

impl Reading for Value {
    fn int_or_nil(&self) -> bool {
        if self.is_nil() {
            return false;
        }
        fence(self);
        true
    }
}

#[test]
fn time_that_goes_by_is_taken_off_the_lease() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 100000");
    eventually(SOON, || lease_of(&client.run("LOCK.INFO k"), "me") < 99_950);
    let replies = client.transact(["LOCK.INFO k", "PTTL k"]);
    let (left, ttl) = (lease_of(&replies[0], "me"), replies[1].int());
    assert!(
        (left - 2_000..=left + 2_000).contains(&ttl),
        "{left} and {ttl}"
    );
}
