"""What examples/clients/python promises: python python.py <server> <lossy proxy> <protocol>. Run by tests/clients.rs."""

import pathlib
import sqlite3
import sys
import threading
import time

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples/clients/python"))
sys.dont_write_bytecode = True
from lock import LockLost, LockTimeout, lock, renewed_lock  # noqa: E402
from shop import LoaderFailed, cached, may_exist, retry_after, sell, write  # noqa: E402

SERVER, LOSSY, PROTOCOL = sys.argv[1:]
LEASE = 1000


def connect(port=SERVER, **options):
    return redis.Redis(port=int(port), protocol=int(PROTOCOL), **options)


client, admin = connect(), connect()


def eventually(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def raises(error, do, *arguments):
    try:
        do(*arguments)
    except error:
        return True
    return False


def try_to_hold(make, **options):
    with make(client, "key", **options) as held:
        return held.fence


def kill_all_connections():
    admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def two_holders_exclude_each_other():
    for make in lock, renewed_lock:
        with make(client, "key") as first:
            for other in lock, renewed_lock:
                assert raises(LockTimeout, lambda: try_to_hold(other, wait_ms=20))
            fences = []
            waiter = threading.Thread(target=lambda: fences.append(try_to_hold(make)))
            waiter.start()
            eventually(lambda: admin.info("sluice")["sluice_lock_waiting"] == 1)
            first.check()
        waiter.join()
        assert fences[0] > first.fence
        assert not admin.exists("key")


def a_lock_waits_longer_than_its_client_would():
    impatient = connect(socket_timeout=0.5)
    with lock(client, "key"):
        for make in lock, renewed_lock:
            def hold():
                with make(impatient, "key", wait_ms=1000):
                    pass
            assert raises(LockTimeout, hold)
    assert impatient.connection_pool.get_connection().socket_timeout == 0.5


def a_block_that_fails_leaves_nothing_on_the_connection_of_the_pool():
    for make in lock, renewed_lock:
        def fail():
            with make(client, "key"):
                raise ZeroDivisionError
        assert raises(ZeroDivisionError, fail)
        eventually(lambda: not admin.exists("key"))
    assert admin.info("sluice")["sluice_lock_watchdog_holds"] == 0


def a_killed_connection_frees_the_lock_and_the_holder_is_told():
    def hold():
        with lock(client, "key") as held:
            held.check()
            kill_all_connections()
            eventually(lambda: not admin.exists("key"))
            assert raises(LockLost, held.check)
            fence = try_to_hold(lock)
            assert fence > held.fence
    assert raises(LockLost, hold)


def renewal_outlasts_the_lease():
    with renewed_lock(client, "key", lease_ms=LEASE) as held:
        until = time.monotonic() + 2 * LEASE / 1000
        while time.monotonic() < until:
            held.check()
            assert raises(LockTimeout, lambda: try_to_hold(lock, wait_ms=20))
    assert not admin.exists("key")


def a_renewed_lock_that_is_taken_away_is_told():
    def hold():
        with renewed_lock(client, "key", lease_ms=LEASE) as held:
            held.check()
            admin.delete("key")
            eventually(lambda: raises(LockLost, held.check))
    assert raises(LockLost, hold)


def a_renewed_lock_of_a_silent_server_is_not_believed_in_past_its_lease():
    def hold():
        with renewed_lock(client, "key", lease_ms=LEASE) as held:
            held.check()
            admin.execute_command("CLIENT", "PAUSE", LEASE + 500, "ALL")
            eventually(lambda: raises(LockLost, held.check))
    assert raises(LockLost, hold)


def a_lost_reply_to_an_acquisition_costs_nothing():
    lossy = connect(LOSSY, retry=Retry(ConstantBackoff(0.05), 3))  # its default pauses are seconds
    for make in lock, renewed_lock:
        with make(lossy, "key", lease_ms=60_000, wait_ms=20_000) as held:
            held.check()
            info = admin.execute_command("LOCK.INFO", "key")  # a map in RESP3, a flat list in RESP2
            holder = info[b"holders"][0] if PROTOCOL == "3" else info[3][0]
            assert (holder[b"count"] if PROTOCOL == "3" else holder[3]) == 1, info
        assert not admin.exists("key")


def a_sale_whose_reply_is_lost_sells_once():
    lossy = connect(LOSSY, retry=Retry(ConstantBackoff(0.05), 3))  # its default pauses are seconds
    admin.execute_command("STOCK.SET", "sku", 10)
    assert sell(lossy, "sku", 1, "order-1", "ann") == 9
    assert admin.execute_command("STOCK.GET", "sku") == 9
    assert lossy.execute_command("STOCK.DEDUCT", "sku", 1) == 7, "redis-py did not repeat what has no order"


def a_stale_fence_is_refused():
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE accounts (id TEXT PRIMARY KEY, balance INTEGER, fence INTEGER NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO accounts (id, balance) VALUES ('ann', 100)")
    guard = "LOCK.GUARD", "guard"

    def hold():
        with lock(client, "key") as slow:
            write(db, "ann", 90, slow.fence)
            write(db, "ann", 80, slow.fence)
            assert client.execute_command(*guard, slow.fence) == 1
            admin.delete("key")
            with lock(client, "key") as fast:
                write(db, "ann", 70, fast.fence)
                assert client.execute_command(*guard, fast.fence) == 1
            assert raises(LockLost, write, db, "ann", 0, slow.fence)
            assert client.execute_command(*guard, slow.fence) == 0
            assert db.execute("SELECT balance, fence FROM accounts").fetchall() == [(70, fast.fence)]

    assert raises(LockLost, hold)


def one_caller_loads_and_the_others_wait():
    loads, values = [], []

    def load(key):
        loads.append(key)
        eventually(lambda: admin.info("sluice")["sluice_cache_waiters_now"] == 9)
        return b"Ann"

    callers = [threading.Thread(target=lambda: values.append(cached(client, "user:1", load))) for _ in range(10)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert (loads, values) == (["user:1"], [b"Ann"] * 10), (loads, values)
    assert cached(client, "user:2", lambda key: None) is None
    assert cached(client, "user:2", lambda key: 1 / 0) is None  # remembered: there is none
    assert raises(ZeroDivisionError, cached, client, "user:3", lambda key: 1 / 0)
    assert raises(LoaderFailed, cached, client, "user:3", lambda key: 1 / 0)  # DOWN: nobody asks again so soon


def filters_and_limits_answer():
    admin.execute_command("BF.ADD", "names", "ann")
    assert (may_exist(client, "ann"), may_exist(client, "bob")) == (True, False)
    assert retry_after(client, "ann") == 0
    assert any(retry_after(client, "ann") > 0 for _ in range(1000))  # sooner or later, on a slow machine


TESTS = [
    two_holders_exclude_each_other,
    a_lock_waits_longer_than_its_client_would,
    a_block_that_fails_leaves_nothing_on_the_connection_of_the_pool,
    a_killed_connection_frees_the_lock_and_the_holder_is_told,
    renewal_outlasts_the_lease,
    a_renewed_lock_that_is_taken_away_is_told,
    a_renewed_lock_of_a_silent_server_is_not_believed_in_past_its_lease,
    a_lost_reply_to_an_acquisition_costs_nothing,
    a_sale_whose_reply_is_lost_sells_once,
    a_stale_fence_is_refused,
    one_caller_loads_and_the_others_wait,
    filters_and_limits_answer,
]

for test in TESTS:
    test()
    print(test.__name__, flush=True)
