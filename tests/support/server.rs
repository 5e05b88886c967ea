//! A real server, alone in a directory and on a port of its own.

use std::ffi::OsString;
use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::builder::Builder;
use super::client::Raw;
use super::clock::Clock;
use super::home::Home;
use super::process::{signal, signal_group, spawn};
use super::talk::SOON;
use super::value::Value;
use super::wait::{eventually, holds_within};

/// Long enough to load a large dataset on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Between two looks at a server that is about to start.
const PAUSE: Duration = Duration::from_millis(2);

/// How long a process that has given up may take to end.
const LAST_MOMENT: Duration = Duration::from_secs(2);

/// How long to wait for an answer at a time: who is about to end, or to hang, accepts connections too.
const GLANCE: Duration = Duration::from_secs(1);

/// A step of the clock that is much longer than the time until it is seen.
const LARGE_STEP_MS: i64 = 600_000;

const STOP_LIMIT: Duration = Duration::from_secs(120);
const SYNC_LIMIT: Duration = Duration::from_secs(120);

/// A reply that a client waits for longer than this is taken for lost.
const CLIENT_PATIENCE: Duration = Duration::from_secs(60);

/// What the module logs of a panic.
const PANIC: &str = "<sluice> internal error: ";

/// How many lines of the log a failure shows.
const LOG_TAIL: usize = 40;

/// How many lines of a crash report are printed: it begins with the stack trace.
const CRASH_LINES: usize = 40;

const BINARY_VARIABLE: &str = "SERVER";

/// The program of the server under test.
pub fn program() -> OsString {
    std::env::var_os(BINARY_VARIABLE).unwrap_or_else(|| "redis-server".into())
}

/// What `SHUTDOWN` does with the dataset.
#[derive(Clone, Copy, Debug)]
pub enum Shutdown {
    /// Writes an RDB file.
    Save,
    /// Writes nothing.
    NoSave,
}

/// How the start of a process went.
pub(super) enum Launch {
    Answers,
    PortTaken,
    Died(ExitStatus),
}

/// A server that runs until this is dropped; then it is killed and its directory removed, also when a test panics.
///
/// When the whole test process dies, the kernel kills the server (see `process.rs`).
pub struct Server {
    port: u16,
    home: Home,
    is_sentinel: bool,
    clock: Option<Clock>,
    /// The program that runs the server, and its arguments.
    wrapper: Vec<String>,
    /// `None` while the server is stopped. A lock, so that one thread may kill what others are talking to.
    child: Mutex<Option<Child>>,
}

impl Server {
    /// A server with the module and without persistence.
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Choices for a server.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// A server, and how its first start went.
    pub(super) fn launched(builder: &Builder, port: u16) -> (Self, Launch) {
        let home = Home::create();
        fs::write(home.config(), builder.config_file(&home, port))
            .expect("cannot write the configuration");
        let server = Self {
            port,
            is_sentinel: builder.is_sentinel(),
            clock: builder.own_clock(&home),
            wrapper: builder.wrapper().to_vec(),
            home,
            child: Mutex::new(None),
        };
        let launch = server.launch();
        (server, launch)
    }

    /// Starts the process and waits until it answers or is gone.
    fn launch(&self) -> Launch {
        self.launch_unless(|_| false)
    }

    /// The same. A process whose log says that it will never answer has a moment left to end, then it is killed.
    fn launch_unless(&self, is_hopeless: impl Fn(&str) -> bool) -> Launch {
        let log_start = self.log().len();
        let child = self.spawn();
        let pid = child.id();
        *self.child() = Some(child);
        let deadline = Instant::now() + START_LIMIT;
        while !self.answers(pid) {
            if !self.is_running() {
                let status = self.await_exit();
                let port_taken = self.log()[log_start..].contains("Address already in use");
                return if port_taken {
                    Launch::PortTaken
                } else {
                    Launch::Died(status)
                };
            }
            if is_hopeless(&self.log()[log_start..]) {
                holds_within(LAST_MOMENT, &mut || !self.is_running());
                return Launch::Died(destroy(&mut self.take_child()));
            }
            assert!(Instant::now() < deadline, "the server does not answer");
            thread::sleep(PAUSE);
        }
        Launch::Answers
    }

    fn spawn(&self) -> Child {
        let binary = program();
        let mut words = self
            .wrapper
            .iter()
            .map(OsString::from)
            .chain([binary.clone()]);
        let mut command = Command::new(words.next().expect("the server is one"));
        command
            .args(words)
            .arg(self.home.config())
            .args(self.is_sentinel.then_some("--sentinel"))
            // The C library reserves 128 MiB for each thread that uses its allocator: tests measure what is asked for.
            .env("MALLOC_ARENA_MAX", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(self.home.log_file());
        if let Some(clock) = &self.clock {
            clock.govern(&mut command);
        }
        spawn(command).unwrap_or_else(|error| {
            let binary = Path::new(&binary).display();
            panic!("cannot start {binary}: {error}. {BINARY_VARIABLE} names another server.")
        })
    }

    /// Whether the process `pid` serves this port and has loaded its dataset.
    fn answers(&self, pid: u32) -> bool {
        let reply = Raw::try_connect(self.port)
            .and_then(|mut client| client.try_call(["INFO", "everything"], GLANCE));
        match reply {
            // Somebody else's server may listen where ours could not.
            Ok(Some(Value::Bulk(info))) => {
                let info = String::from_utf8_lossy(&info);
                field_of(&info, "process_id") == Some(&pid.to_string())
                    // A Sentinel has nothing to load, and says nothing of it.
                    && field_of(&info, "loading").unwrap_or("0") == "0"
            }
            // A password, which the test knows.
            Ok(Some(Value::Error(text))) => text.starts_with("NOAUTH"),
            _ => false,
        }
    }

    /// A connection of the `redis` crate.
    #[track_caller]
    pub fn client(&self) -> redis::Connection {
        let connection = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port))
            .and_then(|client| client.get_connection())
            .expect("cannot connect");
        connection
            .set_read_timeout(Some(CLIENT_PATIENCE))
            .expect("cannot set a timeout");
        connection
    }

    /// The port it listens on, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its working directory, with its RDB file and `appendonlydir`.
    pub fn dir(&self) -> &Path {
        self.home.path()
    }

    /// All it has logged, over all its starts.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.home.log()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Empties the log: what it says of panics was provoked. Otherwise a panic of the module fails the test at its end.
    pub fn forget_panics(&self) {
        fs::write(self.home.log(), "").expect("cannot empty the log");
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        let crash = lines
            .iter()
            .position(|line| line.contains("BUG REPORT START"));
        if let Some(start) = crash {
            let end = lines.len().min(start + CRASH_LINES);
            return lines[start.saturating_sub(LOG_TAIL / 2)..end].join("\n");
        }
        lines[lines.len().saturating_sub(LOG_TAIL)..].join("\n")
    }

    /// The process id; panics while the server is stopped.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.child().as_ref().expect("the server is stopped").id()
    }

    /// Whether the process runs (it may be stopped by a signal).
    pub fn is_running(&self) -> bool {
        self.child()
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Kills it, and what it has forked, as a power cut would.
    #[track_caller]
    pub fn kill9(&self) {
        let mut child = self.take_child();
        destroy(&mut child);
    }

    /// `SHUTDOWN`, and the end of the process.
    #[track_caller]
    pub fn shutdown(&self, mode: Shutdown) -> ExitStatus {
        let word = match mode {
            Shutdown::Save => "SAVE",
            Shutdown::NoSave => "NOSAVE",
        };
        Raw::connect(self).send(["SHUTDOWN", word]);
        self.await_exit()
    }

    /// SIGTERM, and the end of the process: what `systemctl stop` does.
    #[track_caller]
    pub fn terminate(&self) -> ExitStatus {
        signal(self.pid(), libc::SIGTERM);
        self.await_exit()
    }

    /// Waits until the process ends by itself: a test has made it crash or shut down.
    #[track_caller]
    pub fn await_exit(&self) -> ExitStatus {
        let gone = holds_within(STOP_LIMIT, &mut || !self.is_running());
        assert!(gone, "the server does not stop:\n{}", self.log_tail());
        let mut child = self.take_child();
        child.wait().expect("cannot wait for the server")
    }

    /// Starts it again after [`Server::kill9`], [`Server::shutdown`] or [`Server::await_exit`]: same port, same files.
    #[track_caller]
    pub fn restart(&self) {
        assert!(self.child().is_none(), "the server runs: stop it first");
        let deadline = Instant::now() + STOP_LIMIT;
        loop {
            match self.launch() {
                Launch::Answers => return,
                Launch::PortTaken => {
                    assert!(
                        Instant::now() < deadline,
                        "somebody took port {}",
                        self.port
                    );
                }
                Launch::Died(status) => self.report_death(status),
            }
        }
    }

    /// Like [`Server::restart`], for a server that may refuse what it finds: how it ended, or `None` if it answers. Where
    /// its log says that it has refused, it is killed if it does not end.
    #[track_caller]
    pub fn try_restart(&self, has_refused: impl Fn(&str) -> bool) -> Option<ExitStatus> {
        assert!(self.child().is_none(), "the server runs: stop it first");
        loop {
            match self.launch_unless(&has_refused) {
                Launch::Answers => return None,
                Launch::PortTaken => {}
                Launch::Died(status) => return Some(status),
            }
        }
    }

    #[track_caller]
    pub(super) fn report_death(&self, status: ExitStatus) -> ! {
        panic!(
            "the server died at its start, {status}:\n{}",
            self.log_tail()
        );
    }

    /// Freezes the process (SIGSTOP): it keeps its connections and answers nobody.
    #[track_caller]
    pub fn stop_signal(&self) {
        signal(self.pid(), libc::SIGSTOP);
    }

    /// Lets a frozen process go on (SIGCONT).
    #[track_caller]
    pub fn cont_signal(&self) {
        signal(self.pid(), libc::SIGCONT);
    }

    /// Sets its clock forward by so many milliseconds, or back if that is negative; it was started with
    /// [`Builder::clock`]. If the server runs, this waits until it has seen a large step: newer servers look at the clock
    /// less often than commands come.
    #[track_caller]
    pub fn shift_clock(&self, by_ms: i64) {
        let clock = self.clock.as_ref().expect("it goes by the machine's clock");
        let is_noticed = self.is_running() && by_ms.abs() > LARGE_STEP_MS;
        let before = is_noticed.then(|| self.time_seen_ms());
        clock.shift(by_ms).expect("cannot shift the clock");
        let is_near = |time: i64| (time - by_ms).abs() < by_ms.abs() / 2;
        let has_looked = |before| is_near(self.time_seen_ms() - before);
        let seen = holds_within(START_LIMIT, &mut || before.is_none_or(has_looked));
        assert!(seen, "the server does not look at its clock");
    }

    /// How often it has gone to sleep until something happens or a time comes; it was started with [`Builder::clock`]. A
    /// server whose next time is in the past does not sleep any more.
    #[track_caller]
    pub fn sleeps(&self) -> i64 {
        let clock = self.clock.as_ref().expect("it was started without a clock");
        clock.sleeps().expect("cannot read the count")
    }

    /// From now on, every reading of its clock sets the clock forward by so many microseconds, as if all work took that long; it
    /// was started with [`Builder::clock`].
    #[track_caller]
    pub fn shift_clock_per_reading(&self, us: i64) {
        let clock = self.clock.as_ref().expect("it was started without a clock");
        clock.shift_per_reading(us).expect("cannot set the clock");
    }

    /// Freezes the server's clock: from now on, only shifts change it, so the server measures no time for its work. If `is_frozen` is
    /// false, the clock runs again. The server must have been started with [`Builder::clock`].
    pub fn freeze_clock(&self, is_frozen: bool) {
        let clock = self.clock.as_ref().expect("it was started without a clock");
        clock.freeze(is_frozen).expect("cannot freeze the clock");
    }

    /// Begins to count the writes in a round of its event loop; it was started with [`Builder::clock`].
    #[track_caller]
    pub fn count_writes(&self) {
        let clock = self.clock.as_ref().expect("it was started without a clock");
        clock.reset_most_writes().expect("cannot reset the count");
    }

    /// The largest number of writes of its main thread in one round since [`Server::count_writes`].
    #[track_caller]
    pub fn most_writes_in_a_round(&self) -> i64 {
        let clock = self.clock.as_ref().expect("it was started without a clock");
        clock
            .most_writes_in_a_round()
            .expect("cannot read the count")
    }

    /// Lets the server go to sleep `times` times, and returns how many commands it called meanwhile of its own accord.
    #[track_caller]
    pub fn calls_while_it_sleeps(&self, times: i64) -> i64 {
        self.command(["CONFIG", "RESETSTAT"]);
        let end = self.sleeps() + times;
        eventually(START_LIMIT, || self.sleeps() >= end);
        let statistics = self.command(["INFO", "commandstats"]);
        let lines = statistics.text().lines();
        let calls = lines.filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let (calls, _) = rest.split_once(',')?;
            // What this function itself has sent.
            (name != "config|resetstat").then(|| calls.parse::<i64>().expect("a number"))
        });
        calls.sum()
    }

    /// The time when it last looked at its clock.
    #[track_caller]
    fn time_seen_ms(&self) -> i64 {
        self.info_int("server_time_usec") / 1000
    }

    /// Makes it a replica of `master`; [`wait_for_replica_sync`] waits for the data. A restart forgets it.
    #[track_caller]
    pub fn replica_of(&self, master: &Self) {
        self.command(["REPLICAOF", "127.0.0.1", &master.port.to_string()]);
    }

    /// Makes it a master again.
    #[track_caller]
    pub fn promote(&self) {
        self.command(["REPLICAOF", "NO", "ONE"]);
    }

    /// Gives these slots to this cluster node, and a configuration epoch of its own, if it has none. Of two nodes with the same
    /// epoch, one chooses another when it hears of it, and with that takes back slots that have moved.
    #[track_caller]
    pub fn own_slots(&self, slots: RangeInclusive<u16>) {
        let (first, last) = (slots.start().to_string(), slots.end().to_string());
        let epoch = (slots.start() + 1).to_string();
        Raw::connect(self).call(["CLUSTER", "SET-CONFIG-EPOCH", &epoch]); // refused if it has one
        self.command(["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
    }

    /// Introduces this cluster node to `other`, again every second until they know each other: a node forgets a handshake that
    /// does not end within its `cluster-node-timeout`, which a test may have set to a short time.
    #[track_caller]
    pub fn meet(&self, other: &Self) {
        let bus_port = other.command(["CONFIG", "GET", "cluster-port"]);
        let port = other.port.to_string();
        let bus_port = bus_port.field("cluster-port").text();
        let mut sent: Option<Instant> = None;
        eventually(SYNC_LIMIT, || {
            if sent.is_none_or(|sent| sent.elapsed() > Duration::from_secs(1)) {
                self.command(["CLUSTER", "MEET", "127.0.0.1", &port, bus_port]);
                sent = Some(Instant::now());
            }
            self.knows(other) && other.knows(self)
        });
    }

    /// Whether this cluster node has ended its handshake with `other`.
    fn knows(&self, other: &Self) -> bool {
        let nodes = self.command(["CLUSTER", "NODES"]);
        let address = format!(":{}@", other.port);
        let mut nodes = nodes.text().lines();
        nodes.any(|node| node.contains(&address) && !node.contains("handshake"))
    }

    /// Waits until this node knows `nodes` nodes and an owner of every slot.
    #[track_caller]
    pub fn await_cluster(&self, nodes: usize) {
        eventually(SYNC_LIMIT, || {
            let info = self.command(["CLUSTER", "INFO"]);
            let info = info.text();
            field_of(info, "cluster_state") == Some("ok")
                && field_of(info, "cluster_known_nodes") == Some(&nodes.to_string())
        });
    }

    /// The digest of the whole dataset: equal on two servers whose datasets are equal.
    #[track_caller]
    pub fn digest(&self) -> String {
        self.command(["DEBUG", "DIGEST"]).text().into()
    }

    /// A field of `INFO everything`.
    #[track_caller]
    pub fn info(&self, field: &str) -> Option<String> {
        // The whole of it takes the server so long that asking often would slow a test down.
        let is_ours = field.starts_with("sluice_");
        let info = self.command(["INFO", if is_ours { "sluice" } else { "everything" }]);
        field_of(&String::from_utf8_lossy(info.bytes()), field).map(Into::into)
    }

    /// A field of `INFO everything` that is an integer; panics when there is none of that name.
    #[track_caller]
    pub fn info_int(&self, field: &str) -> i64 {
        let text = self.info(field);
        let text = text.unwrap_or_else(|| panic!("INFO has no field {field}"));
        text.parse()
            .unwrap_or_else(|_| panic!("INFO's {field} is no integer: {text}"))
    }

    /// Waits until the server has executed so many commands of other clients.
    #[track_caller]
    pub fn await_commands(&self, count: i64) {
        let mut enough = self.info_int("total_commands_processed") + count;
        eventually(SOON, || {
            enough += 1; // the question itself
            self.info_int("total_commands_processed") > enough
        });
    }

    /// Whether the server ends with an assertion if `CLIENT UNBLOCK` names a client that a module has just answered: Redis 7.2
    /// (redis/redis#13015, corrected in 7.4).
    pub fn may_die_of_unblock(&self) -> bool {
        let redis = self.info("redis_version");
        redis.is_some_and(|version| version.starts_with("7.2."))
            && self.info("valkey_version").is_none() // which says that it is Redis 7.2, too
    }

    /// One command on a new connection; panics on an error reply.
    #[track_caller]
    pub fn command<C>(&self, command: C) -> Value
    where
        C: IntoIterator,
        C::Item: AsRef<[u8]>,
    {
        let reply = Raw::connect(self).call(command);
        assert!(!reply.is_err(), "the server refuses: {reply:?}");
        reply
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        // A test that panicked while it held the lock must not keep the drop from killing.
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[track_caller]
    fn take_child(&self) -> Child {
        self.child().take().expect("the server is stopped already")
    }
}

impl Server {
    /// Ends the process, if it still runs. Panics if it has died before.
    fn end(&self) {
        let Some(mut child) = self.child().take() else {
            return;
        };
        let status = destroy(&mut child);
        if thread::panicking() {
            eprintln!(
                "--- the server on port {} ended with {status}, and its log with:\n{}",
                self.port,
                self.log_tail()
            );
        } else if status.signal() != Some(libc::SIGKILL) && !status.success() {
            panic!(
                "the server died behind the test's back, {status}:\n{}",
                self.log_tail()
            );
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
        if !thread::panicking()
            && let Some(panic) = self.log().lines().find(|line| line.contains(PANIC))
        {
            panic!("a panic of the module: {panic}");
        }
    }
}

/// Waits until `replica` has executed all that `master` has executed until now.
#[track_caller]
pub fn wait_for_replica_sync(master: &Server, replica: &Server) {
    let goal = master.info_int("master_repl_offset");
    let synced = holds_within(SYNC_LIMIT, &mut || {
        replica.info("master_link_status").as_deref() == Some("up")
            // Read each time: a master gets a new one with its first replica.
            && replica.info("master_replid") == master.info("master_replid")
            && replica.info_int("slave_repl_offset") >= goal
    });
    assert!(
        synced,
        "the replica does not catch up:\n{}",
        replica.log_tail()
    );
}

/// SIGKILL for the process and what it has forked, and how the process ended: it may have done so before.
fn destroy(child: &mut Child) -> ExitStatus {
    // A child that has been waited for has no group that is surely ours any more.
    if matches!(child.try_wait(), Ok(None)) {
        signal_group(child.id(), libc::SIGKILL);
    }
    child.wait().expect("cannot wait for the server")
}

/// The value of `field` in a text of `field:value` lines.
fn field_of<'a>(info: &'a str, field: &str) -> Option<&'a str> {
    info.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| *name == field)
        .map(|(_, value)| value)
}
