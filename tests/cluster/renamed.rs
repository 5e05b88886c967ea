//! Commands of the server that have another name (`rename-command`) are not missed by those who wait.

use crate::support::cluster::{LOW, id_of, node, slot_of};
use crate::support::{Lines as _, Raw, SOON, Server, await_waiting, eventually};

/// A node whose commands `GETRANGE` and `CLUSTER` have other names, with all slots.
fn renamed() -> Server {
    let builder = node()
        .config("rename-command", "GETRANGE substring")
        .config("rename-command", "CLUSTER cloud");
    let server = builder.start();
    Raw::connect(&server).must("cloud ADDSLOTSRANGE 0 16383");
    eventually(SOON, || {
        let info = Raw::connect(&server).run("cloud INFO");
        info.text().contains("cluster_state:ok")
    });
    server
}

#[test]
fn waiting_clients_are_served_on_a_node_with_renamed_commands() {
    let server = renamed();
    let mut holder = Raw::connect(&server);
    let first = holder.must("LOCK.ACQUIRE bar me PX 600000").int();
    let mut waiter = Raw::connect(&server);
    waiter.ask("LOCK.ACQUIRE bar you PX 600000 BLOCK 0");
    await_waiting(&server, 1);
    holder.must("LOCK.RELEASE bar me");
    let fence = waiter.read_within(SOON).expect("it is served");
    assert!(fence.int() > first);

    // A lease that ends.
    let mut late = Raw::connect(&server);
    late.ask("LOCK.ACQUIRE baz you PX 600000 BLOCK 0");
    assert!(late.read_within(SOON).expect("it is served").int() > 0);
    holder.must("SEM.ACQUIRE {bar}sem me LIMIT 1 PX 100");
    waiter.ask("SEM.ACQUIRE {bar}sem you LIMIT 1 PX 600000 BLOCK 0");
    assert!(waiter.read_within(SOON).expect("it is served").int() > 0);
    holder.must("STOCK.SET {bar}stock 5");
    holder.must("STOCK.RESERVE {bar}stock 2 ORDER o PX 50");
    eventually(SOON, || holder.must("STOCK.GET {bar}stock") == 5);
    // A cached value.
    let token = holder.must("CACHE.FETCH {bar}entry LEASE 600000").array()[2].int();
    waiter.ask("CACHE.FETCH {bar}entry LEASE 600000 BLOCK 0");
    eventually(SOON, || server.info_int("blocked_clients") == 1);
    holder.must(&format!("CACHE.SET {{bar}}entry v PX 600000 TOKEN {token}"));
    let fetched = waiter.read_within(SOON).expect("it is served");
    assert_eq!(fetched.array()[1], "v");
}

/// The server does not say what its command `CLUSTER` is called, so the client is told to send its command again: then the
/// server itself says where to.
#[test]
fn waiting_clients_of_a_slot_that_left_a_node_with_renamed_commands_are_redirected() {
    let server = renamed();
    let mut holder = Raw::connect(&server);
    holder.must("LOCK.ACQUIRE bar me PX 600000");
    let mut waiter = Raw::connect(&server);
    waiter.ask("LOCK.ACQUIRE {bar}free you PX 600000 BLOCK 0");
    assert!(waiter.read_within(SOON).expect("it is free").int() > 0);
    waiter.ask("LOCK.ACQUIRE bar you PX 600000 BLOCK 0");
    await_waiting(&server, 1);
    let other = node().start();
    let id = id_of(&other);
    let slot = slot_of(&other, LOW);
    let bus_port = Raw::connect(&other).must("CONFIG GET cluster-port");
    let bus_port = bus_port.field("cluster-port").text();
    holder.must(&format!("cloud MEET 127.0.0.1 {} {bus_port}", other.port()));
    eventually(SOON, || {
        let nodes = holder.must("cloud NODES");
        nodes.text().lines().count() == 2 && !nodes.text().contains("handshake")
    });
    for key in ["bar", "{bar}free"] {
        holder.must(&format!("DEL {key}"));
    }
    // As soon as the lock is gone, the waiting client has it.
    assert!(waiter.read_within(SOON).expect("it is served").int() > 0);
    let mut waiter = Raw::connect(&server);
    waiter.ask("LOCK.ACQUIRE bar them PX 600000 BLOCK 0");
    await_waiting(&server, 1);
    other.await_cluster(2);
    let own_id = holder.must("cloud MYID");
    let importing = format!("CLUSTER SETSLOT {slot} IMPORTING {}", own_id.text());
    eventually(SOON, || !Raw::connect(&other).run(&importing).is_err());
    holder.must(&format!("cloud SETSLOT {slot} MIGRATING {id}"));
    let port = other.port().to_string();
    holder.must(&format!("MIGRATE 127.0.0.1 {port} bar 0 20000"));
    holder.must(&format!("cloud SETSLOT {slot} NODE {id}"));
    let told = waiter.read_within(SOON).expect("it is told");
    let again = holder.run("GET bar");
    assert!(again.err().starts_with("MOVED "), "{again:?}");
    assert!(told.err().starts_with("TRYAGAIN "), "{told:?}");
}

/// The server does not say which slots it owns, so leases end in each slot that a command names.
#[test]
fn leases_end_when_slots_leave_a_node_with_renamed_commands_and_return() {
    let server = renamed();
    let mut client = Raw::connect(&server);
    let lease = |client: &mut Raw, key: &str| {
        let fetched = client.must(&format!("CACHE.FETCH {key} LEASE 600000"));
        assert_eq!(fetched.array()[0], "LEASE", "{key}");
        fetched.array()[2].int()
    };
    let stores = |client: &mut Raw, key: &str, token| {
        let stored = client.must(&format!("CACHE.SET {key} v PX 600000 TOKEN {token}"));
        client.must(&format!("DEL {key}"));
        stored == 1
    };
    // "baz" is in another slot than "bar".
    for (go, come, is_baz_named) in [
        ("DELSLOTS 5061", "ADDSLOTS 5061", false),
        ("DELSLOTSRANGE 5061 5062", "ADDSLOTSRANGE 5061 5062", false),
        ("FLUSHSLOTS", "ADDSLOTSRANGE 0 16383", true),
    ] {
        let tokens = [LOW, "baz"].map(|key| lease(&mut client, key));
        client.must(&format!("cloud {go}"));
        client.must(&format!("cloud {come}"));
        eventually(SOON, || !client.run("EXISTS bar").is_err());
        assert!(!stores(&mut client, LOW, tokens[0]), "{go}");
        assert_eq!(stores(&mut client, "baz", tokens[1]), !is_baz_named, "{go}");
    }
    // So do commands that the server refuses, or that move nothing.
    client.must("ACL SETUSER guest on nopass +ping");
    let mut guest = Raw::connect(&server);
    guest.must("AUTH guest any");
    for line in [
        "SETSLOT 5061 NODE nobody",
        "DELSLOTS 5061",
        "DELSLOTSRANGE 5000 5061",
        "FLUSHSLOTS",
        "ADDSLOTS 5061",
        "ADDSLOTSRANGE 5061 5062",
    ] {
        let token = lease(&mut client, LOW);
        let reply = guest.run(&format!("cloud {line}"));
        assert!(reply.err().starts_with("NOPERM"), "{line}");
        assert!(!stores(&mut client, LOW, token), "{line}");
    }
    let token = lease(&mut client, LOW);
    client.must("cloud SETSLOT 5061 STABLE");
    assert!(!stores(&mut client, LOW, token));
    // Other commands end no lease.
    let token = lease(&mut client, LOW);
    for line in [
        "cloud SETSLOT nothing NODE nobody",
        "cloud SETSLOT 16384 NODE nobody",
        "cloud FLUSHSLOTS now",
    ] {
        assert!(client.run(line).is_err(), "{line}");
    }
    client.must("SADD flushslots member");
    client.must("SADD addslots member");
    assert!(stores(&mut client, LOW, token));
}

/// A server outside of a cluster has no slots, whatever its commands are called.
#[test]
fn a_single_server_without_the_command_cluster_ignores_its_subcommands() {
    let server = Server::builder()
        .config("rename-command", "CLUSTER \"\"")
        .start();
    let mut client = Raw::connect(&server);
    let fetched = client.must("CACHE.FETCH k LEASE 600000");
    let token = fetched.array()[2].int();
    assert!(client.run("CLUSTER SETSLOT 1 NODE somebody").is_err());
    assert_eq!(
        client.must(&format!("CACHE.SET k v PX 600000 TOKEN {token}")),
        1
    );
    assert!(!server.log().contains("rename-command"), "{}", server.log());
}
