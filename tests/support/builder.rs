//! The choices that a test has for its server, and the configuration file that they make.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::clock::Clock;
use super::home::Home;
use super::port;
use super::server::{Launch, Server};

const MODULE_VARIABLE: &str = "SLUICE_MODULE";
const MODULE_FILE: &str = "libsluice.so";

/// A node that is silent for this many milliseconds is marked as failing. A cluster of two masters is then down. No node of a test is
/// silent for so long, even if it stalls for some seconds or serves thousands of clients. Tests that kill nodes set a shorter time at
/// runtime (`Six::set_timeout`). A long time slows down nothing else: nodes exchange messages every second anyway, and a node that had
/// no slots waits for at most five seconds until it is up.
const NODE_TIMEOUT_MS: u32 = 60_000;

/// When the append-only file is flushed to the disk (`appendfsync`).
#[derive(Clone, Copy, Debug)]
pub enum Fsync {
    /// Before each reply.
    Always,
    /// Once a second.
    Everysec,
    /// When the system likes.
    No,
}

/// The choices for a server; [`Builder::start`] makes it.
#[derive(Clone, Debug)]
pub struct Builder {
    settings: Vec<(String, String)>,
    module_arguments: Option<Vec<String>>,
    cluster: bool,
    sentinel: bool,
    clock_shift_ms: Option<i64>,
    wrapper: Vec<String>,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            settings: Vec::new(),
            module_arguments: Some(Vec::new()),
            cluster: false,
            sentinel: false,
            clock_shift_ms: None,
            wrapper: Vec::new(),
        }
    }

    /// Keeps an append-only file.
    pub fn aof(self, fsync: Fsync) -> Self {
        let builder = self.config("appendonly", "yes");
        match fsync {
            // Redis 8.6 with more I/O threads acknowledges writes before they are in the file: docs/operations.md.
            Fsync::Always => builder
                .config("appendfsync", "always")
                .config("io-threads", "1"),
            Fsync::Everysec => builder.config("appendfsync", "everysec"),
            Fsync::No => builder.config("appendfsync", "no"),
        }
    }

    /// For this many connections, of which thousands begin to block at once. Redis 8.6 pauses an I/O thread for each of them
    /// (docs/operations.md): with more than one, it would not reply for minutes on a busy machine.
    pub fn many_that_block(self, connections: usize) -> Self {
        self.config("maxclients", &connections.to_string())
            .config("io-threads", "1")
    }

    /// Saves an RDB file when the server shuts down or gets SIGTERM; the default saves nothing by itself.
    pub fn rdb(self, saves: bool) -> Self {
        // A point that no test reaches: what counts is that there is one.
        self.config("save", if saves { "86400 1" } else { "" })
    }

    /// A line of the configuration file; `value` is written as that file has it. Later lines win.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// The arguments behind `loadmodule <path>`.
    pub fn module_args(mut self, arguments: &[&str]) -> Self {
        self.module_arguments = Some(arguments.iter().map(ToString::to_string).collect());
        self
    }

    /// A cluster node. It owns no slot yet: see [`Server::own_slots`] and [`Server::await_cluster`].
    pub fn cluster(mut self, enabled: bool) -> Self {
        self.cluster = enabled;
        self
    }

    /// A plain server, without Sluice.
    pub fn no_module(mut self) -> Self {
        self.module_arguments = None;
        self
    }

    /// Loads the debug build of the module, whichever module is under test.
    pub fn debug_module(self) -> Self {
        let path = quoted(&debug_module_path());
        self.no_module().config("loadmodule", &path)
    }

    /// A Sentinel: it watches the masters that `SENTINEL MONITOR` names, and has neither data nor modules.
    pub fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self.no_module()
    }

    /// Gives the server a wall clock of its own, so many milliseconds ahead of the machine's, or behind it. It can be set
    /// while the server runs: [`Server::shift_clock`]. What has nothing to do with the time of day is not shifted.
    pub fn clock(mut self, ahead_ms: i64) -> Self {
        self.clock_shift_ms = Some(ahead_ms);
        // Its allocator's own thread sleeps until a time of day, which the kernel takes for one of its clock.
        self.config("jemalloc-bg-thread", "no")
    }

    /// Runs the server under another program, such as `valgrind`: the words are that program and its arguments, the server and
    /// its arguments follow.
    pub fn under(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(ToString::to_string).collect();
        self
    }

    /// Starts the server and waits until it answers; panics with the end of its log when it dies.
    #[track_caller]
    pub fn start(self) -> Server {
        match self.launch() {
            (server, Launch::Died(status)) => server.report_death(status),
            (server, _) => server,
        }
    }

    /// Starts a server that must refuse to start, and returns its log.
    #[track_caller]
    pub fn start_refused(self) -> String {
        match self.launch() {
            (server, Launch::Died(_)) => server.log(),
            _ => panic!("the server starts"),
        }
    }

    fn launch(&self) -> (Server, Launch) {
        loop {
            let (server, launch) = Server::launched(self, port::free());
            if !matches!(launch, Launch::PortTaken) {
                return (server, launch);
            }
        }
    }

    pub(super) fn is_sentinel(&self) -> bool {
        self.sentinel
    }

    pub(super) fn wrapper(&self) -> &[String] {
        &self.wrapper
    }

    pub(super) fn own_clock(&self, home: &Home) -> Option<Clock> {
        let shift = self.clock_shift_ms?;
        Some(Clock::create(home.path(), shift).expect("cannot make a clock"))
    }

    pub(super) fn config_file(&self, home: &Home, port: u16) -> String {
        let mut text = format!(
            "bind 127.0.0.1\nport {port}\ndir {}\nlogfile {}\n",
            quoted(home.path()),
            quoted(&home.log())
        );
        if !self.sentinel {
            text.push_str(BASE_CONFIG);
        }
        if self.cluster {
            let _ = writeln!(text, "cluster-enabled yes\ncluster-port {}", port::free());
            let _ = writeln!(text, "cluster-node-timeout {NODE_TIMEOUT_MS}");
        }
        for (name, value) in &self.settings {
            let value = if value.is_empty() { "\"\"" } else { value };
            let _ = writeln!(text, "{name} {value}");
        }
        if let Some(arguments) = &self.module_arguments {
            let _ = write!(text, "loadmodule {}", quoted(&module_path()));
            for argument in arguments {
                let _ = write!(text, " {}", quoted(argument.as_ref()));
            }
            text.push('\n');
        }
        text
    }
}

/// Nothing is saved unless the test asks for it, `DEBUG` and `MODULE` are allowed, and replicas are served at once.
const BASE_CONFIG: &str = r#"daemonize no
save ""
appendonly no
enable-debug-command yes
enable-module-command yes
repl-diskless-sync-delay 0
repl-ping-replica-period 1
"#;

/// The module under test; panics when it is not built.
pub fn module_path() -> PathBuf {
    if let Some(path) = std::env::var_os(MODULE_VARIABLE) {
        let path = PathBuf::from(path);
        // The server looks for it from its own directory.
        return path
            .canonicalize()
            .unwrap_or_else(|error| panic!("{MODULE_VARIABLE} is {}: {error}", path.display()));
    }
    debug_module_path()
}

/// The module that `cargo test` built with the tests, with the checks of a debug build; panics when it is not built.
fn debug_module_path() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its file");
    // `cargo test` builds the module of the same sources beside the tests. The one in the folder above is older: only
    // `cargo build` puts it there.
    let folder = test.parent().expect("a test lies in a folder");
    let path = folder.join(MODULE_FILE);
    assert!(
        path.exists(),
        "{} is missing: build it with `cargo build`, or name another in {MODULE_VARIABLE}",
        path.display()
    );
    path
}

/// A string of the configuration file.
fn quoted(text: &Path) -> String {
    let text = text.to_str().expect("paths of the tests are UTF-8");
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
