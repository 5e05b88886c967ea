"""A near cache for asyncio: cached entries in this process, which the server invalidates (`CLIENT TRACKING ... BCAST`).

One connection asks for the tracking, another one receives its messages. All other connections only read.
The package clients/python has a near cache that tracks single keys.
"""

import asyncio
import time

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from connections import REDIS_DOWN

CHECK_S = 1.0  # how often an idle connection is checked
CHANNEL = "__redis__:invalidate"


class NearCache:
    def __init__(self, socket, prefixes):
        self.socket, self.prefixes = str(socket), prefixes
        self.entries = {}  # a key: its value, and the time until which it is fresh
        self.hits = self.misses = 0
        self.changes = 0  # the number of messages. While a request runs, it must not change
        self.is_connected = False

    def get(self, key):
        """Returns (True, value), or (False, None)."""
        value, until = self.entries.get(key, (None, 0))
        if time.monotonic() < until:
            self.hits += 1
            return True, value
        self.misses += 1
        return False, None

    def peek(self, key):
        """The value or None, without an effect on the counters."""
        value, until = self.entries.get(key, (None, 0))
        return value if time.monotonic() < until else None

    def set(self, key, value, fresh_ms, changes, asked):
        """Keeps a value that was fresh for `fresh_ms` at `asked`, if no message arrived since `changes` was read."""
        if self.is_connected and changes == self.changes:
            self.entries[key] = value, asked + fresh_ms / 1000

    async def listen(self):
        """Receives invalidations until it is canceled. Without a connection the map stays empty."""
        while True:
            try:
                await self._listen()
            except REDIS_DOWN:
                await asyncio.sleep(0.1)

    async def _listen(self):
        # No retries: a new connection without tracking would receive nothing.
        options = dict(unix_socket_path=self.socket, decode_responses=True, protocol=2, retry=Retry(NoBackoff(), 0),
                       single_connection_client=True)
        async with redis.asyncio.Redis(**options) as receiver, redis.asyncio.Redis(**options) as tracker:
            async with receiver.pubsub() as messages:
                try:
                    await messages.connect()
                    await messages.connection.send_command("CLIENT", "ID")
                    receiver_id = await messages.connection.read_response()
                    await messages.subscribe(CHANNEL)
                    await messages.get_message(timeout=CHECK_S)
                    words = [word for prefix in self.prefixes for word in ("PREFIX", prefix)]
                    await tracker.execute_command("CLIENT", "TRACKING", "ON", "REDIRECT", receiver_id, "BCAST", *words)
                    self.is_connected = True
                    await self._receive(messages, tracker)
                finally:
                    self.is_connected = False
                    self._forget(None)

    async def _receive(self, messages, tracker):
        checked = time.monotonic()
        while True:
            message = await messages.get_message(timeout=CHECK_S)
            if message and message["type"] == "message":
                self._forget(message["data"])
            if time.monotonic() - checked > CHECK_S:
                checked = time.monotonic()
                await tracker.ping()
                await messages.ping()

    def _forget(self, keys):
        self.changes += 1
        if keys is None:  # FLUSHALL, or the connection is lost
            self.entries.clear()
        else:
            for key in keys:
                self.entries.pop(key, None)
