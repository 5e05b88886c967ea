# `clients/python/generate` writes this file from the folder aio.
"""Cached values without cache stampede, and a near cache in the process."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence, TypeVar

from ..errors import LoaderFailed, typed
from ..library import Endpoint, Library
from ..replies import Key, Policy, Value, Word, fetched, fields, option, same
from .families import POLL_SECONDS, Family
from .runtime import endpoint_of, sleep
from .session import SILENCE_SECONDS, Session
from .turns import Turns

if TYPE_CHECKING:
    from .client import Sluice

K = TypeVar("K", bound=Key)

DEFAULT = Policy()

CONNECTION_ATTEMPTS = 3

# The oldest answer of the server with which the map of a near cache is trusted.
CONTACT_SECONDS = 2.0


class Cache(Family):
    """Cached values. One caller at a time loads a value; the others wait for it or get the stale one."""

    def __init__(self, sluice: "Sluice") -> None:
        super().__init__(sluice)
        self._turns = Turns()
        self._near: list[NearCache] = []

    def get(self, key: K, loader: Callable[[K], Value | None], policy: Policy = DEFAULT) -> Any:
        """Returns the cached value, or loads it.

        Args:
            key: The key of the entry.
            loader: Loads the value of the key. One caller at a time calls it, over all processes. None means that no value exists.
            policy: How long the entry is fresh, and other times.

        Returns:
            The value, as the client returns values, or None if no value exists.

        Raises:
            LoaderFailed: The loader failed a moment ago or its breaker is open, and no older value exists.
        """
        reply = self._fetch(key, policy, 0.0)
        if reply[0] == "WAIT":
            with self._turns.of(key):
                while reply[0] == "WAIT":
                    reply = self._fetch(key, policy, self._sluice.block_seconds)
                    if reply[0] == "WAIT" and not self._sluice.block_seconds:
                        sleep(POLL_SECONDS)
        return self._settle(key, reply, loader, policy)

    def get_many(self, keys: Sequence[K], loader: Callable[[list[K]], Mapping[K, Value | None]],
                       policy: Policy = DEFAULT) -> dict[K, Any]:
        """Returns the values of many keys, in one round trip if all are cached.

        Args:
            keys: The keys of the entries. In a cluster, they can be in different hash slots.
            loader: Loads the values of several keys at once. A key that its result lacks has no value.
            policy: How long the entries are fresh, and other times.

        Raises:
            LoaderFailed: The loader failed a moment ago or its breaker is open, and a key has no older value.
        """
        keys = list(dict.fromkeys(keys))
        replies = [fetched(reply) for reply in self._sluice.run_many([policy.fetch(key) for key in keys])]
        return self._settle_many(keys, replies, loader, policy)

    def read(self, key: Key) -> Any:
        """Returns the cached value without loading it, or None."""
        return self._run(same, "CACHE.GET", key)

    def set(self, key: Key, value: Value | None, policy: Policy = DEFAULT, *, version: int | None = None) -> bool:
        """Stores a value, or with None a negative entry. Not repeated: another client can delete the entry meanwhile.

        Args:
            key: The key of the entry.
            value: The value.
            policy: How long the entry is fresh.
            version: The version of the value, for example of its row in the database.

        Returns:
            False if the entry has a newer version.
        """
        return self._run(bool, *policy.store(key, value), *self._version(version), repeat=False)

    def delete(self, key: Key, *, stale: float | None = None, grace: float | None = None, version: int | None = None) -> bool:
        """Invalidates an entry. A load that runs meanwhile does not store its value.

        Args:
            key: The key of the entry.
            stale: For so many seconds the old value is served while one caller loads the new one.
            grace: For so many seconds no loader may store a value, for a database whose replicas lag.
            version: The version of the deletion. Older values are refused during `grace`.

        Returns:
            Whether there was an entry.
        """
        return self._run(bool, "CACHE.DEL", key, *option("STALE", stale), *option("GRACE", grace), *self._version(version))

    def info(self, key: Key) -> dict[str, Any] | None:
        """Returns the fields of `CACHE.INFO`, or None if the entry does not exist."""
        return self._run(fields, "CACHE.INFO", key)

    def breaker(self, name: str) -> dict[str, Any] | None:
        """Returns state, failures, retry_ms and trips of a breaker, or None. Not for clusters: each node has its own."""
        return self._run(fields, "CACHE.BREAKER", name)

    def near(self, size: int = 10_000) -> "NearCache":
        """Returns a near cache: a map in this process, which the server invalidates. Not for clusters.

        Args:
            size: The largest number of entries.
        """
        near = NearCache(self._sluice, self, size)
        self._near.append(near)
        return near

    def close(self) -> None:
        """Closes the connections of all near caches."""
        near, self._near = self._near, []
        for one in near:
            one.close()

    @staticmethod
    def _version(version: int | None) -> list[Word]:
        return [] if version is None else ["VER", version]

    def _fetch(self, key: Key, policy: Policy, block: float) -> tuple[str, Any, int]:
        return self._run(fetched, *policy.fetch(key, block))

    def _settle(self, key: K, reply: tuple[str, Any, int], loader: Callable[[K], Value | None],
                      policy: Policy) -> Any:
        state, value, number = reply
        if state == "DOWN" and value is None:
            raise LoaderFailed(key)
        if state == "MISS" and value is None:  # a replica, which gives no leases
            return self._sluice.value(loader(key))
        if state != "LEASE":
            return value
        try:
            loaded = loader(key)
        except BaseException:
            self._failed(key, number, policy)
            raise
        self._run(bool, *policy.store(key, loaded), "TOKEN", number)
        return self._sluice.value(loaded)

    def _failed(self, key: Key, token: int, policy: Policy) -> bool:
        return self._run(bool, "CACHE.FAIL", key, token, *option("BACKOFF", policy.backoff or None))

    def _settle_many(self, keys: Sequence[K], replies: Sequence[tuple[str, Any, int]],
                           loader: Callable[[list[K]], Mapping[K, Value | None]], policy: Policy) -> dict[K, Any]:
        """Returns the values for these replies of CACHE.FETCH. Loads all keys with a lease at once."""
        values: dict[K, Any] = {}
        leases = {key: number for key, (state, _, number) in zip(keys, replies) if state == "LEASE"}
        if leases:
            try:
                loaded = loader(list(leases))
            except BaseException:
                for key, token in leases.items():
                    self._failed(key, token, policy)
                raise
            for key, token in leases.items():
                self._run(bool, *policy.store(key, loaded.get(key)), "TOKEN", token)
                values[key] = self._sluice.value(loaded.get(key))

        def load_one(key: K) -> Value | None:
            return (loader([key])).get(key)

        # The keys that other callers load come last: no lease waits for them.
        for key, (state, value, _) in zip(keys, replies):
            if state in ("WAIT", "MISS"):
                values[key] = self.get(key, load_one, policy)
            elif state == "DOWN" and value is None:
                raise LoaderFailed(key)
            elif state != "LEASE":
                values[key] = value
        return {key: values[key] for key in keys}


class NearCache:
    """Cached values in this process. Create it with `cache.near`.

    A hit needs no round trip. The server reports each change of an entry (`CLIENT TRACKING`), usually within a millisecond. After a
    lost connection the map is empty. An entry that changed during such a failure is served for at most three seconds.

    Attributes:
        hits: The number of values that came from the map.
    """

    def __init__(self, sluice: "Sluice", cache: Cache, size: int) -> None:
        if sluice.library.is_cluster:
            raise TypeError("a near cache needs a client of one server, not of a cluster")
        self.hits = 0
        self._sluice = sluice
        self._cache = cache
        self._map = NearMap(size)
        self._session: NearSession | None = None

    def get(self, key: K, loader: Callable[[K], Value | None], policy: Policy = DEFAULT) -> Any:
        """Returns the value of the map, of the cache, or of the loader. The arguments are those of `cache.get`."""
        found, value = self._look_up(key)
        if found:
            return value
        state, value, number = (self._fetch([key], policy))[0]
        if state == "WAIT":
            return self._cache.get(key, loader, policy)
        return self._cache._settle(key, (state, value, number), loader, policy)

    def get_many(self, keys: Sequence[K], loader: Callable[[list[K]], Mapping[K, Value | None]],
                       policy: Policy = DEFAULT) -> dict[K, Any]:
        """Returns the values of many keys. The arguments are those of `cache.get_many`."""
        values: dict[K, Any] = {}
        missing: list[K] = []
        for key in dict.fromkeys(keys):
            found, value = self._look_up(key)
            if found:
                values[key] = value
            else:
                missing.append(key)
        if missing:
            values.update(self._cache._settle_many(missing, self._fetch(missing, policy), loader, policy))
        return values

    def close(self) -> None:
        """Closes the connections. The next call opens them again."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
        self._map.clear()

    def _look_up(self, key: Key) -> tuple[bool, Any]:
        session = self._session
        now = time.monotonic()
        if session is None or now - session.heard > SILENCE_SECONDS or now - session.contact > CONTACT_SECONDS:
            return False, None
        found, value = self._map.get(key)
        self.hits += found
        return found, value

    def _fetch(self, keys: Sequence[Key], policy: Policy) -> list[tuple[str, Any, int]]:
        library = self._sluice.library
        session = self._session
        if session is None:
            endpoint = endpoint_of(self._sluice.client, library, "")
            session = self._session = self._session or NearSession(library, endpoint, self._map)
        replies = []
        for key in keys:
            replies.append(self._fetch_one(session, key, policy))
        return replies

    def _fetch_one(self, session: "NearSession", key: Key, policy: Policy) -> tuple[str, Any, int]:
        for attempt in range(1, CONNECTION_ATTEMPTS + 1):
            asked = time.monotonic()
            mark = self._map.ask(key)
            try:
                state, value, number = fetched(session.call(*policy.fetch(key)))
            except self._sluice.library.error_reply as error:
                raise typed(error) from error
            except self._sluice.library.broken:
                if attempt == CONNECTION_ATTEMPTS:
                    raise
                continue
            if state in ("HIT", "NULL"):  # the other states change without an invalidation
                self._map.put(key, value, asked + number / 1000, mark)
            return state, value, number
        raise AssertionError("unreachable")


class NearMap:
    """The entries of a near cache: a bounded map. Threads may share it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._guard = threading.Lock()
        self._entries: dict[bytes, tuple[Any, float]] = {}
        self._marks: dict[bytes, object] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> tuple[bool, Any]:
        entry = self._entries.get(name_of(key))
        if entry is None or entry[1] <= time.monotonic():
            return False, None
        return True, entry[0]

    def ask(self, key: Key) -> object:
        """Runs before a request. Returns a mark, which an invalidation of the key removes."""
        mark = object()
        with self._guard:
            self._marks[name_of(key)] = mark
        return mark

    def put(self, key: Key, value: Any, until: float, mark: object) -> None:
        """Keeps a reply, unless an invalidation came since the request: it can be one of this reply."""
        name = name_of(key)
        with self._guard:
            if self._marks.get(name) is not mark:
                return
            del self._marks[name]
            self._entries.pop(name, None)
            while len(self._entries) >= self._size:
                del self._entries[next(iter(self._entries))]
            self._entries[name] = value, until

    def drop(self, name: bytes) -> None:
        with self._guard:
            self._marks.pop(name, None)
            self._entries.pop(name, None)

    def clear(self) -> None:
        with self._guard:
            self._marks.clear()
            self._entries.clear()


class NearSession(Session):
    """A connection whose reads the server tracks, and one that gets the invalidations."""

    def __init__(self, library: Library, endpoint: Endpoint, map: NearMap) -> None:
        super().__init__(library, endpoint, "__redis__:invalidate")
        self._map = map

    def _greet(self) -> None:
        self._map.clear()  # nobody reported the changes meanwhile
        self._exchange("CLIENT", "TRACKING", "ON", "REDIRECT", self._inbox_id)

    def _turn_deaf(self) -> None:
        self._map.clear()

    def _hear(self, message: Any) -> None:
        if message[2] is None:  # FLUSHALL, or the server tracks too many keys
            self._map.clear()
            return
        for name in message[2]:
            self._map.drop(name)

    def _heartbeat(self) -> tuple[Word, ...] | None:
        return ("PING",) if len(self._map) else None


def name_of(key: Key) -> bytes:
    return key if isinstance(key, bytes) else key.encode()
