//! Thousands of connections that one thread serves: it sends on any of them, and hears who has replies.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::client::Raw;
use super::process::allow_open_files;
use super::server::Server;
use super::value::Value;

/// The server's listen queue holds 511 connections: it gets the time to accept before that many are under way.
const CONNECTS_PER_BREATH: usize = 200;

/// Files that the test process needs besides the swarm.
const SPARE_FILES: u64 = 256;

/// The most members that all swarms of this process have at one time; a larger swarm gets its place when it is alone. Tests run in
/// parallel, and a process can often open no more than 20 000 files.
const MOST_MEMBERS: usize = 13_000;

/// The members of the present swarms.
static MEMBERS: Mutex<usize> = Mutex::new(0);
static SWARM_ENDED: Condvar = Condvar::new();

/// How many members one look finds at most.
const MOST: usize = 512;

/// Connections of which each sends and receives by itself. See [`Crowd`](super::Crowd) for one that waits together.
pub struct Swarm {
    members: Vec<Raw>,
    epoll: OwnedFd,
    /// The last field, because the connections are closed first.
    _place: Place,
}

/// The right of a swarm to have this many members.
struct Place(usize);

impl Place {
    /// Waits until other swarms have ended, if there are too many members. A test with two large swarms would wait for itself.
    fn wait_for(size: usize) -> Self {
        let members = MEMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |members: &mut usize| *members > 0 && *members + size > MOST_MEMBERS;
        let members = SWARM_ENDED.wait_while(members, is_full);
        *members.unwrap_or_else(PoisonError::into_inner) += size;
        Self(size)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *MEMBERS.lock().unwrap_or_else(PoisonError::into_inner) -= self.0;
        SWARM_ENDED.notify_all();
    }
}

impl Swarm {
    /// Opens `size` connections to `server`.
    #[track_caller]
    pub fn connect(server: &Server, size: usize) -> Self {
        let place = Place::wait_for(size);
        allow_open_files(size as u64 + SPARE_FILES);
        let mut swarm = Self {
            members: Vec::with_capacity(size),
            epoll: new_epoll(),
            _place: place,
        };
        let mut control = Raw::connect(server);
        for index in 0..size {
            let member = Raw::connect(server);
            watch(&swarm.epoll, member.fd(), index as u64);
            swarm.members.push(member);
            if index % CONNECTS_PER_BREATH == 0 {
                control.call(["PING"]);
            }
        }
        swarm
    }

    /// How many members there are.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// A member sends these bytes.
    #[track_caller]
    pub fn send(&mut self, index: usize, bytes: &[u8]) {
        self.members[index].send_bytes(bytes);
    }

    /// The members that have something to read, some of them if there are many; none if `limit` is over before.
    #[track_caller]
    pub fn ready(&self, limit: Duration) -> Vec<usize> {
        if !readable_within(self.epoll.as_raw_fd(), limit) {
            return Vec::new();
        }
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST];
        // SAFETY: the pointer and the count are those of one array, which lives through the call.
        let found = unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), MOST as i32, 0)
        };
        let found = usize::try_from(found).unwrap_or(0); // a signal came
        events[..found]
            .iter()
            .map(|event| event.u64 as usize)
            .collect()
    }

    /// The replies of a member that are there; panics when its connection is closed.
    #[track_caller]
    pub fn replies(&mut self, index: usize) -> Vec<Value> {
        let member = &mut self.members[index];
        member.receive_arrived().expect("the connection failed");
        std::iter::from_fn(|| member.take_arrived()).collect()
    }
}

fn new_epoll() -> OwnedFd {
    // SAFETY: a plain system call.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    assert!(epoll >= 0, "epoll_create1: {}", io::Error::last_os_error());
    // SAFETY: the kernel has just given us this file, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(epoll) }
}

fn watch(epoll: &OwnedFd, member: RawFd, index: u64) {
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: index,
    };
    // SAFETY: `event` is valid for the kernel to read; a member that is closed leaves the set by itself.
    let added = unsafe {
        libc::epoll_ctl(
            epoll.as_raw_fd(),
            libc::EPOLL_CTL_ADD,
            member,
            &raw mut event,
        )
    };
    assert_eq!(added, 0, "epoll_ctl: {}", io::Error::last_os_error());
}

/// Waits more exactly than `epoll_wait` can, whose clock has milliseconds.
fn readable_within(file: RawFd, limit: Duration) -> bool {
    let mut watched = libc::pollfd {
        fd: file,
        events: libc::POLLIN,
        revents: 0,
    };
    let limit = libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: limit.subsec_nanos().into(),
    };
    // SAFETY: both pointers are valid through the call; there is one descriptor.
    unsafe { libc::ppoll(&raw mut watched, 1, &raw const limit, std::ptr::null()) > 0 }
}
