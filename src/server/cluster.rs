//! Which node serves a key, in a cluster.

use super::call::{self, Reply};
use super::context::{Ctx, Name};
use crate::error::Error;
use crate::waiting::Key;
use redis_module::raw;
use std::ffi::CStr;

/// Where a key is served.
#[derive(Debug, PartialEq, Eq)]
pub enum Place {
    /// Here.
    Here,
    /// Nowhere at this moment: its slot is being moved away and the key is gone already, or the
    /// cluster is down. Both pass.
    Between,
    /// By another node, to which this error sends the client.
    Elsewhere(Error),
}

/// Where is this key served?
pub fn locate(ctx: Ctx<'_>, name: &Name<'_>) -> Place {
    if is_allowed(ctx, name) {
        return Place::Here;
    }
    let Some(slot) = slot_of(ctx, name) else {
        return Place::Between;
    };
    let nodes = ask_cluster(ctx, c"NODES");
    let nodes = nodes.part().text().unwrap_or_default();
    if is_importing(&nodes, slot) {
        return Place::Here; // for clients that were sent with ASK, as those that wait here were
    }
    match owner_of(ctx, &nodes, slot) {
        Some((id, address)) if my_id().is_some_and(|mine| mine != id) => {
            Place::Elsewhere(Error::Moved {
                slot: slot as u16,
                address,
            })
        }
        _ => Place::Between,
    }
}

/// Does the server allow commands on this key here? It refuses keys of other nodes without running the command.
fn is_allowed(ctx: Ctx<'_>, name: &Name<'_>) -> bool {
    // Waiting clients' keys are asked for again and again. This command fails on its bounds, which are no numbers, before it
    // looks for the key: so the server counts neither a hit nor a miss of its keyspace, only a failed call of `GETRANGE`.
    // SAFETY: "scc" are a key's name and two NUL-terminated strings, all of which live through the call.
    let reply = unsafe {
        Reply(api!(RedisModule_Call(
            ctx.raw(),
            c"GETRANGE".as_ptr(),
            c"scc".as_ptr(),
            name.raw(),
            c"-".as_ptr(),
            c"-".as_ptr()
        )))
    };
    !reply.0.is_null()
}

/// Looks after the keys that clients wait for on a node of a cluster. `tell` hears of
/// each key that is here, and of each whose clients are to be sent away, with the error for them: their slot has left
/// this node, or the cluster is down. Of keys that are neither here nor elsewhere it hears another time.
pub fn look_after(ctx: Ctx<'_>, keys: Vec<Key>, mut tell: impl FnMut(Key, Option<Error>)) {
    let down = down(ctx);
    for key in keys {
        if down.is_some() {
            tell(key, down.clone());
            continue;
        }
        match ctx.in_db(key.0, || locate(ctx, &Name::new(&key.1))) {
            None | Some(Place::Between) => {}
            Some(Place::Here) => tell(key, None),
            Some(Place::Elsewhere(moved)) => tell(key, Some(moved)),
        }
    }
}

/// The error for clients that wait in a cluster that is down: what they wait for may have another owner by now, of whom
/// this node hears nothing. Some servers send such clients away themselves, Valkey since 8.1 does not.
fn down(ctx: Ctx<'_>) -> Option<Error> {
    let info = ask_cluster(ctx, c"INFO").part().text()?;
    info.contains("cluster_state:fail")
        .then_some(Error::ClusterDown)
}

/// The error for a client that waited for this key until the server became a replica.
pub fn farewell(ctx: Ctx<'_>, name: &Name<'_>) -> Error {
    if ctx.is_cluster()
        && let Place::Elsewhere(moved) = locate(ctx, name)
    {
        return moved;
    }
    Error::Demoted
}

/// Is the slot of this key on its way to another node or from one? Then a key of it that is not here may be there.
pub fn is_moving(ctx: Ctx<'_>, name: &Name<'_>) -> bool {
    if !ctx.is_cluster() {
        return false;
    }
    let slot = slot_of(ctx, name);
    let nodes = ask_cluster(ctx, c"NODES").part().text();
    matches!((slot, nodes), (Some(slot), Some(nodes)) if is_importing(&nodes, slot) || is_migrating(&nodes, slot))
}

/// May these two keys be used together? Always, but in a cluster only if they are in one slot.
pub fn share_slot(ctx: Ctx<'_>, one: &Name<'_>, other: &Name<'_>) -> bool {
    !ctx.is_cluster()
        || hash_tag(one.bytes()) == hash_tag(other.bytes())
        || slot_of(ctx, one) == slot_of(ctx, other)
}

/// The part of a key that its slot is computed of: what stands between the first `{` and the next
/// `}`, if anything does. <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>
fn hash_tag(key: &[u8]) -> &[u8] {
    let tag = || {
        let start = key.iter().position(|byte| *byte == b'{')? + 1;
        let length = key[start..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &key[start..start + length])
    };
    tag().unwrap_or(key)
}

/// The hash slot of a key; 0 outside of a cluster.
pub fn slot(ctx: Ctx<'_>, key: &[u8]) -> u16 {
    if !ctx.is_cluster() {
        return 0;
    }
    slot_of(ctx, &Name::new(key)).unwrap_or(0) as u16
}

fn slot_of(ctx: Ctx<'_>, name: &Name<'_>) -> Option<i64> {
    // SAFETY: "cs" is a NUL-terminated string and a key's name, both of which live through the call.
    let slot = unsafe {
        Reply(api!(RedisModule_Call(
            ctx.raw(),
            c"CLUSTER".as_ptr(),
            c"cs".as_ptr(),
            c"KEYSLOT".as_ptr(),
            name.raw()
        )))
    };
    slot.part().integer()
}

fn ask_cluster(ctx: Ctx<'_>, what: &CStr) -> Reply {
    // SAFETY: "c" is a NUL-terminated string, which lives through the call.
    unsafe {
        Reply(api!(RedisModule_Call(
            ctx.raw(),
            c"CLUSTER".as_ptr(),
            c"c".as_ptr(),
            what.as_ptr()
        )))
    }
}

/// What this node serves, as it says itself, with its configuration epoch: it is another one as soon as a slot has come or
/// gone, is about to, or has gone and come back. `None` outside of a cluster.
pub fn own_slots(ctx: Ctx<'_>) -> Option<String> {
    let nodes = ask_cluster(ctx, c"NODES").part().text()?;
    let mine = nodes.lines().find(|line| line.contains("myself"))?;
    // <id> <address> <flags> <master> <ping> <pong> <epoch> <link> <slot> ...
    Some(mine.split(' ').skip(6).collect::<Vec<_>>().join(" "))
}

/// Is the slot being moved to this node? The line of this node in `CLUSTER NODES` says so.
fn is_importing(nodes: &str, slot: i64) -> bool {
    own_line_has(nodes, &format!("[{slot}-<-"))
}

/// Is the slot being moved away from this node?
fn is_migrating(nodes: &str, slot: i64) -> bool {
    own_line_has(nodes, &format!("[{slot}->-"))
}

fn own_line_has(nodes: &str, mark: &str) -> bool {
    nodes
        .lines()
        .any(|line| line.contains("myself") && line.contains(mark))
}

/// The id of the master that serves a slot, and the address that the server would name.
fn owner_of(ctx: Ctx<'_>, nodes: &str, slot: i64) -> Option<(String, String)> {
    // `CLUSTER SLOTS` would say it too, but asked by a module it crashes Valkey 8.0.
    let line = nodes.lines().find(|line| serves(line, slot))?;
    let mut words = line.split(' ');
    let (id, address) = (words.next()?, words.next()?);
    Some((id.to_owned(), endpoint(address, &preferred_endpoint(ctx))?))
}

/// Does the node of this line of `CLUSTER NODES` serve the slot? From the ninth word on, the line has
/// its slots: numbers, ranges and, in brackets, those that move.
fn serves(line: &str, slot: i64) -> bool {
    line.split(' ').skip(8).any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let bounds = (first.parse::<i64>(), last.parse::<i64>());
        matches!(bounds, (Ok(first), Ok(last)) if first <= slot && slot <= last)
    })
}

/// What a client is told of `ip:port@bus-port[,hostname[,...]]`.
fn endpoint(address: &str, preferred: &str) -> Option<String> {
    let (place, rest) = address.split_once('@')?;
    let (ip, port) = place.rsplit_once(':')?;
    let hostname = rest.split(',').nth(1).unwrap_or_default();
    let host = match preferred {
        "hostname" if hostname.is_empty() => "?",
        "hostname" => hostname,
        "unknown-endpoint" => "", // the client is to take the one that it knows this node by
        _ => ip,
    };
    Some(format!("{host}:{port}"))
}

/// How this server names nodes to clients.
fn preferred_endpoint(ctx: Ctx<'_>) -> String {
    call::setting(ctx, c"cluster-preferred-endpoint-type").unwrap_or_default()
}

fn my_id() -> Option<String> {
    // SAFETY: the function takes no argument; its result, if there is one, is an id of 40 bytes.
    unsafe {
        let id = api!(RedisModule_GetMyClusterID());
        if id.is_null() {
            return None;
        }
        let bytes =
            std::slice::from_raw_parts(id.cast::<u8>(), raw::REDISMODULE_NODE_ID_LEN as usize);
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::{endpoint, hash_tag, is_importing, is_migrating, serves};

    #[test]
    fn nodes_are_read_from_the_lines_of_cluster_nodes() {
        let line = "07c3 127.0.0.1:30004@31004,host-4,shard-id=69 myself,master - 0 1 4 connected 0 5-6 10-20 [93-<-292f] [77->-e7d1]";
        for (slot, is_served) in [(0, true), (5, true), (7, false), (20, true), (93, false)] {
            assert_eq!(serves(line, slot), is_served, "{slot}");
        }
        assert!(is_importing(line, 93) && !is_importing(line, 9) && !is_importing(line, 77));
        assert!(is_migrating(line, 77) && !is_migrating(line, 7) && !is_migrating(line, 93));
        let address = line.split(' ').nth(1).unwrap_or_default();
        for (address, preferred, named) in [
            (address, "ip", "127.0.0.1:30004"),
            (address, "hostname", "host-4:30004"),
            (address, "unknown-endpoint", ":30004"),
            ("::1:30004@31004", "ip", "::1:30004"),
            ("10.0.0.1:1@2", "hostname", "?:1"),
            ("10.0.0.1:1@2,", "hostname", "?:1"),
        ] {
            assert_eq!(
                endpoint(address, preferred).as_deref(),
                Some(named),
                "{address}"
            );
        }
    }

    #[test]
    fn hash_tags_are_those_of_the_cluster_specification() {
        for (key, tag) in [
            ("{user1000}.following", "user1000"),
            ("foo{}{bar}", "foo{}{bar}"),
            ("foo{{bar}}zap", "{bar"),
            ("foo{bar}{zap}", "bar"),
            ("foo{bar", "foo{bar"),
            ("", ""),
        ] {
            assert_eq!(hash_tag(key.as_bytes()), tag.as_bytes(), "{key}");
        }
    }
}
