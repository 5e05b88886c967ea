# `clients/python/generate` writes this file from the folder aio.
"""The lock with the interface of redis-py and valkey-py."""

import importlib

import pytest

from settings import CLIENT

from .helpers import LOCK_CLASS, eventually, finish, start

module = importlib.import_module(f"sluice.compat.{CLIENT}_lock")
errors = importlib.import_module(f"{CLIENT}.exceptions")


@pytest.fixture
def lock_of(connect):
    return lambda client, name="foo", **options: client.lock(name, lock_class=getattr(module, LOCK_CLASS), **options)


def test_the_steps_of_a_lock(lock_of, connect, admin):
    client = connect()
    lock, other = lock_of(client, timeout=600), lock_of(client)
    assert not lock.locked() and not lock.owned()
    assert lock.acquire(blocking=False) and lock.fence > 0
    assert lock.locked() and lock.owned() and not other.owned()
    assert not other.acquire(blocking=False) and not other.acquire(blocking_timeout=0.02)
    assert lock.extend(600) and 1_100_000 < admin.pttl("foo") <= 1_200_000
    assert lock.extend(600, replace_ttl=True) and 500_000 < admin.pttl("foo") <= 600_000
    assert lock.reacquire() and 500_000 < admin.pttl("foo") <= 600_000
    lock.release()
    with pytest.raises(errors.LockError):
        lock.release()
    with other:
        assert admin.type("foo") == "sluice-lk"
    assert not admin.exists("foo")


def test_a_waiting_caller_is_in_the_queue_of_the_server(lock_of, connect, admin):
    first = lock_of(connect())
    first.acquire()

    def wait():
        lock = lock_of(connect(), blocking_timeout=60, thread_local=False)
        return lock.acquire()

    handle = start(wait)
    eventually(lambda: admin.info("sluice")["sluice_lock_waiting"] == 1)
    first.release()
    assert finish(handle) is True


def test_a_lost_lock_is_not_owned(lock_of, connect, admin):
    lock = lock_of(connect(), timeout=10)
    for call in lock.release, lock.reacquire, lambda: lock.extend(1):
        lock.acquire()
        admin.delete("foo")
        with pytest.raises(errors.LockNotOwnedError):
            call()


def test_it_and_the_lock_of_the_library_exclude_each_other(lock_of, connect, admin):
    client = connect()
    theirs, ours = client.lock("foo", timeout=60), lock_of(client, sleep=0.01)
    assert theirs.acquire(blocking=False)
    assert not ours.acquire(blocking_timeout=0.03) and not ours.owned()
    theirs.release()
    assert ours.acquire(blocking_timeout=60)
    assert not theirs.acquire(blocking=False)


def test_a_release_waits_for_a_free_connection(lock_of, make_small, admin):
    client = make_small("at once").client

    def wait():
        client.execute_command("BLPOP", "no list", 0.6)

    for timeout in 600, None:
        lock = lock_of(client, timeout=timeout)
        assert lock.acquire()
        handle = start(wait)
        eventually(lambda: admin.info("clients")["blocked_clients"] == 1)
        lock.release()
        assert not admin.exists("foo")
        finish(handle)
