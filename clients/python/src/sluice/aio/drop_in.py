"""The methods of redis-py's `Lock` over LOCK.*: a mixin for the lock classes of redis-py and valkey-py."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import Any

from ..library import Library
from ..replies import ms
from .client import send_until
from .runtime import Requests
from .runtime import sleep as pause

# Without a timeout, a lock of redis-py is held until its release. This is the longest lease.
LONGEST_MS = 315_360_000_000

# How long a release waits for a free connection of the pool if the lock has no timeout.
RELEASE_SECONDS = 60.0


class LockMixin:
    """A mixin that sends LOCK.* instead of SET and scripts. Waiting callers are in the server's queue and do not poll."""

    name: Any
    local: Any
    timeout: Any
    sleep: Any
    blocking: Any
    blocking_timeout: Any

    def register_scripts(self) -> None:
        """Registers nothing: the commands of the module need no scripts."""
        self._client: Any = vars(self).get("redis") or vars(self)["valkey"]
        self._library = Library(self._client)
        self._requests = Requests()

    @property
    def fence(self) -> int | None:
        """The fencing token of the last acquisition. redis-py has none."""
        return getattr(self.local, "fence", None)

    async def acquire(self, sleep: Any = None, blocking: Any = None, blocking_timeout: Any = None, token: Any = None) -> bool:
        """Acquires the lock. The arguments are those of redis-py. `sleep` is only used while a lock of redis-py has the key.

        If a task of asyncio is canceled during the call, a lock that it gets is released, in the background. With `token`, the caller
        releases it. If the reply of the server is lost, the lock ends after `timeout`.
        """
        owner = uuid.uuid4().hex.encode() if token is None else self._client.get_encoder().encode(token)
        seconds = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        if not (self.blocking if blocking is None else blocking):
            seconds = 0
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = self._library.block if deadline is None else max(deadline - time.monotonic(), 0)
            if await self._is_acquired(owner, min(left, self._library.block), is_new=token is None):
                self.local.token = owner
                return True
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            if self._is_foreign or not self._library.block:
                await pause(min(self.sleep if sleep is None else sleep, left))

    async def do_acquire(self, token: Any) -> bool:
        return await self._is_acquired(token, 0, is_new=False)

    async def locked(self) -> bool:
        """Returns whether any process holds the lock."""
        return bool(await self._client.exists(self.name))

    async def owned(self) -> bool:
        """Returns whether this object holds the lock."""
        return self.local.token is not None and await self._send("LOCK.HELD", self.name, self.local.token) is not None

    async def do_release(self, expected_token: Any) -> None:
        if await self._release(expected_token) is None:
            raise self._not_owned("Cannot release a lock that's no longer owned")

    async def do_extend(self, additional_time: Any, replace_ttl: bool) -> Any:
        lease = ms(additional_time)
        if not replace_ttl:
            lease += max(await self._client.pttl(self.name), 0)
        if await self._send("LOCK.RENEW", self.name, self.local.token, "PX", lease) is None:
            raise self._not_owned("Cannot extend a lock that's no longer owned")
        return True

    async def do_reacquire(self) -> Any:
        if await self._send("LOCK.RENEW", self.name, self.local.token, "PX", ms(self.timeout)) is None:
            raise self._not_owned("Cannot reacquire a lock that's no longer owned")
        return True

    _is_foreign = False

    async def _is_acquired(self, owner: Any, block: float, is_new: bool) -> bool:
        lease = ms(self.timeout) if self.timeout else LONGEST_MS
        words: list[Any] = ["LOCK.ACQUIRE", self.name, owner, "PX", lease, "ID", owner]

        words += ["BLOCK", ms(block)] if block > 0 else []

        async def release(fence: Any) -> None:
            if fence is not None and is_new:  # the caller that named the token can have acquired the lock before
                with contextlib.suppress(self._library.failures, OSError):
                    await self._release(owner)

        fence = await self._requests.run(lambda: self._send(*words), release)
        self.local.fence = fence
        return fence is not None

    async def _release(self, owner: Any) -> Any:
        until = time.monotonic() + (self.timeout or RELEASE_SECONDS)
        return await send_until(until, self._library, lambda: self._send("LOCK.RELEASE", self.name, owner, "ALL"))

    async def _send(self, *words: Any) -> Any:
        """Sends a command. If the key has a lock of redis-py itself, a string, this lock is not held."""
        self._is_foreign = False
        try:
            return await self._client.execute_command(*words)
        except self._library.error_reply as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            self._is_foreign = True
            return None

    def _not_owned(self, text: str) -> Exception:
        return self._library.not_owned(text)
