"""A shop with the package clients/python: a write with a fencing token, an idempotent sale, a filter, a cached read, a limit.

`python shop.py [redis://...]` runs it on a server with Sluice. It needs the package: `pip install 'clients/python[redis]'` in the
folder of the project.
"""

import sqlite3
import sys
import uuid

import redis

from sluice import LockLost, Rate, Sluice


def write(db, account, balance, fence):
    """The check in the database: it refuses the write of a holder that lost the lock, however late the write arrives."""
    with db:  # commits, or rolls back
        changed = db.execute(
            "UPDATE accounts SET balance = ?, fence = ? WHERE id = ? AND fence <= ?",
            (balance, fence, account, fence))
        if changed.rowcount == 0:
            raise LockLost(account)


def withdraw(sluice, db, account, amount):
    """Changes the balance under a lock, which the server renews."""
    with sluice.lock(f"account:{account}") as lock:
        (balance,) = db.execute("SELECT balance FROM accounts WHERE id = ?", (account,)).fetchone()
        lock.check()
        write(db, account, balance - amount, lock.fence)


def sell(sluice, sku, order, user):
    """Returns a text for the buyer. A repetition with the same order sells once: create the id before the first attempt."""
    reply = sluice.stock.deduct(sku, order=order, user=user)
    return f"sold, {reply.quantity} available" if reply else f"refused: {reply.refusal.name}"


def user(sluice, name):
    """Returns a user, or None. The filter answers for most names that do not exist, the cache for the others."""
    if not sluice.bloom.exists("names", name):
        return None
    return sluice.cache.get(f"user:{name}", lambda key: name.title())  # one caller at a time asks the database


def retry_after(sluice, name):
    """Returns 0 if the request is allowed, else the seconds to wait: 10 requests a second, 20 more after a quiet time."""
    return sluice.limit.gcra(f"limit:{name}", Rate(10, 1.0, burst=20)).retry_after or 0


def main():
    url = sys.argv[1] if len(sys.argv) > 1 else "redis://localhost"
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE accounts (id TEXT PRIMARY KEY, balance INTEGER, fence INTEGER NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO accounts (id, balance) VALUES ('ann', 100)")
    with Sluice(redis.Redis.from_url(url, decode_responses=True)) as sluice:
        withdraw(sluice, db, "ann", 30)
        print("balance:", *db.execute("SELECT balance FROM accounts WHERE id = 'ann'").fetchone())
        sluice.stock.create("sku:1", 10, per_user=2)
        order = uuid.uuid4().hex
        print(sell(sluice, "sku:1", order, "ann"), "/", sell(sluice, "sku:1", order, "ann"))
        sluice.bloom.add("names", "ann")
        print("users:", user(sluice, "ann"), user(sluice, "bob"))
        print("retry after:", retry_after(sluice, "ann"))


if __name__ == "__main__":
    main()
