"""The reader of MariaDB's binlog: invalidates the cache after every commit, whichever program wrote.

So nothing stays stale if an application dies between its commit and its CACHE.DEL, or if an administrator types an UPDATE.
The position is stored after each transaction: a reader that dies reads the transaction again. `python canal.py` runs it.
"""

import asyncio
import logging
import time

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
        yield f"product:{values['id']}"
        if not isinstance(event, UpdateRowsEvent):
            yield CATALOG


def wait_until_visible(connection, position):
    """The binlog has a transaction shortly before other connections see it. An invalidation in between would come too early:
    the next reader would store the old row. A snapshot knows the position in the binlog up to which it sees all transactions."""
    while True:
        with connection.cursor() as cursor:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            cursor.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")
            status = dict(cursor.fetchall())
            cursor.execute("COMMIT")
        if (status["Binlog_snapshot_file"], int(status["Binlog_snapshot_position"])) >= position:
            return
        time.sleep(0.005)


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
        changes = set()
        for event in reader:
            if isinstance(event, XidEvent):  # the end of a transaction
                if changes:
                    wait_until_visible(connection, (reader.log_file, reader.log_pos))
                for key in changes:
                    while not await invalidate(cache, orders, key):
                        await asyncio.sleep(0.1)
                if changes:
                    await orders.set(POSITION, f"{reader.log_file} {reader.log_pos}")
                    changes = set()
            else:
                changes.update(keys_of(event))
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
