//! Ports for servers.
//!
//! Not by binding port 0: the kernel answers from the range that outgoing connections use too, and a test with thousands
//! of them would sooner or later sit on the port that a killed server wants back. The ports below that range are ours.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below Linux's default `ip_local_port_range`, which begins at 32768.
const FIRST: u32 = 12_000;
const COUNT: u32 = 20_000;

/// Test processes that run at the same time begin far from each other.
const STRIDE: u32 = 997;

static TAKEN: AtomicU32 = AtomicU32::new(0);

/// A port that nobody listens on now, and that this process has not handed out before.
///
/// Another process may still be faster: the caller tries another one when its server says that the port is taken.
pub(super) fn free() -> u16 {
    (0..COUNT)
        .map(|_| next_candidate())
        .find(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
        .expect("no free port on 127.0.0.1")
}

fn next_candidate() -> u16 {
    let start = std::process::id().wrapping_mul(STRIDE);
    let offset = start.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % COUNT;
    u16::try_from(FIRST + offset).expect("the range ends below 65536")
}
