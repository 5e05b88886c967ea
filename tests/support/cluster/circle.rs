//! A defect of Redis 8.4 and later: a node that hangs after its replica has taken over.
//!
//! If the last message that the new master sent as a replica arrives late, the former master stores each of the two nodes as the
//! replica of the other. Its next pass over keys that expire then follows this circle forever. The cause is the same as in
//! <https://github.com/valkey-io/valkey/issues/1015>, which explains it.

use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use crate::support::{Raw, Server};

/// A former master logs this if such a message arrives.
pub const LATE_MESSAGE: &str = "Ignore stale message from";

/// A node that answers within this time does not hang.
const ANSWER: Duration = Duration::from_secs(30);

/// The maximum number of clusters for one test.
const ATTEMPTS: usize = 4;

/// Runs a test in which masters of a cluster change. If it fails, the server has this defect, and a node hangs in this way, the test
/// is repeated with another cluster.
pub fn with_changing_masters<C>(start: impl Fn() -> C, test: impl Fn(&C))
where
    C: AsRef<[Server]>,
{
    for _ in 0..ATTEMPTS {
        let cluster = start();
        let has_defect = cluster.as_ref().first().is_some_and(has_defect);
        let Err(failure) = panic::catch_unwind(AssertUnwindSafe(|| test(&cluster))) else {
            return;
        };
        let mut nodes = cluster.as_ref().iter();
        match nodes.find(|node| has_defect && hangs(node)) {
            Some(node) => eprintln!(
                "the node on port {} hangs by a defect of the server: the test is repeated",
                node.port()
            ),
            None => panic::resume_unwind(failure),
        }
    }
    panic!("a node hangs in each of {ATTEMPTS} clusters");
}

/// Whether the server may have this defect. Valkey says that it is Redis 7.2.
pub fn has_defect(node: &Server) -> bool {
    let version = node.info("redis_version").unwrap_or_default();
    let numbers: Vec<u32> = version.split('.').flat_map(str::parse).collect();
    numbers >= vec![8, 4]
}

fn hangs(node: &Server) -> bool {
    let answer = || {
        let mut client = Raw::try_connect(node.port())?;
        client.try_call(["PING"], ANSWER)
    };
    node.is_running() && node.log().contains(LATE_MESSAGE) && matches!(answer(), Ok(None))
}
