//! Child processes that cannot outlive the test, signals, and limits.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

type Order = (Command, Sender<io::Result<Child>>);

/// The thread that forks all children, and lives as long as the process.
///
/// The kernel sends the parent-death signal when the *thread* that forked exits. A test's own thread ends with its test,
/// which may hand its server to another thread before; this thread ends with the process only, however that dies.
static SPAWNER: LazyLock<Sender<Order>> = LazyLock::new(|| {
    let (orders, inbox) = channel::<Order>();
    thread::Builder::new()
        .name("spawner".into())
        .spawn(move || {
            for (mut command, answer) in inbox {
                // Nobody may be waiting any more: that must not end this thread.
                let _ = answer.send(command.spawn());
            }
        })
        .expect("cannot start the spawner thread");
    orders
});

/// Starts `command` in a process group of its own; the kernel kills it when this process dies.
pub(super) fn spawn(mut command: Command) -> io::Result<Child> {
    // A group, so that a kill takes the children along that the server forks to save.
    command.process_group(0);
    die_with_this_process(&mut command);
    let (answer, child) = channel();
    SPAWNER
        .send((command, answer))
        .expect("the spawner is gone");
    child.recv().expect("the spawner is gone")
}

fn die_with_this_process(command: &mut Command) {
    let parent = std::process::id();
    let ask_for_the_signal = move || {
        // SAFETY: both are plain system calls without pointers, allowed between fork and exec.
        let (asked, parent_now) = unsafe {
            (
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL),
                libc::getppid(),
            )
        };
        if asked != 0 {
            return Err(io::Error::last_os_error());
        }
        // The parent may have died before the call: then the signal would never come.
        if u32::try_from(parent_now) != Ok(parent) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only: it allocates nothing and takes no lock.
    unsafe { command.pre_exec(ask_for_the_signal) };
}

/// Sends `signal` to the process `pid`.
pub(super) fn signal(pid: u32, signal: i32) {
    send_signal(raw_pid(pid), signal);
}

/// Sends `signal` to the process group that `leader` leads.
pub(super) fn signal_group(leader: u32, signal: i32) {
    send_signal(-raw_pid(leader), signal);
}

fn send_signal(target: libc::pid_t, signal: i32) {
    // SAFETY: a system call without pointers. Callers name only children they have not waited for, so that the number
    // cannot belong to another process yet.
    unsafe { libc::kill(target, signal) };
}

fn raw_pid(pid: u32) -> libc::pid_t {
    let pid = libc::pid_t::try_from(pid).expect("a process id fits");
    // 0 and -1 would mean "my own group" and "everybody".
    assert!(pid > 1, "{pid} is not a child of ours");
    pid
}

/// Whether a process `pid` exists and is more than a zombie that waits for its parent.
pub fn is_running(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    // The state follows the name, which stands in parentheses and may hold anything.
    let state = stat.rsplit(')').next().unwrap_or("").trim_start();
    !state.starts_with(['Z', 'X'])
}

/// Lets this process open `count` files; panics when the hard limit forbids it.
pub fn allow_open_files(count: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid rlimit for the kernel to fill.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    assert_eq!(got, 0, "getrlimit: {}", io::Error::last_os_error());
    if limit.rlim_cur >= count {
        return;
    }
    assert!(
        limit.rlim_max >= count,
        "this needs {count} open files and the hard limit is {}: raise it with `ulimit -Hn`",
        limit.rlim_max
    );
    // All that is allowed, not `count`: another test may ask for more at the same moment.
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is a valid rlimit for the kernel to read.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(set, 0, "setrlimit: {}", io::Error::last_os_error());
}

/// The most memory, in bytes, that any child of this process had that has ended: it has been waited for.
pub fn largest_child() -> u64 {
    // SAFETY: a struct of integers, for which zeros are good.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid rusage for the kernel to fill.
    let got = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    assert_eq!(got, 0, "getrusage: {}", io::Error::last_os_error());
    u64::try_from(usage.ru_maxrss).expect("a size") * 1024
}
