"""Invalidations of the cache. A failed one is retried through a delay queue with exponential backoff, and raises an alarm.

The delay queue is on the server of the orders, so it works while the cache is down. `python invalidation.py` is the worker.
"""

import asyncio
import logging

import redis

import connections
import settings
from connections import REDIS_DOWN

RETRIES, DUE, GROUP = "{invalidate}:retries", "{invalidate}:due", "retriers"
ALARMS = "{invalidate}:alarms"  # a hash: the key, and its failed attempts
BASE_MS, LONGEST_MS = 200, 10_000


async def invalidate(cache, orders, key):
    """Call it after the commit. If both servers are down, the reader of the binlog (canal.py) invalidates later."""
    try:
        await cache.execute_command("CACHE.DEL", key)
    except REDIS_DOWN:
        try:
            await retry_later(orders, key, 1)
        except REDIS_DOWN:
            logging.warning("%s: no server accepts the invalidation", key)
            return False
    return True


async def retry_later(client, key, attempt):
    """Schedules the next attempt, after `attempt` failed ones. The id is the key, so at most one invalidation of a key waits."""
    delay = min(BASE_MS * 2 ** (attempt - 1), LONGEST_MS)
    await client.execute_command("DELAY.ADD", RETRIES, key, "PX", delay, "VALUES", "key", key, "attempt", attempt)


async def create_queue(orders):
    await orders.execute_command("DELAY.SET", RETRIES, "STREAM", DUE, "MAXLEN", 10_000)
    try:
        await orders.xgroup_create(DUE, GROUP, id="0", mkstream=True)
    except redis.ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise


async def retry(cache, orders, entry, key, attempt):
    """One more attempt, after `attempt` failed ones. The next one, or the success, and the acknowledgment are one transaction."""
    async with orders.pipeline(transaction=True) as step:
        try:
            await cache.execute_command("CACHE.DEL", key)
        except REDIS_DOWN:
            attempt += 1
            await retry_later(step, key, attempt)
            if attempt >= settings.ALARM_AFTER:
                step.hset(ALARMS, key, attempt)
        else:
            step.hdel(ALARMS, key)
        step.xack(DUE, GROUP, entry)
        await step.execute()


async def main():
    orders, cache = connections.orders(), connections.cache()
    last = "0"  # first the entries that this worker received before it died
    while True:
        try:
            await create_queue(orders)
            for _, entries in await orders.xreadgroup(GROUP, "retrier", {DUE: last}, count=10, block=1000) or []:
                for entry, message in entries:
                    await retry(cache, orders, entry, message["key"], int(message["attempt"]))
                if not entries:
                    last = ">"
        except REDIS_DOWN:
            last = "0"
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main())
