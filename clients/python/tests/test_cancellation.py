"""Canceled tasks: the server may have granted a lease whose reply is on its way. Only tasks can be canceled, so there are no such tests for
threads."""

import asyncio
import importlib
import time

import pytest

from settings import CLIENT, PORT, PROTOCOL, classes
from sluice import Policy
from sluice.aio import Sluice, runtime

POLICY = Policy(lease=600, backoff=600)
WAIT_SECONDS = 60


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine may stand still for longer than the client waits for a reply in the background."""
    monkeypatch.setattr(runtime, "REPLY_SECONDS", WAIT_SECONDS)


def run(proxy, main):
    """Runs a test with a client behind the network."""

    async def run():
        client = classes(".asyncio")[0](port=proxy.port, protocol=PROTOCOL, decode_responses=True)
        try:
            async with Sluice(client) as sluice:
                await asyncio.wait_for(main(sluice), WAIT_SECONDS)
        finally:
            await client.aclose()

    asyncio.run(run())


async def eventually(condition):
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def cancel(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def leases(admin):
    return admin.info("sluice")["sluice_cache_leases_now"]


async def load(key):
    raise AssertionError("the task is canceled before it loads")


CALLS = {
    "a value": lambda sluice: sluice.cache.get("k", load, POLICY),
    "many values": lambda sluice: sluice.cache.get_many(["k", "l"], load, POLICY),
    "a value of a near cache": lambda sluice: sluice.cache.near().get("k", load, POLICY),
    "many values of a near cache": lambda sluice: sluice.cache.near().get_many(["k", "l"], load, POLICY),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_lease_whose_reply_is_on_its_way_is_returned(admin, proxy, what):
    async def main(sluice):
        proxy.holds = ["CACHE.FETCH"]
        task = asyncio.create_task(CALLS[what](sluice))
        await eventually(proxy.is_held.is_set)
        assert leases(admin) > 0
        await cancel(task)  # at once: the reply is not there
        proxy.deliver.set()
        await eventually(lambda: leases(admin) == 0)

    run(proxy, main)


@pytest.mark.parametrize("what", CALLS)
def test_a_lease_that_is_granted_after_a_wait_is_returned(admin, proxy, what):
    async def main(sluice):
        token = admin.execute_command("CACHE.FETCH", "k", "LEASE", 600_000)[2]
        if "many" in what:
            admin.execute_command("CACHE.SET", "l", "value", "PX", 600_000)
        proxy.holds = ["BLOCK"]
        task = asyncio.create_task(CALLS[what](sluice))
        await eventually(lambda: admin.info("sluice")["sluice_cache_waiters_now"] == 1)
        admin.execute_command("CACHE.FAIL", "k", token)
        await eventually(proxy.is_held.is_set)
        assert leases(admin) == 1
        await cancel(task)
        proxy.deliver.set()
        await eventually(lambda: leases(admin) == 0)

    run(proxy, main)


def test_a_timeout_returns_the_lease(admin, proxy):
    async def main(sluice):
        proxy.holds = ["CACHE.FETCH"]
        task = asyncio.create_task(sluice.cache.get("k", load, POLICY))
        await eventually(proxy.is_held.is_set)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(task, 0.01)
        assert leases(admin) == 1
        proxy.deliver.set()
        await sluice.close()  # waits for the reply
        assert leases(admin) == 0

    run(proxy, main)


def test_a_canceled_load_lets_the_next_caller_load_at_once(admin, proxy):
    async def main(sluice):
        has_begun = asyncio.Event()

        async def wait(keys):
            has_begun.set()
            await asyncio.sleep(WAIT_SECONDS)

        async def value(key):
            return "value"

        near = sluice.cache.near()
        for call in (lambda: sluice.cache.get("k", wait, POLICY), lambda: sluice.cache.get_many(["k", "l"], wait, POLICY),
                     lambda: near.get("k", wait, POLICY), lambda: near.get_many(["k", "l"], wait, POLICY)):
            admin.flushall()
            has_begun.clear()
            task = asyncio.create_task(call())
            await has_begun.wait()
            await cancel(task)
            assert leases(admin) == 0
            assert await sluice.cache.get("k", value, POLICY) == "value"  # not LoaderFailed: the loader did not fail

    run(proxy, main)


def test_a_request_of_a_canceled_task_ends_if_the_server_is_silent(admin, proxy, monkeypatch):
    monkeypatch.setattr(runtime, "REPLY_SECONDS", 0.05)

    async def main(sluice):
        await sluice.cache.read("k")
        proxy.holds = ["CACHE.FETCH"]
        task = asyncio.create_task(sluice.cache.get("k", load, POLICY))
        await eventually(proxy.is_held.is_set)
        await cancel(task)
        await asyncio.wait_for(sluice.close(), WAIT_SECONDS / 2)
        proxy.deliver.set()
        await eventually(lambda: len(admin.client_list()) == 1)  # the connection is closed

    run(proxy, main)


def test_canceled_work_that_has_not_begun_leaves_its_key_free(admin, proxy):
    async def main(sluice):
        for call in lambda: sluice.once.run("job", load, lease=600), lambda: sluice.once.begin("job", lease=600):
            proxy.holds = ["ONCE.BEGIN"]
            task = asyncio.create_task(call())
            await eventually(proxy.is_held.is_set)
            assert admin.exists("job")
            await cancel(task)
            proxy.deliver.set()
            await eventually(lambda: not admin.exists("job"))
            proxy.is_held.clear()
            proxy.deliver.clear()
        # The same if the task waited for another worker.
        token = admin.execute_command("ONCE.BEGIN", "job", "LEASE", 600_000)[2]
        proxy.holds = ["BLOCK"]
        task = asyncio.create_task(sluice.once.run("job", load, lease=600))
        await eventually(lambda: admin.info("sluice")["sluice_once_waiting"] == 1)
        admin.execute_command("ONCE.FAIL", "job", token)
        await eventually(proxy.is_held.is_set)
        await cancel(task)
        proxy.deliver.set()
        await eventually(lambda: not admin.exists("job"))

    run(proxy, main)


def test_canceled_work_is_not_begun_again(admin, proxy):
    async def main(sluice):
        has_begun = asyncio.Event()

        async def work(token):
            has_begun.set()
            await asyncio.sleep(WAIT_SECONDS)

        task = asyncio.create_task(sluice.once.run("job", work, lease=600))
        await has_begun.wait()
        await cancel(task)  # the work can have had its effect
        assert (await sluice.once.begin("job", lease=600)).state == "BUSY"

    run(proxy, main)


def test_a_lock_whose_reply_is_on_its_way_is_released(admin, proxy):
    async def main(sluice):
        for lock in sluice.lock("k"), sluice.lock("k", owner="me"), sluice.lock_many(["k", "l"]), sluice.semaphore("k", 1):
            await sluice.lock("other", wait=0).acquire()  # opens the connection
            proxy.is_held.clear()
            proxy.deliver.clear()
            proxy.holds = ["ACQUIRE"]
            task = asyncio.create_task(lock.acquire())
            await eventually(proxy.is_held.is_set)
            assert admin.exists("k")
            task.cancel()
            await asyncio.sleep(0.01)
            proxy.deliver.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not admin.exists("k")

    run(proxy, main)


def test_a_lock_is_released_although_the_connection_breaks_during_the_cancellation(admin, proxy):
    async def main(sluice):
        for lost in "LOCK.CANCEL", "LOCK.RELEASE":
            lock = sluice.lock("k", lease=600)
            proxy.holds = ["LOCK.ACQUIRE"]
            task = asyncio.create_task(lock.acquire())
            await eventually(proxy.is_held.is_set)
            task.cancel()
            await asyncio.sleep(0.01)
            proxy.loses = [lost]
            proxy.deliver.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            await eventually(lambda: not admin.exists("k"))
            assert not proxy.loses
            proxy.is_held.clear()
            proxy.deliver.clear()

    run(proxy, main)


def test_a_lock_that_is_acquired_again_after_two_cancellations_stays(admin, proxy):
    async def main(sluice):
        lock = sluice.lock("k", lease=600)
        proxy.holds = ["LOCK.ACQUIRE"]
        task = asyncio.create_task(lock.acquire())
        await eventually(proxy.is_held.is_set)
        task.cancel()
        await asyncio.sleep(0.01)  # the request is withdrawn when its reply is there
        await cancel(task)
        again = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0.01)
        proxy.deliver.set()
        assert await again
        await lock.check()
        assert len(admin.execute_command("LOCK.INFO", "k")) and not lock.lost.is_set()
        await lock.release()
        assert not admin.exists("k")

    run(proxy, main)


def test_a_lock_of_the_client_library_whose_reply_is_on_its_way_is_released(admin, proxy):
    lock_class = importlib.import_module(f"sluice.compat.{CLIENT}_lock").AsyncLock

    async def main(sluice):
        lock = sluice.client.lock("k", lock_class=lock_class)
        proxy.holds = ["LOCK.ACQUIRE"]
        task = asyncio.create_task(lock.acquire())
        await eventually(proxy.is_held.is_set)
        assert admin.exists("k")
        await cancel(task)
        proxy.deliver.set()
        await eventually(lambda: not admin.exists("k"))

    run(proxy, main)
