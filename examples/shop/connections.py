"""Connections of one process: two Redis servers and MariaDB, all by Unix sockets.

`orders` has data that must not be lost (`appendfsync always`): stocks, idempotency keys, limits, locks, delay queues.
`cache` has data that MariaDB has, too. It writes no file: after a restart it is empty, and an empty cache is never stale.
"""

import contextlib

import aiomysql
import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

import settings

# A lost connection is tried again twice within 0.1 s. All commands of the shop may be sent twice.
ATTEMPTS, BASE_S, CAP_S = 2, 0.01, 0.1
REDIS_DOWN = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.ReadOnlyError, OSError)
DATABASE_DOWN = (aiomysql.OperationalError, aiomysql.InterfaceError, aiomysql.InternalError, OSError, TimeoutError)


def _redis(socket, connections):
    pool = redis.asyncio.BlockingConnectionPool(
        connection_class=redis.asyncio.UnixDomainSocketConnection, path=str(socket), decode_responses=True, protocol=2,
        max_connections=connections, timeout=10, socket_timeout=10,
        retry=Retry(ExponentialBackoff(cap=CAP_S, base=BASE_S), ATTEMPTS), retry_on_error=list(REDIS_DOWN))
    return redis.asyncio.Redis(connection_pool=pool)


def orders(connections=20):
    return _redis(settings.ORDERS_SOCKET, connections)


def cache(connections=20):
    return _redis(settings.CACHE_SOCKET, connections)


async def database(connections=10):
    """A pool. It starts empty, so a process also starts while MariaDB is down."""
    return await aiomysql.create_pool(
        minsize=0, maxsize=connections, unix_socket=str(settings.DATABASE_SOCKET), user="shop", db="shop",
        autocommit=True, cursorclass=aiomysql.DictCursor, connect_timeout=5)


async def query(pool, sql, *arguments):
    """The rows of one statement."""
    async with pool.acquire() as connection, connection.cursor() as cursor:
        await cursor.execute(sql, arguments)
        return await cursor.fetchall()


@contextlib.asynccontextmanager
async def transaction(pool):
    """A cursor of one transaction, which commits at the end of the block."""
    async with pool.acquire() as connection:
        try:
            await connection.begin()
            async with connection.cursor() as cursor:
                yield cursor
            await connection.commit()
        except BaseException:
            connection.close()  # MariaDB rolls back; the state of this connection is unknown
            raise
