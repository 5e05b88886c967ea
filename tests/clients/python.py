"""The example of the Python package, examples/clients/python/shop.py: python python.py <server> <lossy proxy> <protocol>.

Run by tests/clients/main.rs.
"""

import pathlib
import sqlite3
import subprocess
import sys

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples/clients/python"
sys.path.insert(0, str(EXAMPLE))
sys.dont_write_bytecode = True
from shop import retry_after, sell, write  # noqa: E402
from sluice import LockLost, Sluice  # noqa: E402

PORT, LOSSY, PROTOCOL = sys.argv[1:]

client = redis.Redis(port=int(PORT), protocol=int(PROTOCOL), decode_responses=True)
sluice = Sluice(client)


def raises(error, do, *arguments):
    try:
        do(*arguments)
    except error:
        return True
    return False


def the_example_prints_what_it_does():
    program = [sys.executable, "-B", str(EXAMPLE / "shop.py"), f"redis://127.0.0.1:{PORT}"]
    printed = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    assert printed == "balance: 70\nsold, 9 available / sold, 9 available\nusers: Ann None\nretry after: 0\n", printed


def a_stale_fence_is_refused():
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE accounts (id TEXT PRIMARY KEY, balance INTEGER, fence INTEGER NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO accounts (id, balance) VALUES ('ann', 100)")

    def hold():
        with sluice.lock("key") as slow:
            write(db, "ann", 90, slow.fence)
            write(db, "ann", 80, slow.fence)
            assert sluice.guard("guard", slow.fence)
            client.delete("key")
            with sluice.lock("key") as fast:
                fence = fast.fence
                write(db, "ann", 70, fence)
                assert sluice.guard("guard", fence)
            assert raises(LockLost, write, db, "ann", 0, slow.fence)
            assert not sluice.guard("guard", slow.fence)
            assert db.execute("SELECT balance, fence FROM accounts").fetchall() == [(70, fence)]

    assert raises(LockLost, hold)


def refusals_are_values():
    client.execute_command("STOCK.SET", "sku", 1)
    assert sell(sluice, "sku", "1", "ann") == "sold, 0 available"
    assert sell(sluice, "sku", "2", "bob") == "refused: SOLD_OUT"
    assert any(retry_after(sluice, "ann") > 0 for _ in range(1000))  # sooner or later, on a slow machine


def a_sale_whose_reply_is_lost_sells_once_only_with_an_order():
    # Its default pauses are seconds.
    lossy = redis.Redis(port=int(LOSSY), protocol=int(PROTOCOL), retry=Retry(ConstantBackoff(0.05), 3))
    client.execute_command("STOCK.SET", "sku:2", 10)
    assert sell(Sluice(lossy), "sku:2", "1", "ann") == "sold, 9 available"
    assert client.execute_command("STOCK.GET", "sku:2") == 9
    assert lossy.execute_command("STOCK.DEDUCT", "sku:2", 1) == 7, "redis-py did not repeat a sale without an order"


TESTS = [
    the_example_prints_what_it_does,
    a_stale_fence_is_refused,
    refusals_are_values,
    a_sale_whose_reply_is_lost_sells_once_only_with_an_order,
]

for test in TESTS:
    test()
    print(test.__name__, flush=True)
sluice.close()
