"""The background job: once per tick, one of several processes returns the money of closed orders and writes a report.

A lock selects the process. MariaDB checks the fencing token in the transaction of the job, so a process that lost its lock
without noticing (a long pause) changes nothing. `python settle.py` runs one process.
"""

import asyncio
import logging
import time
import uuid

import connections
import settings
from catalog import build_filter
from connections import DATABASE_DOWN, REDIS_DOWN

LOCK = "lock:settle"

# One row, or the tick is done, or a larger token was here.
CHECK = "UPDATE jobs SET fence = %s, tick = %s WHERE name = 'settle' AND fence <= %s AND tick < %s"

RETURN_MONEY = """
UPDATE payments p JOIN orders o ON o.id = p.order_id SET p.state = 'refunded'
WHERE p.state = 'charged' AND o.state IN ('cancelled', 'expired')
"""

REPORT = """
INSERT INTO reports SELECT %s, %s, COALESCE(SUM(o.qty), 0), COALESCE(SUM(p.cents), 0)
FROM orders o JOIN payments p ON p.order_id = o.id WHERE o.state = 'sold'
"""


async def settle(db, fence, tick):
    """Returns whether this process did the work of the tick."""
    async with connections.transaction(db) as cursor:
        await cursor.execute(CHECK, (fence, tick, fence, tick))
        if cursor.rowcount == 0:
            return False
        await cursor.execute(RETURN_MONEY)
        await cursor.execute(REPORT, (tick, fence))
        await cursor.execute("DELETE FROM reports WHERE tick < %s", (tick - 1000,))
    return True


async def run_tick(orders, cache, db, owner, tick):
    fence = await orders.execute_command("LOCK.ACQUIRE", LOCK, owner, "PX", 10_000)
    if fence is None:
        return  # another process has this tick
    try:
        if await settle(db, fence, tick):
            await build_filter(cache, db)  # the cache restarts without its filter. If the cache is away, the next tick tries
    finally:
        await orders.execute_command("LOCK.RELEASE", LOCK, owner, "ALL")


async def main():
    orders, cache, db = connections.orders(), connections.cache(), await connections.database(1)
    owner = uuid.uuid4().hex
    while True:
        tick = int(time.time() * 1000) // settings.TICK_MS
        try:
            await run_tick(orders, cache, db, owner, tick)
        except (*REDIS_DOWN, *DATABASE_DOWN) as error:
            logging.warning("tick %d is not done: %s", tick, error)
        await asyncio.sleep((tick + 1) * settings.TICK_MS / 1000 - time.time())


if __name__ == "__main__":
    asyncio.run(main())
