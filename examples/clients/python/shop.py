"""A shop with redis-py: a write with a fencing token, an idempotent sale, a filter, a cached read, a limit.

`python shop.py [redis://...]` runs it on a server with Sluice. Copy the functions that you need.
"""

import sqlite3
import sys
import uuid

import redis

from lock import LockLost, lock


def write(db, account, balance, fence):
    """The check in the database: it refuses the write of a holder that lost the lock, however late the write arrives."""
    with db:  # commits, or rolls back
        changed = db.execute(
            "UPDATE accounts SET balance = ?, fence = ? WHERE id = ? AND fence <= ?",
            (balance, fence, account, fence))
        if changed.rowcount == 0:
            raise LockLost(account)


def sell(client, sku, qty, order, user):
    """Returns the available quantity, or a code: -1 sold out, -2 over the user's limit. A repetition with the same order sells once."""
    # If a connection breaks, redis-py sends the command again. If that raises, the order may be sold: keep its id and
    # repeat the request later.
    return client.execute_command("STOCK.DEDUCT", sku, qty, "ORDER", order, "USER", user)


def may_exist(client, name):
    """Returns false if the name certainly does not exist. True: query the database."""
    return bool(client.execute_command("BF.EXISTS", "names", name))  # 1 in RESP2, True in RESP3


class LoaderFailed(Exception):
    """The loader failed a moment ago, so it is unknown whether there is a value."""


def cached(client, key, load, fresh_ms=60_000):
    """Returns the value, or None if there is none. One caller at a time calls `load(key)`; after a failure, no caller for a second."""
    while True:
        state, value, n = client.execute_command("CACHE.FETCH", key, "LEASE", 3000, "BLOCK", 2000)
        if state in (b"WAIT", "WAIT"):
            continue  # another caller has been loading for more than two seconds
        if state not in (b"LEASE", "LEASE"):
            if value is None and state in (b"DOWN", "DOWN"):
                raise LoaderFailed(key)
            return value  # HIT, STALE, DOWN with an old value; None for NULL and ABSENT
        try:
            value = load(key)
        except Exception:
            client.execute_command("CACHE.FAIL", key, n, "BACKOFF", 1000)
            raise
        if value is None:
            client.execute_command("CACHE.SETNULL", key, "PX", 5000, "TOKEN", n)
        else:
            client.execute_command("CACHE.SET", key, value, "PX", fresh_ms, "JITTER", 10, "TOKEN", n)
        return value


def retry_after(client, user):
    """Returns 0 if the request is allowed, else the milliseconds to wait: 10 requests a second, 20 more after a quiet time."""
    limited, _, _, retry_ms, _ = client.execute_command("RATE.GCRA", f"limit:{user}", 20, 10, 1000)
    return retry_ms if limited else 0


def main():
    url = sys.argv[1] if len(sys.argv) > 1 else "redis://localhost"
    client = redis.Redis.from_url(url, decode_responses=True)
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE accounts (id TEXT PRIMARY KEY, balance INTEGER, fence INTEGER NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO accounts (id, balance) VALUES ('ann', 100)")
    with lock(client, "account:ann") as held:
        (balance,) = db.execute("SELECT balance FROM accounts WHERE id = 'ann'").fetchone()
        held.check()
        write(db, "ann", balance - 30, held.fence)
    print("balance:", *db.execute("SELECT balance FROM accounts WHERE id = 'ann'").fetchone())
    client.execute_command("STOCK.SET", "sku:1", 10, "NX", "PERUSER", 2)
    order = uuid.uuid4().hex
    print("left:", sell(client, "sku:1", 1, order, "ann"), sell(client, "sku:1", 1, order, "ann"))
    client.execute_command("BF.ADD", "names", "ann")
    print("names:", may_exist(client, "ann"), may_exist(client, "bob"))
    print("cached:", cached(client, "user:ann", lambda key: "Ann"), cached(client, "user:ann", lambda key: "Ann"))
    print("retry after:", retry_after(client, "ann"))


if __name__ == "__main__":
    main()
