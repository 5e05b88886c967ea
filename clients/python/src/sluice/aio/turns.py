"""Callers of one process that would wait for the same key wait one after the other, with one connection."""

from __future__ import annotations

import contextlib
import threading
from typing import AsyncIterator

from ..replies import Key
from .runtime import Mutex


class Turns:
    """A mutex for each key that a caller waits for."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._mutexes: dict[Key, tuple[Mutex, int]] = {}

    @contextlib.asynccontextmanager
    async def of(self, key: Key) -> AsyncIterator[None]:
        """Runs the block when no other caller of this process is in one of the same key."""
        with self._guard:
            mutex, users = self._mutexes.get(key, (Mutex(), 0))
            self._mutexes[key] = mutex, users + 1
        try:
            async with mutex:
                yield
        finally:
            with self._guard:
                mutex, users = self._mutexes.pop(key)
                if users > 1:
                    self._mutexes[key] = mutex, users - 1
