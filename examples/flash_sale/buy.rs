//! How the shop handles an order: each of the five ways as it is usually written.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use redis::{ErrorKind, Pipeline, RedisError, RedisResult, Script, cmd, pipe};

use crate::crowd::Order;
use crate::line::Line;
use crate::way::{ORDERS, STOCK, Way};

/// The lock of this process: `synchronized` in Java, a mutex in other languages. Each process has its own.
static LOCAL_LOCK: Mutex<()> = Mutex::new(());

const LOCK: &str = "{sku:1}:lock";

/// Each lease is longer than its work. With a shorter lease, this lock would also oversell.
const LEASE_MS: u64 = 30_000;

/// A client that finds the lock held tries again after this time. A shorter time would overload the server.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Sells an item if one is available, and records the order.
const SELL_CODE: &str = "
local left = tonumber(redis.call('GET', KEYS[1]))
if left < 1 then
    return -1
end
redis.call('DECR', KEYS[1])
redis.call('HINCRBY', KEYS[2], ARGV[1], 1)
return left - 1";

static SELL: LazyLock<Script> = LazyLock::new(|| Script::new(SELL_CODE));

/// The reply to a buyer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Sold,
    SoldOut,
    OverLimit,
}

/// A reply, and whether the order was sent again.
pub(crate) struct Bought {
    pub(crate) answer: Answer,
    /// Whether the order was sent again because the first reply was lost.
    pub(crate) resent: bool,
}

/// Prepares the server for `buy`.
pub(crate) fn prepare(way: Way, line: &mut Line) -> RedisResult<()> {
    if way == Way::Lua {
        line.ask::<String>(cmd("SCRIPT").arg("LOAD").arg(SELL_CODE))?;
    }
    Ok(())
}

/// Orders one item, and sends the order again if no reply arrives.
pub(crate) fn buy(way: Way, line: &mut Line, order: &Order) -> RedisResult<Bought> {
    let mut resent = false;
    loop {
        let loses_reply = order.loses_reply && !resent;
        if let Some(answer) = attempt(way, line, order, loses_reply)? {
            return Ok(Bought { answer, resent });
        }
        resent = true;
    }
}

/// Returns `None` if the reply was lost.
fn attempt(
    way: Way,
    line: &mut Line,
    order: &Order,
    loses_reply: bool,
) -> RedisResult<Option<Answer>> {
    match way {
        Way::GetSet => get_then_set(line, order, loses_reply),
        Way::LocalLock => with_local_lock(line, order, loses_reply),
        Way::Lock => with_lock(line, order, loses_reply),
        Way::Lua => with_script(line, order, loses_reply),
        Way::Stock => with_stock(line, order, loses_reply),
    }
}

fn get_then_set(line: &mut Line, order: &Order, loses_reply: bool) -> RedisResult<Option<Answer>> {
    let left: i64 = line.ask(cmd("GET").arg(STOCK))?;
    if left < 1 {
        return Ok(Some(Answer::SoldOut));
    }
    let mut sale = pipe();
    sale.cmd("SET").arg(STOCK).arg(left - 1).ignore();
    // The record is in the same pipeline as the sale, so it takes no extra time and is never missing.
    sale.cmd("HINCRBY")
        .arg(ORDERS)
        .arg(&order.id)
        .arg(1)
        .ignore();
    let reply: Option<()> = line.decide(&sale, loses_reply)?;
    Ok(reply.map(|()| Answer::Sold))
}

fn with_local_lock(
    line: &mut Line,
    order: &Order,
    loses_reply: bool,
) -> RedisResult<Option<Answer>> {
    let _held = LOCAL_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    get_then_set(line, order, loses_reply)
}

fn with_lock(line: &mut Line, order: &Order, loses_reply: bool) -> RedisResult<Option<Answer>> {
    while !try_lock(line)? {
        sleep(LOCK_PAUSE);
    }
    let answer = get_then_set(line, order, loses_reply);
    // Also after a lost reply, on the new connection, as a `finally` block does.
    line.ask::<()>(cmd("DEL").arg(LOCK))?;
    answer
}

fn try_lock(line: &mut Line) -> RedisResult<bool> {
    line.ask(
        cmd("SET")
            .arg(LOCK)
            .arg("1")
            .arg("NX")
            .arg("PX")
            .arg(LEASE_MS),
    )
}

fn with_script(line: &mut Line, order: &Order, loses_reply: bool) -> RedisResult<Option<Answer>> {
    let mut sale = pipe();
    sale.cmd("EVALSHA").arg(SELL.get_hash());
    sale.arg(2).arg(STOCK).arg(ORDERS).arg(&order.id);
    decide_by_code(line, &sale, loses_reply)
}

fn with_stock(line: &mut Line, order: &Order, loses_reply: bool) -> RedisResult<Option<Answer>> {
    let mut sale = pipe();
    sale.cmd("STOCK.DEDUCT").arg(STOCK).arg(1);
    sale.arg("ORDER").arg(&order.id);
    sale.arg("USER").arg(&order.user);
    decide_by_code(line, &sale, loses_reply)
}

fn decide_by_code(
    line: &mut Line,
    sale: &Pipeline,
    loses_reply: bool,
) -> RedisResult<Option<Answer>> {
    let reply = line.decide(sale, loses_reply)?;
    reply.map(|(code,)| meaning(code)).transpose()
}

/// The replies of the script are like those of `STOCK.DEDUCT`: the available quantity or a code.
fn meaning(code: i64) -> RedisResult<Answer> {
    match code {
        0.. => Ok(Answer::Sold),
        -1 => Ok(Answer::SoldOut),
        -2 => Ok(Answer::OverLimit),
        _ => Err(RedisError::from((
            ErrorKind::UnexpectedReturnType,
            "an unexpected code",
            code.to_string(),
        ))),
    }
}
