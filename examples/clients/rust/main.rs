//! Sluice with the `redis` crate: `cargo run --example client -- redis://localhost/`

mod lock;
mod shop;

use std::error::Error;
use std::time::Duration;

use lock::{Renewed, Watched};
use redis::{Client, cmd};

const LEASE: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1);
    let client = Client::open(address.as_deref().unwrap_or("redis://localhost/"))?;
    let mut connection = client.get_connection()?;

    let mut lock =
        Watched::acquire(&client, "account:ann", LEASE, WAIT)?.ok_or("it was not free in time")?;
    println!("held: {}, a fence: {}", lock.check()?, lock.fence() > 0);
    println!("held until now: {}", lock.release()?);
    let lock =
        Renewed::acquire(&client, "account:ann", LEASE, WAIT)?.ok_or("it was not free in time")?;
    println!(
        "held: {}, a fence: {}",
        !lock.validity().is_zero(),
        lock.fence() > 0
    );
    drop(lock);

    cmd("STOCK.SET")
        .arg("sku:1")
        .arg(10)
        .arg("NX")
        .exec(&mut connection)?;
    let order = format!("order of process {}", std::process::id());
    println!("left: {}", shop::sell(&client, "sku:1", 1, &order, "ann")?);
    println!("left: {}", shop::sell(&client, "sku:1", 1, &order, "ann")?);
    cmd("BF.ADD")
        .arg("names")
        .arg("ann")
        .exec(&mut connection)?;
    println!(
        "names: {} {}",
        shop::may_exist(&mut connection, "ann")?,
        shop::may_exist(&mut connection, "bob")?
    );
    for _ in 0..2 {
        let load = |_: &str| Ok::<_, Box<dyn Error>>(Some("Ann".to_owned()));
        println!(
            "cached: {:?}",
            shop::cached(&mut connection, "user:ann", load)?
        );
    }
    println!(
        "retry after: {:?}",
        shop::retry_after(&mut connection, "ann")?
    );
    Ok(())
}
