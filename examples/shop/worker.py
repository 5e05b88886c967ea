"""The order worker: reads the events of all stocks, and writes orders to MariaDB.

It can die at any point. Entries without an XACK are read again, and each write may be repeated: the primary key is the order,
and `ver` refuses older events. `python worker.py` runs it.
"""

import asyncio
import logging

import redis

import connections
import settings
from connections import DATABASE_DOWN, REDIS_DOWN

STATES = {"reserve": "reserved", "confirm": "sold", "deduct": "sold", "cancel": "cancelled", "expire": "expired"}
NAME = "worker-1"  # the same after a restart, so the new process reads the entries of the dead one
BATCH = 100

WRITE = """
INSERT INTO orders (id, product_id, user, qty, state, ver) VALUES (%s, %s, %s, %s, %s, %s)
ON DUPLICATE KEY UPDATE state = IF(VALUES(ver) > ver, VALUES(state), state), ver = GREATEST(ver, VALUES(ver))
"""


def rows_of(entries):
    for _, event in entries:
        if event["op"] in STATES:
            yield (event["order"], settings.product_of(event["sku"]), event["user"], int(event["qty"]),
                   STATES[event["op"]], int(event["ver"]))


async def write(db, entries):
    """One transaction for all entries."""
    rows = list(rows_of(entries))
    if rows:
        async with connections.transaction(db) as cursor:
            await cursor.executemany(WRITE, rows)


async def write_until_done(db, entries):
    while True:
        try:
            return await write(db, entries)
        except DATABASE_DOWN as error:
            logging.warning("MariaDB does not answer, the entries wait: %s", error)
            await asyncio.sleep(0.2)


async def create_group(client):
    try:
        await client.xgroup_create(settings.EVENTS, settings.WORKERS, id="0", mkstream=True)
    except redis.ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise


async def main():
    client, db = connections.orders(), await connections.database(1)
    last = "0"  # first the entries that a dead process of this name has left
    while True:
        try:
            await create_group(client)
            for _, entries in await client.xreadgroup(
                    settings.WORKERS, NAME, {settings.EVENTS: last}, count=BATCH, block=1000) or []:
                if entries:
                    await write_until_done(db, entries)
                    await client.xack(settings.EVENTS, settings.WORKERS, *(entry for entry, _ in entries))
                else:
                    last = ">"
        except REDIS_DOWN as error:
            logging.warning("Redis does not answer: %s", error)
            last = "0"
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main())
