//! A server with nothing to do does nothing, however far away its deadlines are.

use crate::support::{Raw, Server, eventually};
use std::thread;
use std::time::Duration;

/// The seconds of CPU that the server has used.
fn used(server: &Server) -> f64 {
    let field = |name: &str| -> f64 {
        let text = server.info(name).expect("INFO has it");
        text.parse().expect("seconds")
    };
    field("used_cpu_user") + field("used_cpu_sys")
}

/// Redis 7.0 multiplies the milliseconds until a module's next timer in an int, when one has fired
/// and another follows: 36 minutes become a time in the past, and the event loop never sleeps.
#[test]
fn a_server_sleeps_while_deadlines_are_hours_away() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    client.call(["STOCK.SET", "sku", "10"]);
    let hour = "3600000";
    client.call(["STOCK.RESERVE", "sku", "1", "ORDER", "far", "PX", hour]);
    // A timer that fires, so that the server sets it anew for what is left.
    client.call(["STOCK.RESERVE", "sku", "1", "ORDER", "near", "PX", "50"]);
    let expired = || server.info_int("sluice_expired") == 1;
    eventually(Duration::from_secs(10), expired);
    let before = used(&server);
    thread::sleep(Duration::from_millis(1500));
    let used = used(&server) - before;
    assert!(
        used < 0.5,
        "{used} seconds of CPU in 1.5 seconds of nothing"
    );
}
