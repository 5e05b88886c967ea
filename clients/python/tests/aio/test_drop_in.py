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


async def test_the_steps_of_a_lock(lock_of, connect, admin):
    client = connect()
    lock, other = lock_of(client, timeout=600), lock_of(client)
    assert not await lock.locked() and not await lock.owned()
    assert await lock.acquire(blocking=False) and lock.fence > 0
    assert await lock.locked() and await lock.owned() and not await other.owned()
    assert not await other.acquire(blocking=False) and not await other.acquire(blocking_timeout=0.02)
    assert await lock.extend(600) and 1_100_000 < admin.pttl("foo") <= 1_200_000
    assert await lock.extend(600, replace_ttl=True) and 500_000 < admin.pttl("foo") <= 600_000
    assert await lock.reacquire() and 500_000 < admin.pttl("foo") <= 600_000
    await lock.release()
    with pytest.raises(errors.LockError):
        await lock.release()
    async with other:
        assert admin.type("foo") == "sluice-lk"
    assert not admin.exists("foo")


async def test_a_waiting_caller_is_in_the_queue_of_the_server(lock_of, connect, admin):
    first = lock_of(connect())
    await first.acquire()

    async def wait():
        lock = lock_of(connect(), blocking_timeout=60, thread_local=False)
        return await lock.acquire()

    handle = start(wait)
    await eventually(lambda: admin.info("sluice")["sluice_lock_waiting"] == 1)
    await first.release()
    assert await finish(handle) is True


async def test_a_lost_lock_is_not_owned(lock_of, connect, admin):
    lock = lock_of(connect(), timeout=10)
    for call in lock.release, lock.reacquire, lambda: lock.extend(1):
        await lock.acquire()
        admin.delete("foo")
        with pytest.raises(errors.LockNotOwnedError):
            await call()


async def test_it_and_the_lock_of_the_library_exclude_each_other(lock_of, connect, admin):
    client = connect()
    theirs, ours = client.lock("foo", timeout=60), lock_of(client, sleep=0.01)
    assert await theirs.acquire(blocking=False)
    assert not await ours.acquire(blocking_timeout=0.03) and not await ours.owned()
    await theirs.release()
    assert await ours.acquire(blocking_timeout=60)
    assert not await theirs.acquire(blocking=False)


async def test_a_release_waits_for_a_free_connection(lock_of, make_small, admin):
    client = make_small("at once").client

    async def wait():
        await client.execute_command("BLPOP", "no list", 0.6)

    for timeout in 600, None:
        lock = lock_of(client, timeout=timeout)
        assert await lock.acquire()
        handle = start(wait)
        await eventually(lambda: admin.info("clients")["blocked_clients"] == 1)
        await lock.release()
        assert not admin.exists("foo")
        await finish(handle)
