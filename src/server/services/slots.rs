//! The hash slots of a cluster: the slot of a key, and the node of a slot.
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>

use crate::server::handles::context::Ctx;
use bitvec::BitArr;
use crc::{CRC_16_XMODEM, Crc};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this server is a node of a cluster.
static IN_CLUSTER: AtomicBool = AtomicBool::new(false);

/// Whether this server is a node of a cluster. The answer never changes while the server runs.
#[inline]
pub fn is_in_cluster() -> bool {
    IN_CLUSTER.load(Ordering::Relaxed)
}

pub(in crate::server) fn learn_cluster(ctx: Ctx<'_>) {
    IN_CLUSTER.store(ctx.is_cluster(), Ordering::Relaxed);
}

/// The number of hash slots.
pub const SLOTS: usize = 16384;

/// Hash slots.
pub(in crate::server) type SlotSet = BitArr!(for SLOTS, in u64);

static CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The hash slot of a key.
pub fn slot_of(key: &[u8]) -> u16 {
    CRC.checksum(hash_tag(key)) % SLOTS as u16
}

/// The hash tag of a key: the bytes between the first `{` and the next `}`. Without such bytes, the whole key.
fn hash_tag(key: &[u8]) -> &[u8] {
    let tag = || {
        let start = key.iter().position(|byte| *byte == b'{')? + 1;
        let length = key[start..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &key[start..start + length])
    };
    tag().unwrap_or(key)
}

/// A key name in this hash slot. The search computes some ten thousand hashes.
pub fn key_in(slot: u16) -> Vec<u8> {
    let names = (0_u64..).map(|number| format!("sluice:fence:{{{number}}}").into_bytes());
    let mut names = names.filter(|name| slot_of(name) == slot);
    names.next().expect("every slot has keys")
}

/// Ranges of hash slots, each with its first and its last slot.
pub type Ranges = Box<[(u16, u16)]>;

/// Whether the slot is in one of the ranges.
pub fn contains(ranges: &[(u16, u16)], slot: u16) -> bool {
    ranges
        .iter()
        .any(|(first, last)| (*first..=*last).contains(&slot))
}

/// The nodes of a cluster and their hash slots, from `CLUSTER NODES`.
#[derive(Debug, Default)]
pub struct Nodes {
    /// For each hash slot, the index of its node plus 1; 0: no node owns it.
    owners: Vec<u16>,
    nodes: Vec<Node>,
    /// The index of this node.
    own: Option<usize>,
    moving: HashMap<u16, Motion>,
    /// The hash slots of this node, as `CLUSTER NODES` lists them.
    own_slots: String,
}

#[derive(Debug)]
struct Node {
    id: String,
    address: String,
}

/// The direction in which a hash slot moves by `CLUSTER SETSLOT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Motion {
    Importing,
    Migrating,
}

impl Nodes {
    /// Parses the lines of `CLUSTER NODES`:
    /// `<id> <ip:port@port[,host]> <flags> <master> <ping> <pong> <epoch> <link> <slots>...`.
    pub fn parse(text: &str) -> Self {
        let mut nodes = Self {
            owners: vec![0; SLOTS],
            ..Self::default()
        };
        for line in text.lines() {
            nodes.read_line(line);
        }
        nodes
    }

    fn read_line(&mut self, line: &str) {
        let mut words = line.split(' ');
        let (Some(id), Some(address), Some(flags)) = (words.next(), words.next(), words.next())
        else {
            return;
        };
        let number = self.nodes.len();
        let is_own = flags.split(',').any(|flag| flag == "myself");
        self.nodes.push(Node {
            id: id.to_owned(),
            address: address.to_owned(),
        });
        if is_own {
            self.own = Some(number);
            self.own_slots = line.split(' ').skip(8).collect::<Vec<_>>().join(" ");
        }
        for word in words.skip(5) {
            if let Some(moving) = word.strip_prefix('[') {
                if is_own {
                    self.read_moving(moving);
                }
                continue;
            }
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>())
                && let Some(slots) = self.owners.get_mut(first..=last)
            {
                slots.fill(u16::try_from(number + 1).unwrap_or(0));
            }
        }
    }

    /// Parses `93-<-<id>]` or `77->-<id>]`, which only the line of this node contains.
    fn read_moving(&mut self, word: &str) {
        let (slot, motion) = match (word.split_once("-<-"), word.split_once("->-")) {
            (Some((slot, _)), _) => (slot, Motion::Importing),
            (_, Some((slot, _))) => (slot, Motion::Migrating),
            _ => return,
        };
        if let Ok(slot) = slot.parse() {
            self.moving.insert(slot, motion);
        }
    }

    fn owner(&self, slot: u16) -> Option<usize> {
        let number = *self.owners.get(usize::from(slot))?;
        usize::from(number).checked_sub(1)
    }

    /// Whether this node owns the hash slot.
    pub fn is_own(&self, slot: u16) -> bool {
        self.own.is_some() && self.owner(slot) == self.own
    }

    /// Whether this node imports the hash slot key by key.
    pub fn is_importing(&self, slot: u16) -> bool {
        self.moving.get(&slot) == Some(&Motion::Importing)
    }

    /// Whether the hash slot moves to or from this node key by key.
    pub fn is_moving(&self, slot: u16) -> bool {
        self.moving.contains_key(&slot)
    }

    /// The id and the address (`ip:port@bus-port[,hostname[,...]]`) of the node that owns a hash slot.
    pub fn server_of(&self, slot: u16) -> Option<(&str, &str)> {
        let node = &self.nodes[self.owner(slot)?];
        Some((&node.id, &node.address))
    }

    /// Whether the hash slots of this node are the same in both lists, and move in the same way.
    pub fn has_same_slots(&self, other: &Self) -> bool {
        self.own_slots == other.own_slots
    }

    /// The hash slots that may have moved between the two lists: owned in only one, moving in only one, or moving in different directions.
    /// Also the slots that commands have `assigned` to this node meanwhile, because they may have left and returned.
    pub(in crate::server) fn difference(&self, other: &Self, assigned: &SlotSet) -> Ranges {
        let differs = |slot: &u16| {
            assigned[usize::from(*slot)]
                || self.is_own(*slot) != other.is_own(*slot)
                || self.moving.get(slot) != other.moving.get(slot)
        };
        ranges((0..SLOTS as u16).filter(differs))
    }
}

/// The ranges of these hash slots, which are in ascending order.
pub(in crate::server) fn ranges(slots: impl Iterator<Item = u16>) -> Ranges {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for slot in slots {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == slot => *last = slot,
            _ => ranges.push((slot, slot)),
        }
    }
    ranges.into()
}

/// The endpoint for a redirection to the node `ip:port@bus-port[,hostname[,...]]`, by `cluster-preferred-endpoint-type`.
pub fn endpoint(address: &str, preferred: &str) -> Option<String> {
    let (ip_and_port, rest) = address.split_once('@')?;
    let (ip, port) = ip_and_port.rsplit_once(':')?;
    let hostname = rest.split(',').nth(1).unwrap_or_default();
    let host = match preferred {
        "hostname" if hostname.is_empty() => "?",
        "hostname" => hostname,
        "unknown-endpoint" => "", // the client uses the address of its connection
        _ => ip,
    };
    Some(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_from_the_lines_of_cluster_nodes() {
        let text = "07c3 127.0.0.1:30004@31004,host-4,shard-id=69 myself,master - 0 1 4 connected 0 5-6 10-20 [93-<-292f] [77->-e7d1]\n\
                    292f 127.0.0.1:30005@31005 master - 0 1 5 connected 77-93 [5->-07c3]\n\
                    aaaa 127.0.0.1:30006@31006 slave 292f 0 1 5 connected\n";
        let nodes = Nodes::parse(text);
        for (slot, is_own) in [(0, true), (5, true), (7, false), (20, true), (93, false)] {
            assert_eq!(nodes.is_own(slot), is_own, "{slot}");
        }
        assert!(nodes.is_importing(93) && nodes.is_moving(93) && !nodes.is_importing(77));
        assert!(nodes.is_moving(77) && !nodes.is_moving(5) && !nodes.is_moving(9));
        assert_eq!(nodes.server_of(80), Some(("292f", "127.0.0.1:30005@31005")));
        assert_eq!(nodes.server_of(7), None);
        let none = SlotSet::ZERO;
        let later = Nodes::parse(&text.replace("10-20", "10-12 16-19 30"));
        assert!(!later.has_same_slots(&nodes));
        assert_eq!(
            *later.difference(&nodes, &none),
            [(13, 15), (20, 20), (30, 30)]
        );
        let mut assigned = SlotSet::ZERO;
        assigned.set(8, true);
        assert_eq!(*nodes.difference(&nodes, &assigned), [(8, 8)]);
        let raised = Nodes::parse(&text.replace("1 4 connected", "1 6 connected"));
        assert!(raised.has_same_slots(&nodes) && raised.difference(&nodes, &none).is_empty());
        let other = Nodes::parse(&text.replace("[77->-", "[93->-"));
        assert!(!other.has_same_slots(&nodes));
        assert_eq!(*other.difference(&nodes, &none), [(77, 77), (93, 93)]);
        assert!(nodes.difference(&nodes, &none).is_empty());
        assert!(contains(&later.difference(&nodes, &none), 14) && !contains(&[(13, 15)], 16));
    }

    #[test]
    fn addresses_are_named_as_the_server_names_them() {
        for (address, preferred, named) in [
            ("127.0.0.1:1@2,host-4,shard-id=69", "ip", "127.0.0.1:1"),
            ("127.0.0.1:1@2,host-4", "hostname", "host-4:1"),
            ("127.0.0.1:1@2,host-4", "unknown-endpoint", ":1"),
            ("::1:30004@31004", "ip", "::1:30004"),
            ("10.0.0.1:1@2", "hostname", "?:1"),
            ("10.0.0.1:1@2,", "hostname", "?:1"),
        ] {
            let endpoint = endpoint(address, preferred);
            assert_eq!(endpoint.as_deref(), Some(named), "{address}");
        }
    }

    #[test]
    fn slots_and_hash_tags_are_those_of_the_cluster_specification() {
        for (key, slot) in [
            ("foo", 12182),
            ("bar", 5061),
            ("", 0),
            ("123456789", 0x31c3),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
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
        for slot in [0, 5061, 16383] {
            assert_eq!(slot_of(&key_in(slot)), slot);
        }
    }
}
