//! The cores of the server and the client, and the CPU time of a process.

use std::mem::size_of;
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::Duration;

/// A server without work sleeps within this time.
const SETTLE: Duration = Duration::from_micros(300);

/// Nanoseconds that the main thread of `pid` has run on a processor, read while it sleeps.
///
/// The kernel updates the number when the thread stops: after two equal readings it has stopped.
pub(crate) fn main_thread_time(pid: u32) -> u64 {
    let mut last = read_main_thread_time(pid);
    loop {
        sleep(SETTLE);
        let now = read_main_thread_time(pid);
        if now == last {
            return now;
        }
        last = now;
    }
}

fn read_main_thread_time(pid: u32) -> u64 {
    let path = format!("/proc/{pid}/task/{pid}/schedstat");
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{path}: {error} (the server died, or this is not Linux)"));
    let first = text.split(' ').next().and_then(|field| field.parse().ok());
    first.unwrap_or_else(|| panic!("{path} holds no time: {text}"))
}

/// Puts the main thread of `server` on one core and this thread on another, if there are two.
pub(crate) fn separate_from(server: u32) {
    if let [first, second, ..] = cores()[..] {
        let server = libc::pid_t::try_from(server).expect("a process id fits");
        pin(server, &[first]);
        pin(THIS_THREAD, &[second]);
    } else {
        eprintln!("One core only: the server and its client disturb each other.");
    }
}

/// Lets this thread run on any core again: a server that it starts may do so, too.
pub(crate) fn run_anywhere() {
    pin(THIS_THREAD, cores());
}

const THIS_THREAD: libc::pid_t = 0;

/// The cores that this process was given.
pub(crate) fn cores() -> &'static [usize] {
    static CORES: OnceLock<Vec<usize>> = OnceLock::new();
    CORES.get_or_init(allowed_cores)
}

fn allowed_cores() -> Vec<usize> {
    // SAFETY: a cpu_set_t is a bit array: all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for the kernel to fill, and its size is the size given.
    let got = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    assert_eq!(
        got,
        0,
        "sched_getaffinity: {}",
        std::io::Error::last_os_error()
    );
    (0..libc::CPU_SETSIZE as usize)
        // SAFETY: the index is below the size of the set.
        .filter(|&core| unsafe { libc::CPU_ISSET(core, &set) })
        .collect()
}

fn pin(thread: libc::pid_t, cores: &[usize]) {
    // SAFETY: a cpu_set_t is a bit array: all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for core in cores {
        // SAFETY: `core` came from a set of the same size.
        unsafe { libc::CPU_SET(*core, &mut set) };
    }
    // SAFETY: `set` is valid for the kernel to read, and its size is the size given.
    let done =
        unsafe { libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &raw const set) };
    assert_eq!(
        done,
        0,
        "sched_setaffinity: {}",
        std::io::Error::last_os_error()
    );
}
