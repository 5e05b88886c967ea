"""What the tests need of threads. tests/aio/helpers.py has the same names for asyncio."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from sluice.sync.cache import CONTACT_SECONDS, SILENCE_SECONDS
from sluice.sync.locks import LockSession  # noqa: F401

TASKS = 50
WAIT_SECONDS = 60
LOCK_CLASS = "Lock"

Event = threading.Event

_pool = ThreadPoolExecutor(max_workers=2 * TASKS)


def pause(seconds=0.0):
    time.sleep(seconds)


def together(run, count):
    """Runs a function several times at once. Returns the results."""
    return [handle.result(WAIT_SECONDS) for handle in [_pool.submit(run) for _ in range(count)]]


def start(run):
    """Runs a function beside the caller."""
    return _pool.submit(run)


def finish(handle):
    """Returns its result, or raises its exception."""
    return handle.result(WAIT_SECONDS)


def is_set(event):
    return event.wait(WAIT_SECONDS)


def eventually(condition):
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def trusted_until(near):
    """Returns the time (`time.monotonic()`) until which a near cache serves its entries if its only server sends nothing more."""
    [session] = near._sessions.values()
    return min(session.contact + CONTACT_SECONDS, session.heard + SILENCE_SECONDS)
