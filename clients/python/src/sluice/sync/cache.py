# `clients/python/generate` writes this file from the folder aio.
"""Cached values without cache stampede, and a near cache in the process."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence, TypeVar

from ..errors import CommandError, LoaderFailed, typed
from ..library import Endpoint, Library, code_of
from ..replies import Key, Policy, Value, Word, fetched, fields, option, same
from .families import POLL_SECONDS, Family
from .runtime import endpoint_of, result_of, sleep
from .session import REDIRECTED, SILENCE_SECONDS, Session
from .turns import Turns

if TYPE_CHECKING:
    from .client import Sluice

K = TypeVar("K", bound=Key)

DEFAULT = Policy()

CONNECTION_ATTEMPTS = 3

# The codes of a server that cannot store now.
REFUSED_STORES = ("OOM", "NOREPLICAS", "MISCONF", "READONLY")

# The oldest answer of the server with which the map of a near cache is trusted.
CONTACT_SECONDS = 2.0


class Cache(Family):
    """Cached values. One caller at a time loads a value; the others wait for it or get the stale one.

    While another process loads a value, one caller of this process waits with a connection of the pool for each key; the other callers
    wait for this one. A loader occupies no connection, but its value needs one.

    If a task of asyncio is canceled, it loads nothing, and its lease is returned: the next caller loads. If the server grants the lease
    after the cancellation, it is returned in the background. If the reply of the server is lost, for example because the connection
    breaks or the event loop ends, no client knows the token: the lease ends by itself after `Policy.lease`.
    """

    def __init__(self, sluice: "Sluice") -> None:
        super().__init__(sluice)
        self._turns = Turns()
        self._near: list[NearCache] = []

    def get(self, key: K, loader: Callable[[K], Value | None], policy: Policy = DEFAULT) -> Any:
        """Returns the cached value, or loads it.

        Args:
            key: The key of the entry.
            loader: Loads the value of the key: a `str` or `bytes`, for example of `json.dumps`. None means that no value exists. An `int`
                or a `float` becomes text. One caller at a time calls it, across all processes. If it takes longer than `Policy.lease`,
                by default 3 seconds, another caller loads, too.
            policy: How long the entry is fresh, and other times.

        Returns:
            The value, as the client returns values, or None if no value exists. It is also returned if the server refuses to store
            it, for example because its memory is full. The server and a breaker then count a failed load.

        Raises:
            LoaderFailed: The loader failed a moment ago or its breaker is open, and no older value exists.
            TypeError: The loader returned a value that cannot be stored, for example a `dict`. It counts as a failed load.
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
        def give_back(replies: Mapping[K, tuple[str, Any, int]]) -> None:
            self._give_back(replies, policy)

        replies = self._sluice._requests.run(lambda: self._fetch_many(keys, policy), give_back)
        return self._settle_many(keys, list(replies.values()), loader, policy)

    def read(self, key: Key) -> Any:
        """Returns the cached value without loading it, or None."""
        return self._run(same, "CACHE.GET", key)

    def set(self, key: Key, value: Value | None, policy: Policy = DEFAULT, *, version: int | None = None) -> bool:
        """Stores a value, or with None a negative entry. Not repeated: another client can delete the entry meanwhile.

        Args:
            key: The key of the entry.
            value: The value, a `str` or `bytes`. An `int` or a `float` becomes text.
            policy: How long the entry is fresh.
            version: The version of the value, for example of its row in the database.

        Returns:
            False if the entry has a newer version.

        Raises:
            TypeError: The value cannot be stored, for example a `dict`.
        """
        if value is not None:
            self._sluice.check(value, f"the value of key {key!r} is")
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

    def reset_breaker(self, name: str) -> bool:
        """Closes a breaker. Not repeated: the breaker can open again meanwhile. Not for clusters: each node has its own.

        Returns:
            False if the server does not know the breaker.
        """
        return self._run(bool, "CACHE.BREAKER", name, "RESET", repeat=False)

    def near(self, size: int = 10_000) -> "NearCache":
        """Returns a near cache: a map in this process, which the server invalidates. In a cluster, each master invalidates its keys.

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
        def give_back(reply: tuple[str, Any, int]) -> None:
            self._give_back({key: reply}, policy)

        return self._sluice._requests.run(lambda: self._run(fetched, *policy.fetch(key, block)), give_back)

    def _fetch_many(self, keys: Sequence[K], policy: Policy) -> dict[K, tuple[str, Any, int]]:
        """Returns the replies of CACHE.FETCH, in one round trip. If one is an error or is missing, gives the leases of the others back."""
        found: dict[int, Any] = {}
        error_reply = self._sluice.library.error_reply

        def replies() -> dict[K, tuple[str, Any, int]]:
            return {key: fetched(found[at]) for at, key in enumerate(keys) if at in found and not isinstance(found[at], error_reply)}

        try:
            self._sluice.run_each([policy.fetch(key) for key in keys], found)
            for reply in found.values():
                if isinstance(reply, error_reply):
                    raise typed(reply) from reply
        except BaseException:
            self._give_back(replies(), policy)
            raise
        return replies()

    def _settle(self, key: K, reply: tuple[str, Any, int], loader: Callable[[K], Value | None],
                      policy: Policy) -> Any:
        state, value, number = reply
        if state == "DOWN" and value is None:
            raise LoaderFailed(key)
        if state == "MISS" and value is None:  # a replica, which gives no leases
            return self._sluice.value(self._load(key, loader))
        if state != "LEASE":
            return value
        ends_at = time.monotonic() + policy.lease
        try:
            loaded = self._load(key, loader)
        except BaseException as error:
            self._failed(key, number, ends_at, backoff_after(error, policy))
            raise
        try:
            self._store(key, loaded, number, ends_at, policy)
        except BaseException:
            self._failed(key, number, ends_at)
            raise
        return self._sluice.value(loaded)

    def _load(self, key: K, loader: Callable[[K], Value | None]) -> Value | None:
        return self._checked(key, result_of(loader, "loader", key))

    def _load_many(self, keys: list[K], loader: Callable[[list[K]], Mapping[K, Value | None]]) -> Mapping[K, Value | None]:
        values = result_of(loader, "loader", keys)
        if not isinstance(values, Mapping):
            raise TypeError(f"the loader of get_many returned a {type(values).__name__}: return a dict with the value of each key")
        return values

    def _checked(self, key: Key, value: Value | None) -> Value | None:
        if value is not None:
            self._sluice.check(value, f"the loader of key {key!r} returned")
        return value

    def _store(self, key: Key, value: Value | None, token: int, ends_at: float, policy: Policy) -> None:
        """Stores a loaded value. If the server refuses that, for example because its memory is full, gives the lease back."""
        try:
            self._run(bool, *policy.store(key, value), "TOKEN", token, until=ends_at)
        except CommandError as refusal:
            if not is_refused_store(refusal):
                raise
            self._failed(key, token, ends_at)

    def _failed(self, key: Key, token: int, ends_at: float, backoff: float = 0.0) -> None:
        """Gives a lease back, unless the value is stored. If that fails, the lease ends by itself."""
        with contextlib.suppress(CommandError, *self._sluice.library.broken):
            self._run(bool, "CACHE.FAIL", key, token, *option("BACKOFF", backoff or None), until=ends_at)

    def _give_back(self, replies: Mapping[K, tuple[str, Any, int]], policy: Policy) -> None:
        """Gives the leases among these replies of CACHE.FETCH back: no caller loads their values."""
        ends_at = time.monotonic() + policy.lease
        for key, (state, _, number) in replies.items():
            if state == "LEASE":
                self._failed(key, number, ends_at)

    def _settle_many(self, keys: Sequence[K], replies: Sequence[tuple[str, Any, int]],
                           loader: Callable[[list[K]], Mapping[K, Value | None]], policy: Policy) -> dict[K, Any]:
        """Returns the values for these replies of CACHE.FETCH. Loads all keys with a lease at once."""
        values: dict[K, Any] = {}
        leases = {key: number for key, (state, _, number) in zip(keys, replies) if state == "LEASE"}
        if leases:
            ends_at = time.monotonic() + policy.lease
            try:
                loaded = self._load_many(list(leases), loader)
            except BaseException as error:
                for key, token in leases.items():
                    self._failed(key, token, ends_at, backoff_after(error, policy))
                raise
            try:
                for key, token in leases.items():
                    self._store(key, self._checked(key, loaded.get(key)), token, ends_at, policy)
                    values[key] = self._sluice.value(loaded.get(key))
            except BaseException:
                for key, token in leases.items():
                    if key not in values:
                        self._failed(key, token, ends_at)
                raise

        def load_one(key: K) -> Value | None:
            return (self._load_many([key], loader)).get(key)

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
    lost connection, the map has no entry of this server. An entry that changed during such a failure is served for at most three
    seconds. In a cluster, the map has two connections for each master. If the topology changes, it drops the entries.

    Attributes:
        hits: The number of values that came from the map.
    """

    def __init__(self, sluice: "Sluice", cache: Cache, size: int) -> None:
        self.hits = 0
        self._sluice = sluice
        self._cache = cache
        self._map = NearMap(size)
        self._sessions: dict[str, NearSession] = {}

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
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.close()

    def _look_up(self, key: Key) -> tuple[bool, Any]:
        entry = self._map.get(key)
        if entry is None or not entry[2].is_trusted():
            return False, None
        self.hits += 1
        return True, entry[0]

    def _fetch(self, keys: Sequence[K], policy: Policy) -> list[tuple[str, Any, int]]:
        """Returns the replies of CACHE.FETCH, in one round trip to each server."""
        replies: dict[K, tuple[str, Any, int]] = {}

        def fetch() -> dict[K, tuple[str, Any, int]]:
            try:
                self._fetch_into(replies, keys, policy)
            except BaseException:
                self._cache._give_back(replies, policy)
                raise
            return replies

        def give_back(replies: Mapping[K, tuple[str, Any, int]]) -> None:
            self._cache._give_back(replies, policy)

        self._sluice._requests.run(fetch, give_back)
        return [replies[key] for key in keys]

    def _fetch_into(self, replies: dict[K, tuple[str, Any, int]], keys: Sequence[K], policy: Policy) -> None:
        for attempt in range(1, CONNECTION_ATTEMPTS + 1):
            groups: dict[NearSession, list[K]] = {}
            for key in keys:
                if key not in replies:
                    groups.setdefault(self._session_of(key), []).append(key)
            for session, group in groups.items():
                try:
                    self._fetch_from(replies, session, group, policy)
                except self._sluice.library.broken:
                    if attempt == CONNECTION_ATTEMPTS:
                        raise
            missing = [key for key in keys if key not in replies]
            if not missing:
                break
            self._sluice.look_again(missing[0])
        for key in keys:
            if key not in replies:  # its hash slot is moving: the client follows it, and the map does not keep the value
                replies[key] = self._cache._fetch(key, policy, 0.0)

    def _session_of(self, key: Key) -> "NearSession":
        library = self._sluice.library
        endpoint = endpoint_of(self._sluice.client, library, key)
        session = self._sessions.get(endpoint.name)
        if session is None:
            session = self._sessions.setdefault(endpoint.name, NearSession(library, endpoint, self._map))
        return session

    def _fetch_from(self, replies: dict[K, tuple[str, Any, int]], session: "NearSession", keys: Sequence[K],
                          policy: Policy) -> None:
        """Adds the replies, without the keys that the server does not have any more."""
        library = self._sluice.library
        asked = time.monotonic()
        marks = [self._map.ask(key, session) for key in keys]
        failure: Exception | None = None
        try:
            for key, mark, reply in zip(keys, marks, session.call_many([policy.fetch(key) for key in keys])):
                if isinstance(reply, library.error_reply):
                    if code_of(reply) in REDIRECTED:
                        self._map.clear(session)
                    else:
                        failure = reply
                    continue
                state, value, number = replies[key] = fetched(reply)
                if state in ("HIT", "NULL"):  # the other states change without an invalidation
                    self._map.put(key, value, asked + number / 1000, mark)
        finally:
            for key, mark in zip(keys, marks):
                self._map.forget(key, mark)
        if failure is not None:
            raise typed(failure) from failure


class NearMap:
    """The entries of a near cache: a bounded map. Threads may share it. Each entry belongs to the session that fetched it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._guard = threading.Lock()
        self._entries: dict[bytes, tuple[Any, float, NearSession]] = {}
        self._marks: dict[bytes, tuple[object, NearSession]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> tuple[Any, float, "NearSession"] | None:
        """Returns value, end and session of an entry."""
        entry = self._entries.get(name_of(key))
        return None if entry is None or entry[1] <= time.monotonic() else entry

    def ask(self, key: Key, session: "NearSession") -> object:
        """Runs before a request. Returns a mark, which an invalidation of the key removes."""
        mark = object()
        with self._guard:
            self._marks[name_of(key)] = mark, session
        return mark

    def put(self, key: Key, value: Any, until: float, mark: object) -> None:
        """Keeps a reply, unless an invalidation came since the request: it can be one of this reply."""
        name = name_of(key)
        with self._guard:
            known, session = self._marks.get(name, (None, None))
            if known is not mark or session is None:
                return
            self._entries.pop(name, None)
            while len(self._entries) >= self._size:
                del self._entries[next(iter(self._entries))]
            self._entries[name] = value, until, session

    def forget(self, key: Key, mark: object) -> None:
        """Removes the mark of a finished request."""
        name = name_of(key)
        with self._guard:
            if self._marks.get(name, (None, None))[0] is mark:
                del self._marks[name]

    def drop(self, name: bytes) -> None:
        with self._guard:
            self._marks.pop(name, None)
            self._entries.pop(name, None)

    def clear(self, session: "NearSession") -> None:
        """Drops all entries of a session, and its replies that are not read yet."""
        with self._guard:
            self._marks = {name: mark for name, mark in self._marks.items() if mark[1] is not session}
            self._entries = {name: entry for name, entry in self._entries.items() if entry[2] is not session}

    def has(self, session: "NearSession") -> bool:
        """Returns whether the map has an entry of a session."""
        with self._guard:
            return any(entry[2] is session for entry in self._entries.values())


class NearSession(Session):
    """A connection whose reads the server tracks, and one that gets the invalidations."""

    def __init__(self, library: Library, endpoint: Endpoint, map: NearMap) -> None:
        super().__init__(library, endpoint, "__redis__:invalidate")
        self._map = map
        self._topology: Any = None

    def is_trusted(self) -> bool:
        """Returns whether the server would have reported changes: whether it answered a moment ago."""
        now = time.monotonic()
        return now - self.heard <= SILENCE_SECONDS and now - self.contact <= CONTACT_SECONDS

    def _greet(self) -> None:
        self._map.clear(self)  # nobody reported the changes meanwhile
        self._exchange("CLIENT", "TRACKING", "ON", "REDIRECT", self._inbox_id)
        if self._library.is_cluster:
            self._topology = self._exchange("CLUSTER", "SLOTS")

    def _turn_deaf(self) -> None:
        self._map.clear(self)

    def _drop_wire(self) -> None:
        self._map.clear(self)  # without this connection, the server no longer reports changes of what it has read
        super()._drop_wire()

    def _hear(self, message: Any) -> None:
        if message[2] is None:  # FLUSHALL, or the server tracks too many keys
            self._map.clear(self)
            return
        for name in message[2]:
            self._map.drop(name)

    def _heartbeat(self) -> tuple[Word, ...] | None:
        if not self._map.has(self):
            return None
        return ("CLUSTER", "SLOTS") if self._library.is_cluster else ("PING",)

    def _hear_heartbeat(self, reply: Any) -> None:
        if self._library.is_cluster and reply != self._topology:
            self._topology = reply
            self._map.clear(self)  # another server can have the keys now


def backoff_after(error: BaseException, policy: Policy) -> float:
    """Returns the seconds without another load. A loader that was canceled did not fail: the next caller loads at once."""
    return policy.backoff if isinstance(error, Exception) else 0.0


def is_refused_store(error: CommandError) -> bool:
    """Returns whether the server cannot store a value now, or never this one."""
    reply = error.__cause__
    return isinstance(reply, Exception) and (code_of(reply) in REFUSED_STORES or "larger than cache-max-bytes" in str(reply))


def name_of(key: Key) -> bytes:
    return key if isinstance(key, bytes) else key.encode()
