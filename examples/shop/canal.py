"""The reader of MariaDB's binlog: invalidates the cache after every commit, whichever program wrote.

So nothing stays stale if an application dies between its commit and its CACHE.DEL, or if an administrator types an UPDATE.
The position is stored after each transaction: a reader that dies reads the transaction again. `python canal.py` runs it.
"""

import asyncio
import logging

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import XidEvent
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

import connections
import settings
from catalog import CATALOG
from connections import REDIS_DOWN
from invalidation import invalidate

POSITION = "canal:position"  # on the server of the orders: a file of the binlog, and the byte after a transaction
SERVER_ID = 4711  # MariaDB regards the reader as a replica; ids of replicas differ
CONNECTION = dict(unix_socket=str(settings.DATABASE_SOCKET), user="canal")


def now(connection):
    with connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        return list(cursor.fetchone()[:2])


def keys_of(event):
    for row in event.rows:
        values = row.get("after_values") or row["values"]
        yield f"product:{values['id']}", values["id"]
        if not isinstance(event, UpdateRowsEvent):
            yield CATALOG, values["id"]


def wait_until_visible(connection, product_id):
    """The binlog has a transaction shortly before other connections see it. An invalidation in between would come too early:
    the next reader would store the old row. The transaction keeps the lock of the row until others see its change."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM shop.products WHERE id = %s LOCK IN SHARE MODE", (product_id,))


async def follow(orders, cache):
    """Reads until MariaDB or Redis is down. The reader and its queries block, and this process has nothing else to do."""
    connection = pymysql.connect(**CONNECTION, autocommit=True)
    text = await orders.get(POSITION)
    file, byte = text.split() if text else now(connection)
    if not text:
        await orders.set(POSITION, f"{file} {byte}")
    reader = BinLogStreamReader(
        connection_settings=CONNECTION, server_id=SERVER_ID, blocking=True, resume_stream=True, log_file=file,
        log_pos=int(byte), only_schemas=["shop"], only_tables=["products"], slave_heartbeat=1,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent, XidEvent])
    try:
        changes = {}
        for event in reader:
            if isinstance(event, XidEvent):  # the end of a transaction
                for key, product_id in changes.items():
                    wait_until_visible(connection, product_id)
                    while not await invalidate(cache, orders, key):
                        await asyncio.sleep(0.1)
                if changes:
                    await orders.set(POSITION, f"{reader.log_file} {reader.log_pos}")
                    changes = {}
            else:
                changes |= dict(keys_of(event))
    finally:
        reader.close()
        connection.close()


async def main():
    while True:
        orders, cache = connections.orders(), connections.cache()
        try:
            await follow(orders, cache)
        except (*REDIS_DOWN, pymysql.Error) as error:
            logging.warning("the reader starts again: %s", error)
            await asyncio.sleep(0.2)
        finally:
            await orders.aclose()
            await cache.aclose()


if __name__ == "__main__":
    asyncio.run(main())
