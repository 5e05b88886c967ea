//! Sluice with the crate `sluice-client`: `cargo run --example client -- redis://localhost/`

use std::error::Error;
use std::time::Duration;

use redis::Client;
use sluice_client::cache::{self, Policy};
use sluice_client::lock::{Lock, RenewedLock};
use sluice_client::{filter, limit, stock};

const LEASE: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1);
    let client = Client::open(address.as_deref().unwrap_or("redis://localhost/"))?;
    let mut connection = client.get_connection()?;

    let mut lock =
        Lock::acquire(&client, "account:ann", LEASE, WAIT)?.ok_or("it was not free in time")?;
    println!("held: {}, a fence: {}", lock.check()?, lock.fence() > 0);
    println!("held until now: {}", lock.release()?);
    let lock = RenewedLock::acquire(&client, "account:ann", LEASE, WAIT)?
        .ok_or("it was not free in time")?;
    println!(
        "held: {}, a fence: {}",
        !lock.validity().is_zero(),
        lock.fence() > 0
    );
    drop(lock);

    stock::create("sku:1", 10)
        .if_missing()
        .query(&mut connection)?;
    let order = format!("order of process {}", std::process::id());
    let sale = stock::deduct("sku:1", 1).order(&order).user("ann");
    for _ in 0..2 {
        match sale.query_until_replied(|| client.get_connection())? {
            Ok(left) => println!("left: {left}"),
            Err(refusal) => println!("refused: {refusal:?}"),
        }
    }

    filter::add("names", "ann").query(&mut connection)?;
    for name in ["ann", "bob"] {
        let may_exist = filter::may_contain("names", name).query(&mut connection)?;
        println!("{name} may exist: {may_exist}");
    }
    for _ in 0..2 {
        let load = |_: &str| Ok::<_, Box<dyn Error>>(Some(b"Ann".to_vec()));
        let value = cache::get(&mut connection, "user:1", &Policy::default(), load)?;
        println!("cached: {}", String::from_utf8(value.unwrap_or_default())?);
    }
    let decision =
        limit::gcra("limit:ann", 20, 10, Duration::from_secs(1)).query(&mut connection)?;
    println!("allowed: {}", decision.allowed);
    Ok(())
}
