"""Locks of many tasks over one connection and one subscription, with asyncio and redis-py.

Run: python shared.py redis://localhost:6390
"""

import asyncio
import contextlib
import sys
import time
import uuid

import redis.asyncio as redis
from redis.exceptions import ConnectionError as BrokenConnection


class Lost(Exception):
    """The lock was lost before it was released."""


class Held:
    """A lock that a task holds."""

    def __init__(self, key, fence):
        self.key = key
        self.fence = fence
        self.lost = asyncio.Event()  # set when the server reports the loss


class SharedLocks:
    """All tasks share one connection for commands and one subscription for messages."""

    def __init__(self, url):
        self.client = redis.from_url(url, decode_responses=True, single_connection_client=True)
        self.subscriber = redis.from_url(url, decode_responses=True).pubsub()
        self.channel = f"locks:{uuid.uuid4().hex}"
        self.waiting = {}  # the requests that wait, by their ids
        self.held = {}  # the holds, by the ids of their requests

    async def __aenter__(self):
        await self.client.initialize()
        await self.subscriber.subscribe(self.channel)
        await self.subscriber.get_message(timeout=10)  # the confirmation
        self.reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *error):
        self.reader.cancel()
        await self.subscriber.aclose()
        await self.client.aclose()

    async def _read(self):
        while True:
            try:
                message = await self.subscriber.get_message(ignore_subscribe_messages=True, timeout=10)
            except BrokenConnection:
                await asyncio.sleep(0.1)  # redis-py subscribes again; waiting tasks repeat their requests
                continue
            if message is None:
                continue
            what, fence, request = message["data"].split(" ", 2)
            if what == "lost":
                held = self.held.get(request)
                if held and held.fence == int(fence):
                    held.lost.set()
            elif (waiting := self.waiting.get(request)) and not waiting.done():
                waiting.set_result((what, int(fence)))

    @contextlib.asynccontextmanager
    async def lock(self, key, wait=10.0, lease=30.0):
        """Holds `key`. If the connection closes, the hold ends with its lease, and `held.lost` is set."""
        request = uuid.uuid4().hex  # the owner of this hold, and the id of its request
        held = Held(key, await self._acquire(key, request, wait, lease))
        self.held[request] = held
        try:
            yield held
        finally:
            del self.held[request]
            released = await self.client.execute_command("LOCK.RELEASE", key, request, "ALL")
        if released is None:
            raise Lost(key)

    async def _acquire(self, key, request, wait, lease):
        deadline = time.monotonic() + wait
        try:
            while True:
                left = max(deadline - time.monotonic(), 0.001)
                message = self.waiting[request] = asyncio.get_running_loop().create_future()
                fence = await self.client.execute_command(
                    "LOCK.ACQUIRE", key, request, "PX", int(lease * 1000), "BLOCK", int(left * 1000) or 1,
                    "WATCHDOG", "LINGER", "ID", request, "NOTIFY", self.channel)
                if fence is not None:
                    return fence
                try:
                    what, fence = await asyncio.wait_for(message, left + 0.5)
                except asyncio.TimeoutError:
                    what = "nothing"  # the message may be lost: ask again with the same id
                if what == "granted":
                    return fence
                if what == "deadlock":
                    raise redis.ResponseError("DEADLOCK waiting for this lock would never end")
                if time.monotonic() > deadline + 1 or what == "timeout":
                    raise TimeoutError(f"{key} was not free within {wait} s")
        except BaseException:
            # Also if the task is canceled: nothing waits for it any more, and nothing is held for it.
            await asyncio.shield(self._give_up(key, request))
            raise
        finally:
            del self.waiting[request]

    async def _give_up(self, key, request):
        with contextlib.suppress(redis.RedisError):
            await self.client.execute_command("LOCK.CANCEL", key, request)
            await self.client.execute_command("LOCK.RELEASE", key, request, "ALL")


async def main(url, tasks=1000):
    """1000 tasks count, one after the other."""
    count = 0

    async with SharedLocks(url) as locks:
        async def increment():
            nonlocal count
            async with locks.lock("counter", wait=60):
                before = count
                await asyncio.sleep(0)  # another task would count here, too
                count = before + 1

        await asyncio.gather(*(increment() for _ in range(tasks)))
        print(f"{count} of {tasks} tasks counted")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "redis://localhost:6379"))
