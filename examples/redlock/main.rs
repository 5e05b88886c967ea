//! Redlock with Sluice, tried out: takes a lock over several servers, holds it for a while, and gives it back.
//!
//! `cargo run --example redlock -- redis://127.0.0.1:7001/ redis://127.0.0.1:7002/ redis://127.0.0.1:7003/`
//!
//! Run it twice at the same time, kill servers and freeze them. The algorithm is in `redlock.rs`.

mod redlock;

use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

use redlock::{Guard, Redlock, Settings};

const SETTINGS: Settings = Settings {
    lease: Duration::from_secs(10),
    patience: Duration::from_millis(100),
    pause: Duration::from_millis(200),
};

fn main() -> Result<(), Box<dyn Error>> {
    let addresses: Vec<_> = std::env::args().skip(1).collect();
    if addresses.len() < 3 {
        return Err("name the addresses of three or more servers, redis://host:port/".into());
    }
    let mut redlock = Redlock::new(&addresses, SETTINGS)?;
    let wait = Duration::from_secs(30);
    let Some(mut held) = redlock.acquire("report", wait) else {
        return Err("the lock was not to be had, or there is no majority of servers".into());
    };
    println!("held, by these fences: {:?}", held.fences);
    println!(
        "a resource obeys: {}",
        Guard::default().admits(&held.fences)
    );
    for _ in 0..5 {
        sleep(SETTINGS.lease / 5);
        if !redlock.renew(&mut held) {
            redlock.release(held);
            return Err("the lock was lost".into());
        }
        println!("renewed for {} ms", held.validity().as_millis());
    }
    redlock.release(held);
    println!("released");
    Ok(())
}
