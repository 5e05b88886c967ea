//! The replies and errors of the commands, sentence by sentence of the contract.

use crate::support::delay::{NO_QUEUE, await_entries, number, waiting_ids};
use crate::support::{
    KeyspaceEvents, Lines, NOT_AN_INTEGER, Raw, SOON, SYNTAX, Value, WRONGTYPE, eventually, now_ms,
    server_and_client,
};

const TEN_YEARS_MS: i64 = 315_360_000_000;

fn queue(client: &mut Raw) {
    assert_eq!(client.run("DELAY.SET q STREAM s"), "OK");
}

#[test]
fn set_creates_a_queue_or_gives_it_another_stream() {
    let (_server, mut client) = server_and_client();
    assert_eq!(client.run("DELAY.SET q STREAM s"), "OK");
    let info = client.run("DELAY.INFO q");
    let names: Vec<_> = info
        .fields()
        .iter()
        .map(|(name, _)| name.text().to_owned())
        .collect();
    assert_eq!(
        names,
        [
            "messages",
            "bytes",
            "stream",
            "maxlen",
            "next_ms",
            "delivered",
            "stuck"
        ]
    );
    for (field, value) in [
        ("messages", 0),
        ("bytes", 0),
        ("maxlen", 0),
        ("next_ms", -1),
        ("delivered", 0),
        ("stuck", 0),
    ] {
        assert_eq!(info.field(field).int(), value, "{field}");
    }
    assert_eq!(info.field("stream").text(), "s");
    client.must("DELAY.ADD q a PX 60000 VALUES f v");
    assert_eq!(client.run("delay.set q maxlen 10 stream t"), "OK");
    assert_eq!(number(&mut client, "q", "maxlen"), 10);
    assert_eq!(number(&mut client, "q", "messages"), 1);
    assert_eq!(client.run("DELAY.INFO q").field("stream").text(), "t");
    client.must("DELAY.SET q STREAM t");
    assert_eq!(number(&mut client, "q", "maxlen"), 0);
    client.must("DELAY.SET q STREAM t MAXLEN 9007199254740991");
    assert_eq!(number(&mut client, "q", "maxlen"), 9_007_199_254_740_991);
    assert_eq!(client.run("EXISTS t s"), 0);
    assert_eq!(client.run("PTTL q"), -1);
}

#[test]
fn misused_commands_are_errors_and_change_nothing() {
    let (server, mut client) = server_and_client();
    queue(&mut client);
    client.must("DELAY.ADD q there PX 600000 VALUES f v");
    client.must("SET string v");
    let digest = server.digest();
    let after_ten_years = (now_ms(&mut client) + TEN_YEARS_MS + 100_000).to_string();
    let maxlen = "ERR MAXLEN must be between 1 and 9007199254740991";
    let px = format!("ERR PX must be between 0 and {TEN_YEARS_MS}");
    let id = "ERR id must be between 1 and 512";
    let cases: Vec<(String, &str)> = vec![
        (
            "DELAY.SET q STREAM q".into(),
            "ERR the stream must be another key than the delay queue",
        ),
        (
            "DELAY.SET new STREAM new".into(),
            "ERR the stream must be another key than the delay queue",
        ),
        ("DELAY.SET q MAXLEN 5".into(), SYNTAX),
        ("DELAY.SET q STREAM s MAXLEN".into(), SYNTAX),
        ("DELAY.SET q STREAM s STREAM t".into(), SYNTAX),
        ("DELAY.SET q STREAM s BOGUS".into(), SYNTAX),
        ("DELAY.SET q STREAM s PX 5".into(), SYNTAX),
        ("DELAY.SET q STREAM s MAXLEN 0".into(), maxlen),
        (
            "DELAY.SET q STREAM s MAXLEN 9007199254740992".into(),
            maxlen,
        ),
        ("DELAY.SET q STREAM s MAXLEN x".into(), NOT_AN_INTEGER),
        ("DELAY.SET string STREAM s".into(), WRONGTYPE),
        ("DELAY.ADD q a PX 5 NX XX VALUES f v".into(), SYNTAX),
        ("DELAY.ADD q a PX 5 PXAT 5 VALUES f v".into(), SYNTAX),
        ("DELAY.ADD q a NX NX VALUES f v g w".into(), SYNTAX),
        ("DELAY.ADD q a VALUES PX 5 f v g".into(), SYNTAX),
        ("DELAY.ADD q a VALUES PX 5 f v".into(), SYNTAX),
        ("DELAY.ADD q a PX 5 VALUES f v g".into(), SYNTAX),
        ("DELAY.ADD q a PX 5 NX f v g".into(), SYNTAX),
        ("DELAY.ADD q a PX 5 PX 5 VALUES f v".into(), SYNTAX),
        ("DELAY.ADD q a PX 5 STREAM s VALUES f v".into(), SYNTAX),
        ("DELAY.ADD q a PX -1 VALUES f v".into(), &px),
        (
            format!("DELAY.ADD q a PX {} VALUES f v", TEN_YEARS_MS + 1),
            &px,
        ),
        ("DELAY.ADD q a PX 1.5 VALUES f v".into(), NOT_AN_INTEGER),
        ("DELAY.ADD q a PXAT x VALUES f v".into(), NOT_AN_INTEGER),
        (
            format!("DELAY.ADD q {} PX 5 VALUES f v", "x".repeat(513)),
            id,
        ),
        ("DELAY.ADD none a PX 5 VALUES f v".into(), NO_QUEUE),
        ("DELAY.ADD none a PX 5 XX VALUES f v".into(), NO_QUEUE),
        ("DELAY.ADD string a PX 5 VALUES f v".into(), WRONGTYPE),
        (format!("DELAY.CANCEL q there {}", "x".repeat(513)), id),
        ("DELAY.CANCEL string a".into(), WRONGTYPE),
        ("DELAY.GET string a".into(), WRONGTYPE),
        (format!("DELAY.GET q {}", "x".repeat(513)), id),
        ("DELAY.RANGE string 5".into(), WRONGTYPE),
        ("DELAY.RANGE q x".into(), NOT_AN_INTEGER),
        (
            "DELAY.RANGE q -1".into(),
            "ERR count must be between 0 and 9007199254740991",
        ),
        ("DELAY.INFO string".into(), WRONGTYPE),
    ];
    for (line, error) in cases {
        assert_eq!(client.run(&line).err(), error, "{line}");
        assert_eq!(server.digest(), digest, "{line}");
    }
    for time in ["-1", &after_ten_years] {
        let reply = client.run(&format!("DELAY.ADD q a PXAT {time} VALUES f v"));
        assert!(
            reply.err().starts_with("ERR PXAT must be between 0 and "),
            "{reply:?}"
        );
    }
    for command in [
        vec!["DELAY.ADD", "q", "", "PX", "5", "VALUES", "f", "v"],
        vec!["DELAY.CANCEL", "q", "there", ""],
        vec!["DELAY.GET", "q", ""],
    ] {
        assert_eq!(client.call(command).err(), id);
    }
    for line in [
        "DELAY.SET q",
        "DELAY.SET q STREAM",
        "DELAY.ADD q a PX 5 VALUES f",
        "DELAY.CANCEL q",
        "DELAY.GET q",
        "DELAY.RANGE q",
        "DELAY.RANGE q 1 2",
        "DELAY.INFO q x",
    ] {
        let reply = client.run(line);
        assert!(
            reply.err().contains("wrong number of arguments"),
            "{line}: {reply:?}"
        );
    }
    assert_eq!(server.digest(), digest);
}

#[test]
fn add_is_new_or_replaces_and_nx_and_xx_forbid() {
    let (_server, mut client) = server_and_client();
    queue(&mut client);
    assert!(client.run("DELAY.ADD q a PX 60000 XX VALUES f v").is_nil());
    assert_eq!(client.run("DELAY.ADD q a PX 60000 VALUES f v"), 1);
    assert!(client.run("DELAY.ADD q a PX 60000 NX VALUES f w").is_nil());
    assert_eq!(client.run("DELAY.ADD q a PX 90000 VALUES g w g x"), 0);
    let got = client.run("DELAY.GET q a");
    let left = got.array()[0].int();
    assert!((60_001..=90_000).contains(&left), "{left}");
    let values: Vec<_> = got.array()[1].array().iter().map(Value::text).collect();
    assert_eq!(values, ["g", "w", "g", "x"]);
    assert_eq!(client.run("DELAY.ADD q a XX PX 30000 VALUES f v"), 0);
    assert_eq!(client.run("DELAY.ADD q b NX PX 40000 VALUES NX v PX w"), 1);
    assert_eq!(waiting_ids(&mut client, "q"), ["a", "b"]);
    let at = now_ms(&mut client) + 50_000;
    assert_eq!(
        client.run(&format!("DELAY.ADD q c PXAT {at} VALUES f v")),
        1
    );
    let left = client.run("DELAY.GET q c").array()[0].int();
    assert!((1..=50_000).contains(&left), "{left}");
    assert_eq!(
        client.run(&format!("DELAY.ADD q far PX {TEN_YEARS_MS} VALUES f v")),
        1
    );
    assert_eq!(number(&mut client, "q", "messages"), 4);
    // a f v, b NX v PX w, c f v, far f v
    assert_eq!(number(&mut client, "q", "bytes"), 3 + 7 + 3 + 5);
    let next = number(&mut client, "q", "next_ms");
    assert!((1..=30_000).contains(&next), "{next}");
}

#[test]
fn cancel_counts_removed_messages() {
    let (_server, mut client) = server_and_client();
    assert_eq!(client.run("DELAY.CANCEL none a b"), 0);
    assert_eq!(client.run("EXISTS none"), 0);
    queue(&mut client);
    for id in ["a", "b", "c"] {
        client.must(&format!("DELAY.ADD q {id} PX 60000 VALUES f v"));
    }
    assert_eq!(client.run("DELAY.CANCEL q a none b a"), 2);
    assert_eq!(client.run("DELAY.CANCEL q a"), 0);
    assert!(client.run("DELAY.GET q a").is_nil());
    assert_eq!(waiting_ids(&mut client, "q"), ["c"]);
    assert_eq!(client.run("DELAY.CANCEL q c"), 1);
    assert_eq!(number(&mut client, "q", "next_ms"), -1);
    assert_eq!(number(&mut client, "q", "bytes"), 0);
    assert_eq!(client.run("EXISTS q"), 1);
}

#[test]
fn range_is_in_the_order_of_time_and_arrival() {
    let (_server, mut client) = server_and_client();
    assert!(client.run("DELAY.RANGE none 5").array().is_empty());
    assert!(client.run("DELAY.GET none a").is_nil());
    assert!(client.run("DELAY.INFO none").is_nil());
    queue(&mut client);
    let at = now_ms(&mut client) + 60_000;
    for (id, after) in [("d", 5), ("b", 1), ("a", 0), ("c", 1)] {
        client.must(&format!("DELAY.ADD q {id} PXAT {} VALUES f v", at + after));
    }
    assert_eq!(waiting_ids(&mut client, "q"), ["a", "b", "c", "d"]);
    // A message that is replaced arrives anew.
    client.must(&format!("DELAY.ADD q b PXAT {} VALUES f v", at + 1));
    assert_eq!(waiting_ids(&mut client, "q"), ["a", "c", "b", "d"]);
    let two = client.run("DELAY.RANGE q 2");
    assert_eq!(two.array().len(), 2);
    let left = two.array()[1].array()[1].int();
    assert!((1..=60_001).contains(&left), "{left}");
    assert!(client.run("DELAY.RANGE q 0").array().is_empty());
}

#[test]
fn any_bytes_are_ids_and_values() {
    let (_server, mut client) = server_and_client();
    let odd: &[u8] = b"\0\xff\r\n odd";
    let longest = [b'x'; 512];
    client.call([b"DELAY.SET".as_slice(), odd, b"STREAM", b"\0s"]);
    for id in [odd, &longest] {
        let add = [
            b"DELAY.ADD".as_slice(),
            odd,
            id,
            b"PX",
            b"600000",
            b"VALUES",
            odd,
            b"",
            b"",
            odd,
        ];
        assert_eq!(client.call(add), 1);
        let got = client.call([b"DELAY.GET".as_slice(), odd, id]);
        let values: Vec<_> = got.array()[1].array().iter().map(Value::bytes).collect();
        assert_eq!(values, [odd, b"", b"", odd]);
    }
    // More fields than a small entry has.
    let mut add = vec![b"DELAY.ADD".to_vec(), odd.to_vec(), b"many".to_vec()];
    add.extend([b"PX".to_vec(), b"0".to_vec(), b"VALUES".to_vec()]);
    add.extend((0..200).map(|number| number.to_string().into_bytes()));
    assert_eq!(client.call(add), 1);
    let read = || [b"XRANGE".as_slice(), b"\0s", b"-", b"+"];
    eventually(SOON, || client.call(read()).array().len() == 1);
    let entry = client.call(read()).array()[0].array()[1].clone();
    let values: Vec<String> = entry
        .array()
        .iter()
        .map(|value| value.text().into())
        .collect();
    assert_eq!(
        values,
        (0..200)
            .map(|number| number.to_string())
            .collect::<Vec<_>>()
    );
}

#[test]
fn maps_are_maps_in_resp3() {
    let (_server, mut client) = server_and_client();
    queue(&mut client);
    client.must("DELAY.ADD q a PX 60000 VALUES f v");
    client.hello3();
    assert!(matches!(client.run("DELAY.INFO q"), Value::Map(_)));
    assert!(client.run("DELAY.INFO none").is_nil());
    assert_eq!(client.run("DELAY.GET q a").array().len(), 2);
    assert!(client.run("DELAY.ADD q a PX 5 NX VALUES f v").is_nil());
}

#[test]
fn transactions_scripts_and_functions_use_queues() {
    let (server, mut client) = server_and_client();
    let replies = client.transact([
        "DELAY.SET q STREAM s",
        "DELAY.ADD q a PX 60000 VALUES f v",
        "DELAY.ADD q b PX 60000 VALUES f v",
        "DELAY.CANCEL q a",
        "DELAY.INFO q",
    ]);
    assert_eq!(replies[1], 1);
    assert_eq!(replies[4].field("messages"), &1);
    let script = "redis.call('DELAY.ADD', KEYS[1], ARGV[1], 'PX', 0, 'VALUES', 'f', 'script')
        return redis.call('DELAY.CANCEL', KEYS[1], 'b')";
    assert_eq!(client.call(["EVAL", script, "1", "q", "c"]), 1);
    assert_eq!(await_entries(&mut client, "s", 1), ["f script"]);
    client.must("MULTI");
    client.must("DELAY.ADD q d PX 60000 VALUES f v");
    client.must("DISCARD");
    assert_eq!(number(&mut client, "q", "messages"), 0);
    let watched = ["WATCH q", "DELAY.GET q x", "MULTI", "DELAY.INFO q"];
    client.run_all(watched);
    let mut other = Raw::connect(&server);
    other.must("DELAY.ADD q e PX 60000 VALUES f v");
    assert!(client.run("EXEC").is_nil());
}

#[test]
fn each_change_is_one_keyspace_event() {
    let (server, mut client) = server_and_client();
    let mut events = KeyspaceEvents::of(&server, "KEAd");
    let mut names = || -> Vec<String> { events.take() };
    client.must("DELAY.SET q STREAM s");
    client.must("DELAY.ADD q a PX 60000 VALUES f v");
    client.must("DELAY.ADD q a PX 60000 VALUES f v");
    client.must("DELAY.ADD q a PX 60000 NX VALUES f v");
    client.must("DELAY.ADD q b PX 60000 VALUES f v");
    client.must("DELAY.CANCEL q none");
    client.must("DELAY.CANCEL q a b");
    let told = names();
    let count = |name: &str| told.iter().filter(|event| event.contains(name)).count();
    assert_eq!(
        ["delay.set", "delay.add", "delay.cancel", "delay.deliver"].map(count),
        [1, 3, 1, 0],
        "{told:?}"
    );
    client.must("DELAY.ADD q c PX 0 VALUES f v");
    await_entries(&mut client, "s", 1);
    let told = names();
    let count = |name: &str| told.iter().filter(|event| event.contains(name)).count();
    assert_eq!(["delay.deliver", "xadd"].map(count), [1, 1], "{told:?}");
}

#[test]
fn info_counts() {
    let (server, mut client) = server_and_client();
    for line in [
        "DELAY.SET q STREAM s",
        "DELAY.SET r STREAM t",
        "DELAY.ADD q a PX 60000 VALUES f v",
        "DELAY.ADD q a PX 60000 VALUES f v",
        "DELAY.ADD q b PX 60000 VALUES f v",
        "DELAY.ADD q c PX 60000 VALUES f v",
        "DELAY.ADD q c PX 60000 NX VALUES f v",
        "DELAY.ADD r d PX 0 VALUES f v",
        "DELAY.CANCEL q a none",
    ] {
        client.run(line);
    }
    await_entries(&mut client, "t", 1);
    for (field, value) in [
        ("queues", 2),
        ("messages", 2),
        ("added", 4),
        ("replaced", 1),
        ("cancelled", 1),
        ("delivered", 1),
        ("stuck", 0),
    ] {
        assert_eq!(
            server.info_int(&format!("sluice_delay_{field}")),
            value,
            "{field}"
        );
    }
    client.must("COPY q copy");
    assert_eq!(server.info_int("sluice_delay_messages"), 4);
    client.must("FLUSHALL SYNC");
    for field in ["queues", "messages"] {
        assert_eq!(
            server.info_int(&format!("sluice_delay_{field}")),
            0,
            "{field}"
        );
    }
}

#[test]
fn a_reader_of_a_queue_needs_no_write_permission_and_set_needs_it_on_the_stream() {
    let (server, mut client) = server_and_client();
    client.must("ACL SETUSER writer on nopass resetkeys ~q ~s +@all");
    client.must("ACL SETUSER reader on nopass resetkeys %R~q +@all");
    client.must("ACL SETUSER half on nopass resetkeys ~q %R~s +@all");
    let user = |name: &str| {
        let mut client = Raw::connect(&server);
        client.must(&format!("AUTH {name} x"));
        client
    };
    let mut writer = user("writer");
    assert_eq!(writer.run("DELAY.SET q STREAM s"), "OK");
    assert!(
        writer
            .run("DELAY.SET q STREAM other")
            .err()
            .starts_with("NOPERM")
    );
    assert!(
        writer
            .run("DELAY.SET q MAXLEN 5 stream other")
            .err()
            .starts_with("NOPERM")
    );
    let mut half = user("half");
    assert!(half.run("DELAY.SET q STREAM s").err().starts_with("NOPERM"));
    assert_eq!(half.run("DELAY.ADD q a PX 60000 VALUES f v"), 1);
    let mut reader = user("reader");
    for line in ["DELAY.GET q a", "DELAY.RANGE q 5", "DELAY.INFO q"] {
        assert!(!reader.run(line).is_err(), "{line}");
    }
    for line in [
        "DELAY.ADD q a PX 5 VALUES f v",
        "DELAY.CANCEL q a",
        "DELAY.SET q STREAM s",
        "DELAY.APPLY q x",
    ] {
        assert!(reader.run(line).err().starts_with("NOPERM"), "{line}");
    }
}
