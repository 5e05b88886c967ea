//! A shop with the `redis` crate: a sale that may be repeated, a filter, a cached read, a limit. Copy what you need.

#![allow(unreachable_pub)] // meant to be copied to where it can be reached

use std::thread::sleep;
use std::time::Duration;

use redis::{Client, ConnectionLike, ErrorKind, RedisError, RedisResult, cmd};

/// What is left, or a code: -1 sold out, -2 over the user's limit. Called again with the same order, it sells once.
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
            // No answer: it may have been sold. Keep the order, and ask again, if need be later.
            Err(error) if is_lost(&error) && attempt < 5 => {
                sleep(Duration::from_millis(50 * attempt))
            }
            answer => return answer,
        }
        attempt += 1;
    }
}

/// Did the connection break, rather than the server refuse?
fn is_lost(error: &RedisError) -> bool {
    error.is_io_error() || error.is_timeout() || error.is_connection_dropped()
}

/// False: nobody has this name, for sure. True: ask the database.
pub fn may_exist(connection: &mut impl ConnectionLike, name: &str) -> RedisResult<bool> {
    cmd("BF.EXISTS").arg("names").arg(name).query(connection)
}

/// The value, or `None` if there is none; `load` is called by one caller at a time. The connection waits with us.
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
            "WAIT" => {} // somebody else is loading, for more than two seconds now
            "LEASE" => break n,
            "DOWN" if value.is_none() => return Err(loader_failed().into()),
            _ => return Ok(value), // HIT, STALE, and DOWN if there is an old one; None for NULL and ABSENT
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

/// It could not be loaded a moment ago: nobody knows whether there is a value.
fn loader_failed() -> RedisError {
    (ErrorKind::Client, "the loader has failed").into()
}

/// Zero if the user may go on, else how long to wait: 10 a second, 20 more after a quiet time.
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
