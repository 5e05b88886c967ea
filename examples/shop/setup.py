"""The servers and programs of the shop, and their first data."""

import asyncio
import getpass
import os
import pathlib
import shutil
import signal
import sys
import time

import pymysql
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import connections
import invalidation
import settings
from catalog import build_filter, open_stock
from supervisor import Failed, die_with_parent

HERE = pathlib.Path(__file__).parent

# name, about, icon, cents, stock, is_flash
PRODUCTS = [
    ("Pour-over kettle", "A thin, steady stream", "kettle", 5400, 800, False),
    ("Desk clock", "Silent hands, loud second", "clock", 3900, 600, False),
    ("Studio headphones", "Closed, light, repairable", "headphones", 12900, 400, False),
    ("Slim keyboard", "Seventy-five keys, no lights", "keyboard", 8900, 500, False),
    ("Stoneware cup", "Fired twice, glazed once", "cup", 1800, 2000, False),
    ("Reading lamp", "Warm light where you need it", "lamp", 6900, 300, False),
    ("Pocket projector", "A cinema for every white wall", "projector", 9900, 100, True),
]


def program(name):
    """A program of Debian's packages, which can be in a folder that only root's PATH has."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if not found:
        raise Failed(f"{name} is missing: run scripts/prepare-shop")
    return found


def temporary(state):
    """The folder for temporary tables. A MariaDB that starts removes those of others in a folder that it shares with them."""
    return state / "tmp"


async def create_database(state):
    """The files of an empty MariaDB. Its root user has no password: only this user can reach the socket in this folder."""
    temporary(state).mkdir()
    process = await asyncio.create_subprocess_exec(
        program("mariadb-install-db"), "--no-defaults", f"--datadir={state / 'mariadb'}", f"--user={getpass.getuser()}",
        "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve",
        "--force",  # also where nothing resolves the name of this machine
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=os.environ | {"TMPDIR": str(temporary(state))},
        start_new_session=True, preexec_fn=die_with_parent)
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        os.killpg(process.pid, signal.SIGKILL)  # the script and its mariadbd
        await process.wait()
        raise
    if process.returncode:
        raise Failed("mariadb-install-db fails:\n" + output.decode(errors="replace")[-2000:])


def servers(state):
    module = os.environ.get("SLUICE_MODULE", HERE.parents[1] / "target/release/libsluice.so")
    redis_server = os.environ.get("SERVER", "redis-server")
    common = [redis_server, "--port", 0, "--loadmodule", module, "--maxmemory-policy", "noeviction", "--dir", state]
    yield {
        "name": "mariadb",
        "command": [
            program("mariadbd"), "--no-defaults", f"--user={getpass.getuser()}", f"--datadir={state / 'mariadb'}",
            f"--tmpdir={temporary(state)}", f"--socket={settings.DATABASE_SOCKET}", f"--pid-file={state / 'mariadb.pid'}",
            "--skip-networking", "--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-metadata=FULL", "--server-id=1",
            "--sync-binlog=1", "--innodb-flush-log-at-trx-commit=1", "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M",
            "--max-connections=100", "--skip-name-resolve"],
        "is_ready": database_answers,
    }
    yield {
        "name": "orders",
        "command": [*common, "--unixsocket", settings.ORDERS_SOCKET, "--appendonly", "yes", "--appendfsync", "always",
                    "--appenddirname", "orders", "--save", ""],
        "is_ready": lambda: answers(settings.ORDERS_SOCKET),
    }
    yield {
        "name": "cache",
        "command": [*common, "--unixsocket", settings.CACHE_SOCKET, "--appendonly", "no", "--save", ""],
        "is_ready": lambda: answers(settings.CACHE_SOCKET),
    }


def programs(port):
    """web.py may not start before its port is free, so its readiness is an HTTP request."""
    names = {"web": "web.py", "worker": "worker.py", "canal": "canal.py", "retrier": "invalidation.py",
             "settle-1": "settle.py", "settle-2": "settle.py"}
    for name, file in names.items():
        service = {"name": name, "command": [sys.executable, HERE / file]}
        yield service | ({"is_ready": lambda: page_answers(port)} if name == "web" else {})


async def database_answers():
    try:
        await asyncio.to_thread(lambda: pymysql.connect(unix_socket=str(settings.DATABASE_SOCKET), user="root").close())
    except (pymysql.Error, OSError):
        return False
    return True


async def answers(socket):
    try:
        with redis.Redis(unix_socket_path=str(socket), retry=Retry(NoBackoff(), 0)) as client:
            return client.ping()
    except (redis.RedisError, OSError):
        return False


async def page_answers(port):
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        status = await reader.readline()
        writer.close()
    except OSError:
        return False
    return b" 200 " in status


async def fill(sale_in_s):
    """The tables, the products, their stocks, the filter, and the queues."""
    create_tables()
    orders, cache, db = connections.orders(), connections.cache(), await connections.database()
    async with connections.transaction(db) as cursor:
        for *product, is_flash in PRODUCTS:
            starts_at_ms = int((time.time() + sale_in_s) * 1000) if is_flash else 0
            await cursor.execute(
                "INSERT INTO products (name, about, icon, price_cents, stock, is_flash, starts_at_ms)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s)", (*product, is_flash, starts_at_ms))
    for row in await connections.query(db, "SELECT id, stock FROM products"):
        await open_stock(orders, row["id"], row["stock"])
    await build_filter(cache, db)
    await invalidation.create_queue(orders)
    db.close()
    await db.wait_closed()
    await orders.aclose()
    await cache.aclose()


def create_tables():
    with pymysql.connect(unix_socket=str(settings.DATABASE_SOCKET), user="root", autocommit=True) as connection:
        with connection.cursor() as cursor:
            for statement in ("CREATE DATABASE shop", "USE shop", *statements((HERE / "schema.sql").read_text())):
                cursor.execute(statement)


def statements(script):
    """The statements of a script without strings that have a semicolon or two dashes."""
    code = "\n".join(line.split("--")[0] for line in script.splitlines())
    return [statement for statement in code.split(";") if statement.strip()]
