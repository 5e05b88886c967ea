//! A panic in a running server: the client gets one error, the log names the keys, and the server continues. A debug build of the
//! module panics when it opens the key that the environment variable `SLUICE_PANIC_KEY` names.

use crate::support::{Lines as _, Raw, SOON, Server, eventually};

#[test]
fn the_log_of_a_panic_names_the_keys() {
    let server = Server::builder()
        .debug_module()
        .under(&["env", "SLUICE_PANIC_KEY=broken"])
        .start();
    let mut client = Raw::connect(&server);
    let reply = client.run("LOCK.MACQUIRE 2 whole broken me");
    assert_eq!(reply.err(), "ERR internal error");
    let command = "the command LOCK.MACQUIRE panicked: the values at the keys \"whole\", \"broken\" may be partly changed";
    await_log(&server, command);
    await_log(&server, "the key \"broken\" is open");

    for (command, line) in [
        (
            "STOCK.MDEDUCT 2 whole 1 broken 1",
            "the command STOCK.MDEDUCT panicked",
        ),
        (
            "CACHE.FETCH none LEASE 600000 GUARD broken item",
            "\"none\", \"broken\"",
        ),
        ("STOCK.SET stock 9 EVENTS broken", "\"stock\", \"broken\""),
    ] {
        assert_eq!(client.run(command).err(), "ERR internal error", "{command}");
        await_log(&server, line);
        assert_eq!(client.run("PING").text(), "PONG");
    }

    // Outside of a command, where no command names the key: in the keyspace event of `RENAME`.
    let before = open_keys(&server);
    client.must("LOCK.ACQUIRE whole me");
    client.must("RENAME whole broken");
    eventually(SOON, || open_keys(&server) > before);
    assert_eq!(
        client.run("LOCK.ACQUIRE whole me").int(),
        client.run("LOCK.HELD whole me").int()
    );
    server.forget_panics();
}

fn open_keys(server: &Server) -> usize {
    server.log().matches("the key \"broken\" is open").count()
}

#[track_caller]
fn await_log(server: &Server, line: &str) {
    eventually(SOON, || server.log().contains(line));
}
