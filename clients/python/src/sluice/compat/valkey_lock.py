"""The `Lock` of valkey-py over LOCK.*: pass it as `lock_class`, as in `client.lock("name", timeout=10, lock_class=Lock)`."""

from __future__ import annotations

import valkey.asyncio.lock
import valkey.lock

from ..aio.drop_in import LockMixin as AsyncLockMixin
from ..sync.drop_in import LockMixin


class Lock(LockMixin, valkey.lock.Lock):
    """A lock with the methods of `valkey.lock.Lock`. The README has a table of the differences."""


class AsyncLock(AsyncLockMixin, valkey.asyncio.lock.Lock):  # type: ignore[misc]
    """A lock with the methods of `valkey.asyncio.lock.Lock`. The README has a table of the differences."""
