"""The `Lock` of redis-py over LOCK.*: pass it as `lock_class`, as in `client.lock("name", timeout=10, lock_class=Lock)`."""

from __future__ import annotations

import redis.asyncio.lock
import redis.lock

from ..aio.drop_in import LockMixin as AsyncLockMixin
from ..sync.drop_in import LockMixin


class Lock(LockMixin, redis.lock.Lock):
    """A lock with the methods of `redis.lock.Lock`. The README has a table of the differences."""


class AsyncLock(AsyncLockMixin, redis.asyncio.lock.Lock):  # type: ignore[misc]
    """A lock with the methods of `redis.asyncio.lock.Lock`. The README has a table of the differences."""
