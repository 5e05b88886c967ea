//! The load: thousands of connections, half of which wait, for locks, permits and caches, while the others ask for a mix
//! of all families, and the dataset is flushed, swapped, saved and rewritten. Every command gets a reply, none gets an
//! error, everybody who waits is served in the end, and nothing is left of it.
//!
//! `CLIENTS` is how many there are (1500), `SECONDS` for how long they come (4), `RATE` how many commands per second the
//! half that does not wait sends (5000). `make load` takes ten thousand clients for a minute, and shows what was measured.
//! Times are measured and shown, and prove nothing on a busy machine: the test is about replies.

mod driver;
mod mix;
#[path = "../support/mod.rs"]
mod support;
mod waiter;
mod watch;

use std::time::{Duration, Instant};

use driver::Driver;
use mix::FAMILIES;
use support::{Fsync, Raw, Server, eventually, number_from};
use watch::{Accident, Watch};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn thousands_of_clients_get_all_their_replies() {
    let clients = number_from("CLIENTS", 1500);
    let length = Duration::from_secs(number_from("SECONDS", 4));
    let rate = number_from("RATE", 5000);
    let server = Server::builder()
        .aof(Fsync::Everysec)
        .rdb(true)
        .config("maxclients", &(clients + 100).to_string())
        .start();
    let commands = server.command(["COMMAND", "LIST", "FILTERBY", "MODULE", "sluice"]);
    mix::check_completeness(commands.array());
    let half = clients as usize / 2;
    let mut driver = Driver::connect(&server, half, clients as usize - half);
    driver.let_them_wait();

    let watch = Watch::start(&server, length);
    let start = Instant::now();
    driver.run(rate, length);
    let took = start.elapsed();
    driver.finish();
    let accidents = watch.finish();

    println!("{clients} clients, {half} of them wait; {rate} commands per second are due\n");
    report_latencies(&mut driver.latencies, took);
    report_row("(sent late)", &mut driver.lateness, took);
    let (served, timeouts) = driver.waits();
    println!("\nwaiters: {served} times served, {timeouts} times out of time");
    report_server(&server, &accidents);
    assert!(
        served + timeouts >= half as u64 && served > timeouts,
        "only {served} were served"
    );
    check_the_end(&server, driver);
}

/// Nobody waits, nothing is held for a connection, and no connection is left.
fn check_the_end(server: &Server, driver: Driver) {
    assert_eq!(server.info_int("sluice_lock_waiting"), 0);
    assert_eq!(server.info_int("sluice_cache_waiters_now"), 0);
    assert_eq!(server.info_int("sluice_once_waiting"), 0);
    drop(driver);
    let mut client = Raw::connect(server);
    let mut info = |field: &str| {
        let info = client.call(["INFO", "everything"]);
        support::field_of(&info, field)
    };
    eventually(SOON, || info("connected_clients") == 1);
    eventually(SOON, || info("sluice_lock_watchdog_holds") == 0);
    let log = server.log();
    let bad = ["panic", "internal error", "BUG REPORT"];
    let told = log
        .lines()
        .find(|line| bad.iter().any(|word| line.contains(word)));
    assert_eq!(told, None, "the log tells of it");
}

fn report_latencies(latencies: &mut [Vec<u32>], took: Duration) {
    println!(
        "{:<12}{:>12}{:>10}{:>10}{:>10}{:>10}",
        "family", "commands/s", "p50 ms", "p99 ms", "p99.9 ms", "max ms"
    );
    let mut all = Vec::new();
    for (name, latencies) in FAMILIES.iter().zip(latencies) {
        report_row(name, latencies, took);
        all.append(latencies);
    }
    report_row("all", &mut all, took);
}

fn report_row(name: &str, latencies: &mut [u32], took: Duration) {
    latencies.sort_unstable();
    let ms = |share: f64| {
        let place = (latencies.len() as f64 * share) as usize;
        let latency = latencies.get(place.min(latencies.len() - 1));
        f64::from(*latency.expect("every family is in the mix")) / 1000.0
    };
    let per_second = latencies.len() as f64 / took.as_secs_f64();
    println!(
        "{name:<12}{per_second:>12.0}{:>10.2}{:>10.2}{:>10.2}{:>10.2}",
        ms(0.5),
        ms(0.99),
        ms(0.999),
        ms(1.0)
    );
}

fn cpu_seconds(server: &Server, field: &str) -> f64 {
    let text = server.info(field).expect("every server tells it");
    text.parse().expect("a number of seconds")
}

fn report_server(server: &Server, accidents: &[Accident]) {
    for accident in accidents {
        println!(
            "{:<14} longest wait for a PING {:>7.1} ms, the command itself {:>7.1} ms, {:>5} waited",
            accident.name,
            accident.stall.as_secs_f64() * 1000.0,
            accident.took.as_secs_f64() * 1000.0,
            accident.waiting
        );
    }
    let commands = server.info_int("total_commands_processed");
    let cpu: f64 = ["used_cpu_user", "used_cpu_sys"]
        .iter()
        .map(|field| cpu_seconds(server, field))
        .sum();
    // What others do on this machine changes less of it than of the latencies.
    println!(
        "server CPU: {cpu:.1} s for {commands} commands, {:.1} us each",
        cpu * 1e6 / commands as f64
    );
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid()));
    let status = status.expect("the server runs");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    println!("most resident memory: {}", most.unwrap_or("?").trim());
}
