//! A defect of Redis 8.4 and later: a node that hangs after its replica has taken over.
//!
//! If the last message that the new master sent as a replica arrives late, the former master takes each of both for the replica
//! of the other. The next pass of the server over keys that expire follows this circle for ever. The cause is the same as in
//! <https://github.com/valkey-io/valkey/issues/1015>, where it is explained.

use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use crate::support::{Raw, Server};

/// What a former master logs if such a message arrives.
const LATE_MESSAGE: &str = "Ignore stale message from";

/// A node that answers within this time does not hang.
const ANSWER: Duration = Duration::from_secs(10);

/// With so many clusters at most a test is tried.
const ATTEMPTS: usize = 4;

/// Runs a test in which masters of a cluster change. If it fails and a node hangs in this way, it is repeated with another
/// cluster.
pub fn with_changing_masters<C>(start: impl Fn() -> C, test: impl Fn(&C))
where
    C: AsRef<[Server]>,
{
    for _ in 0..ATTEMPTS {
        let cluster = start();
        let Err(failure) = panic::catch_unwind(AssertUnwindSafe(|| test(&cluster))) else {
            return;
        };
        if !cluster.as_ref().iter().any(hangs) {
            panic::resume_unwind(failure);
        }
        eprintln!("the server hangs by its own defect: the test is repeated");
    }
    panic!("a node hangs in each of {ATTEMPTS} clusters");
}

fn hangs(node: &Server) -> bool {
    let answers = || {
        let mut client = Raw::try_connect(node.port())?;
        client.try_call(["PING"], ANSWER)
    };
    node.is_running() && node.log().contains(LATE_MESSAGE) && matches!(answers(), Ok(None))
}
