"""What the tests need of asyncio. tests/sync/helpers.py has the same names for threads."""

import asyncio
import time

from sluice.aio.cache import CONTACT_SECONDS, SILENCE_SECONDS
from sluice.aio.locks import LockSession  # noqa: F401

TASKS = 1000
WAIT_SECONDS = 60
LOCK_CLASS = "AsyncLock"

Event = asyncio.Event


async def pause(seconds=0.0):
    await asyncio.sleep(seconds)


async def together(run, count):
    """Runs a function several times at once. Returns the results."""
    return await asyncio.gather(*(run() for _ in range(count)))


def start(run):
    """Runs a function beside the caller."""
    return asyncio.create_task(run())


async def finish(handle):
    """Returns its result, or raises its exception."""
    return await asyncio.wait_for(handle, WAIT_SECONDS)


async def is_set(event):
    await asyncio.wait_for(event.wait(), WAIT_SECONDS)
    return True


async def eventually(condition):
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def trusted_until(near):
    """Returns the time (`time.monotonic()`) until which a near cache serves its entries if its only server sends nothing more."""
    [session] = near._sessions.values()
    return min(session.contact + CONTACT_SECONDS, session.heard + SILENCE_SECONDS)
