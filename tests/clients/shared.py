"""What examples/clients/python/shared.py promises: python shared.py <server>. Run by tests/clients.rs."""

import asyncio
import pathlib
import sys
import time

import redis.asyncio as redis

# This file has the name of the example.
sys.path[0] = str(pathlib.Path(__file__).parents[2] / "examples/clients/python")
sys.dont_write_bytecode = True
from shared import Lost, SharedLocks  # noqa: E402

URL = f"redis://127.0.0.1:{sys.argv[1]}"


async def eventually(condition):
    deadline = time.monotonic() + 20
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def waiting(admin):
    return (await admin.info("sluice"))["sluice_lock_waiting"]


async def a_thousand_tasks_share_one_connection(locks, admin):
    count, fences = 0, []

    async def increment():
        nonlocal count
        async with locks.lock("counter", wait=60) as held:
            fences.append(held.fence)
            before = count
            await asyncio.sleep(0)  # another task would count here, too
            count = before + 1

    await asyncio.gather(*(increment() for _ in range(1000)))
    assert count == 1000
    assert fences == sorted(fences)
    # One connection for commands, one for messages, and this test's.
    assert len(await admin.client_list()) == 3


async def a_lock_that_stays_busy_times_out(locks, admin):
    await admin.execute_command("LOCK.ACQUIRE", "busy", "other", "PX", 600000)
    try:
        async with locks.lock("busy", wait=0.05):
            raise AssertionError("it is not free")
    except TimeoutError:
        pass
    assert await waiting(admin) == 0


async def a_canceled_task_leaves_nothing_behind(locks, admin):
    await admin.execute_command("LOCK.ACQUIRE", "key", "other", "PX", 600000)

    async def hold():
        async with locks.lock("key"):
            raise AssertionError("it is not free")

    task = asyncio.create_task(hold())
    await eventually(lambda: has_waiting(admin, 1))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    await eventually(lambda: has_waiting(admin, 0))
    await admin.execute_command("LOCK.RELEASE", "key", "other")
    assert not await admin.exists("key")


async def has_waiting(admin, count):
    return await waiting(admin) == count


async def a_holder_hears_of_a_loss(locks, admin):
    try:
        async with locks.lock("key") as held:
            await admin.delete("key")
            await asyncio.wait_for(held.lost.wait(), 20)
    except Lost:
        return
    raise AssertionError("the loss is not reported")


async def a_killed_subscription_leaves_no_task_stuck(locks, admin):
    await admin.execute_command("LOCK.ACQUIRE", "key", "other", "PX", 600000)

    async def hold():
        async with locks.lock("key", wait=1):
            pass

    tasks = [asyncio.create_task(hold()) for _ in range(3)]
    await eventually(lambda: has_waiting(admin, 3))
    await admin.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    await admin.execute_command("LOCK.RELEASE", "key", "other")
    await asyncio.gather(*tasks, return_exceptions=True)
    # Whether a task was granted the lock or gave up, nothing is left of it.
    assert await waiting(admin) == 0
    assert not await admin.exists("key")

    async def is_subscribed():
        return len(await admin.pubsub_channels()) == 1

    await eventually(is_subscribed)
    async with locks.lock("key"):
        pass


TESTS = [
    a_thousand_tasks_share_one_connection,
    a_lock_that_stays_busy_times_out,
    a_canceled_task_leaves_nothing_behind,
    a_holder_hears_of_a_loss,
    a_killed_subscription_leaves_no_task_stuck,
]


async def main():
    admin = redis.from_url(URL, decode_responses=True, single_connection_client=True)
    async with SharedLocks(URL) as locks:
        for test in TESTS:
            await test(locks, admin)
            print(test.__name__, flush=True)
    await admin.aclose()


asyncio.run(main())
