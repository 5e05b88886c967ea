//! How the shop handles an order: each of the five ways as it is usually written.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use redis::{ErrorKind, Pipeline, RedisError, RedisResult, Script, cmd, pipe};

use crate::crowd::Order;
use crate::line::Line;
use crate::way::{ORDERS, STOCK, Way};

/// The lock of this process: `synchronized` in Java, a mutex elsewhere. Another process has another one.
static LOCAL_LOCK: Mutex<()> = Mutex::new(());

const LOCK: &str = "{sku:1}:lock";

/// Every lease outlives the work that it is for. Where one does not, this lock loses the count too.
const LEASE_MS: u64 = 30_000;

/// Who finds the lock taken asks again after this time. A shorter one drowns the server in questions.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Takes a piece if there is one, and writes the order down.
const SELL_CODE: &str = "
local left = tonumber(redis.call('GET', KEYS[1]))
if left < 1 then
    return -1
end
redis.call('DECR', KEYS[1])
redis.call('HINCRBY', KEYS[2], ARGV[1], 1)
return left - 1";

static SELL: LazyLock<Script> = LazyLock::new(|| Script::new(SELL_CODE));

/// What a buyer is told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Sold,
    SoldOut,
    OverLimit,
}

/// An answer, and what it took to get it.
pub(crate) struct Bought {
    pub(crate) answer: Answer,
    /// Whether the order was sent again because the first reply got lost.
    pub(crate) resent: bool,
}

/// Makes the server ready for what `buy` will ask it.
pub(crate) fn prepare(way: Way, line: &mut Line) -> RedisResult<()> {
    if way == Way::Lua {
        line.ask::<String>(cmd("SCRIPT").arg("LOAD").arg(SELL_CODE))?;
    }
    Ok(())
}

/// Orders one piece, and orders again if no reply arrives.
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

/// `None` if the reply got lost.
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
    // The record of the sale travels with it, so that it takes no time and cannot be missing.
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
    // After a lost reply too, over the new connection: the `finally` of a careful program.
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

/// The script's replies are like those of `STOCK.DEDUCT`: what is left, or why nothing was sold.
fn meaning(code: i64) -> RedisResult<Answer> {
    match code {
        0.. => Ok(Answer::Sold),
        -1 => Ok(Answer::SoldOut),
        -2 => Ok(Answer::OverLimit),
        _ => Err(RedisError::from((
            ErrorKind::UnexpectedReturnType,
            "a code that this sale has no place for",
            code.to_string(),
        ))),
    }
}
