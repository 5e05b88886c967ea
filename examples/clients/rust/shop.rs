//! A shop with the `redis` crate: an idempotent sale, a filter, a cached read, a limit. Copy the functions that you need.

#![allow(unreachable_pub)] // for copies in other modules

use std::thread::sleep;
use std::time::Duration;

use redis::{Client, ConnectionLike, ErrorKind, RedisError, RedisResult, cmd};

/// Returns the available quantity, or a code: -1 sold out, -2 over the user's limit. A repetition with the same order sells once.
pub fn sell(client: &Client, sku: &str, qty: u64, order: &str, user: &str) -> RedisResult<i64> {
    let mut deduct = cmd("STOCK.DEDUCT");
    deduct
        .arg(sku)
        .arg(qty)
        .arg("ORDER")
        .arg(order)
        .arg("USER")
        .arg(user);
    let mut attempt = 1;
    loop {
        let reply = client
            .get_connection()
            .and_then(|mut connection| deduct.query(&mut connection));
        match reply {
            // No reply: the order may be sold. Repeat the request with its id, later if necessary.
            Err(error) if is_lost(&error) && attempt < 5 => {
                sleep(Duration::from_millis(50 * attempt))
            }
            answer => return answer,
        }
        attempt += 1;
    }
}

/// Returns whether the connection broke, and no refusal of the server arrived.
fn is_lost(error: &RedisError) -> bool {
    error.is_io_error() || error.is_timeout() || error.is_connection_dropped()
}

/// Returns false if the name certainly does not exist. True: query the database.
pub fn may_exist(connection: &mut impl ConnectionLike, name: &str) -> RedisResult<bool> {
    cmd("BF.EXISTS").arg("names").arg(name).query(connection)
}

/// Returns the value, or `None` if there is none. One caller at a time calls `load`. The connection is occupied while the caller waits.
pub fn cached<E: From<RedisError>>(
    connection: &mut impl ConnectionLike,
    key: &str,
    load: impl FnOnce(&str) -> Result<Option<String>, E>,
) -> Result<Option<String>, E> {
    let (mut fetch, lease, wait) = (cmd("CACHE.FETCH"), 3000, 2000);
    fetch
        .arg(key)
        .arg("LEASE")
        .arg(lease)
        .arg("BLOCK")
        .arg(wait);
    let token = loop {
        let (state, value, n): (String, Option<String>, u64) = fetch.query(connection)?;
        match state.as_str() {
            "WAIT" => {} // another caller has been loading for more than two seconds
            "LEASE" => break n,
            "DOWN" if value.is_none() => return Err(loader_failed().into()),
            _ => return Ok(value), // HIT, STALE, DOWN with an old value; None for NULL and ABSENT
        }
    };
    let loaded = load(key).inspect_err(|_| {
        let mut fail = cmd("CACHE.FAIL");
        let _ = fail
            .arg(key)
            .arg(token)
            .arg("BACKOFF")
            .arg(1000)
            .exec(connection);
    })?;
    let mut store = match &loaded {
        Some(value) => cmd("CACHE.SET")
            .arg(key)
            .arg(value)
            .arg("PX")
            .arg(60_000)
            .take(),
        None => cmd("CACHE.SETNULL").arg(key).arg("PX").arg(5000).take(),
    };
    store
        .arg("JITTER")
        .arg(10)
        .arg("TOKEN")
        .arg(token)
        .exec(connection)?;
    Ok(loaded)
}

/// The loader failed a moment ago, so it is unknown whether there is a value.
fn loader_failed() -> RedisError {
    (ErrorKind::Client, "the loader has failed").into()
}

/// Returns zero if the request is allowed, else the time to wait: 10 requests a second, 20 more after a quiet time.
pub fn retry_after(connection: &mut impl ConnectionLike, user: &str) -> RedisResult<Duration> {
    let mut gcra = cmd("RATE.GCRA");
    gcra.arg(format!("limit:{user}")).arg(20).arg(10).arg(1000);
    let (limited, _limit, _remaining, retry_ms, _reset_ms): (bool, i64, i64, i64, i64) =
        gcra.query(connection)?;
    Ok(Duration::from_millis(if limited {
        retry_ms.unsigned_abs()
    } else {
        0
    }))
}
