//! Thousands of connections that wait at the same time.

use std::io;
use std::time::{Duration, Instant};

use super::client::Raw;
use super::process::allow_open_files;
use super::server::Server;
use super::value::Value;
use super::wait::holds_within;

/// The server's listen queue holds 511 connections: it gets the time to accept before that many are under way.
const CONNECTS_PER_BREATH: usize = 200;

/// How many members ask before the test looks whether the server has taken them in.
const ASKS_PER_LOOK: usize = 250;

/// A server that has not taken a command in after this never will.
const PATIENCE: Duration = Duration::from_secs(300);

/// Files that the test process needs besides the crowd.
const SPARE_FILES: u64 = 256;

/// Connections that each wait for one reply.
pub struct Crowd {
    members: Vec<Raw>,
    /// Tells, by its replies, that the server has read what the members sent before.
    control: Raw,
    /// The server's numbers of the members, if it has I/O threads: it does not read them in order then.
    ids: Vec<i64>,
}

impl Crowd {
    /// Opens `size` connections to `server`.
    #[track_caller]
    pub fn connect(server: &Server, size: usize) -> Self {
        allow_open_files(size as u64 + SPARE_FILES);
        let mut crowd = Self {
            members: Vec::with_capacity(size),
            control: Raw::connect(server),
            ids: Vec::new(),
        };
        let setting = crowd.control.call(["CONFIG", "GET", "io-threads"]);
        let has_threads = !setting.is_err() && setting.array()[1].text() != "1";
        for number in 1..=size {
            crowd.members.push(Raw::connect(server));
            if number % CONNECTS_PER_BREATH == 0 {
                crowd.let_the_server_catch_up();
            }
        }
        crowd.let_the_server_catch_up();
        if has_threads {
            crowd.ids = crowd.members.iter_mut().map(Raw::id).collect();
        }
        crowd
    }

    /// How many members there are.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// One member's connection.
    pub fn member(&mut self, index: usize) -> &mut Raw {
        &mut self.members[index]
    }

    /// Member 0 sends `command(0)`, then member 1 sends `command(1)`, and so on: the server executes them in this order.
    ///
    /// Every few hundred members, and at the end, this waits until `accepted(n)` holds, where `n` members have asked.
    /// It is where a test looks at `INFO sluice` or `LOCK.INFO`.
    #[track_caller]
    pub fn ask_in_order<C>(
        &mut self,
        command: impl Fn(usize) -> C,
        mut accepted: impl FnMut(usize) -> bool,
    ) where
        C: IntoIterator,
        C::Item: AsRef<[u8]>,
    {
        let size = self.size();
        for index in 0..size {
            self.members[index].send(command(index));
            self.await_execution(index);
            let asked = index + 1;
            if asked % ASKS_PER_LOOK == 0 || asked == size {
                let taken_in = holds_within(PATIENCE, &mut || accepted(asked));
                assert!(
                    taken_in,
                    "{asked} members have asked, and not all of them wait"
                );
            }
        }
    }

    /// The next `count` replies with their members, as they arrive.
    ///
    /// Replies that arrive between two looks are in the order of the members: where the exact order matters, release
    /// one member at a time, or compare what the replies say (fences rise). Panics when fewer arrive within `limit`.
    #[track_caller]
    pub fn replies(&mut self, count: usize, limit: Duration) -> Vec<(usize, Value)> {
        let replies = self.replies_within(count, limit);
        let got = replies.len();
        assert!(got == count, "{got} of {count} replies within {limit:?}");
        replies
    }

    /// Up to `count` replies with their members, as they arrive until `limit` is over.
    #[track_caller]
    pub fn replies_within(&mut self, count: usize, limit: Duration) -> Vec<(usize, Value)> {
        let deadline = Instant::now() + limit;
        let mut replies = Vec::new();
        while replies.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            let ready = self.ready_within(left);
            if ready.is_empty() {
                break;
            }
            for index in ready.into_iter().take(count - replies.len()) {
                // A reply may have arrived in part only: then the member is ready again when the rest comes.
                if let Some(reply) = self.members[index].read_within(Duration::ZERO) {
                    replies.push((index, reply));
                }
            }
        }
        replies
    }

    /// Waits until the server has executed what a member has sent: the member waits, or has a reply.
    #[track_caller]
    pub fn await_execution(&mut self, index: usize) {
        let Some(id) = self.ids.get(index) else {
            return self.let_the_server_catch_up();
        };
        let id = id.to_string();
        let (member, control) = (&self.members[index], &mut self.control);
        let executed = holds_within(PATIENCE, &mut || {
            let line = control.call(["CLIENT", "LIST", "ID", &id]);
            let flags = line
                .text()
                .split(' ')
                .find_map(|field| field.strip_prefix("flags="));
            let mut watched = [watch(member)];
            poll(&mut watched, Duration::ZERO);
            flags.is_some_and(|flags| flags.contains('b')) || watched[0].revents != 0
        });
        assert!(executed, "member {index} is not served");
    }

    /// Without I/O threads the server reads connections in the order in which they became readable, and answers only after it has executed
    /// what it had read: once this returns, the commands that members sent before are executed.
    #[track_caller]
    fn let_the_server_catch_up(&mut self) {
        let reply = self.control.call(["PING"]);
        assert!(
            !reply.is_err() || reply.err().starts_with("NOAUTH"),
            "PING: {reply:?}"
        );
    }

    /// The members that have something to read, at the latest after `limit`.
    fn ready_within(&self, limit: Duration) -> Vec<usize> {
        let mut watched: Vec<_> = self.members.iter().map(watch).collect();
        poll(&mut watched, limit);
        let ready = watched.iter().enumerate();
        ready
            .filter(|(_, watch)| watch.revents != 0)
            .map(|(index, _)| index)
            .collect()
    }
}

fn watch(member: &Raw) -> libc::pollfd {
    libc::pollfd {
        fd: member.fd(),
        events: libc::POLLIN,
        revents: 0,
    }
}

fn poll(watched: &mut [libc::pollfd], limit: Duration) {
    let milliseconds = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
    let count = watched.len() as libc::nfds_t;
    // SAFETY: the pointer and the count are those of one slice, which lives through the call.
    let found = unsafe { libc::poll(watched.as_mut_ptr(), count, milliseconds) };
    assert!(found >= 0, "poll: {}", io::Error::last_os_error());
}
