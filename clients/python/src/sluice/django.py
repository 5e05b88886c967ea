"""A cache backend for Django, and a decorator.

In the settings:

    CACHES = {"default": {"BACKEND": "sluice.django.SluiceCache", "LOCATION": "redis://localhost:6379"}}
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import pickle
import threading
import time
from typing import Any, Callable, Iterable, Iterator, Mapping, TypeVar

from django.core.cache import caches
from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache

from .replies import Policy, Word, fetched
from .sync import Sluice

T = TypeVar("T")

TYPE = "sluice-ca"
FOREVER_SECONDS = 315_360_000.0
LEASE_SECONDS = 30.0
PAUSE_SECONDS = 0.005
SCAN_COUNT = 1000
NO_EXPIRY = -1  # a reply of PTTL

_clients: dict[Any, Sluice] = {}
_guard = threading.Lock()


class SluiceCache(BaseCache):  # type: ignore[misc]
    """Entries are cached values of the module (`CACHE.*`), pickled.

    `get_or_set` calls its function once for all processes, `add` and `incr` are atomic, and `clear` removes only entries of this
    cache, so locks and stocks on the same server stay.

    Args:
        server: `LOCATION`: the address of a server, as for `from_url` of redis-py or valkey-py.
        params: The settings. `OPTIONS` are the arguments of `from_url`, except `library`, which is `redis` (default) or `valkey`.
    """

    def __init__(self, server: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        options = dict(params.get("OPTIONS", {}))
        for name in "MAX_ENTRIES", "CULL_FREQUENCY":  # `cache-max-bytes` of the module bounds the cache
            options.pop(name, None)
        self._library = options.pop("library", "redis")
        self._server = server
        self._options = {**options, "decode_responses": False}

    @property
    def sluice(self) -> Sluice:
        """The client of the package, for locks and other commands on the same server. All threads of a process share it."""
        name = os.getpid(), self._library, self._server, repr(sorted(self._options.items()))
        with _guard:
            if name not in _clients:  # Django creates a backend for each thread
                _clients[name] = Sluice(importlib.import_module(self._library).from_url(self._server, **self._options))
            return _clients[name]

    def get(self, key: Any, default: Any = None, version: Any = None) -> Any:
        value = self.sluice.cache.read(self.make_and_validate_key(key, version=version))
        return default if value is None else pickle.loads(value)

    def set(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: Any = None) -> None:
        self.set_many({key: value}, timeout, version)

    def add(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: Any = None) -> bool:
        name = self.make_and_validate_key(key, version=version)
        policy = self._policy(timeout)
        if policy is None:
            return not self.has_key(key, version)
        while True:
            state, _, token = self.sluice.run(fetched, *policy.fetch(name, self.sluice.block_seconds))
            if state == "LEASE":
                with self._lease(name, token) as ends_at:
                    if self.sluice.run(bool, *policy.store(name, self._dump(value)), "TOKEN", token, until=ends_at):
                        return True
            elif state != "WAIT":
                return False

    def get_or_set(self, key: Any, default: Any, timeout: Any = DEFAULT_TIMEOUT, version: Any = None) -> Any:
        name = self.make_and_validate_key(key, version=version)
        policy = self._policy(timeout)
        if policy is None:
            return super().get_or_set(key, default, timeout, version)
        return pickle.loads(self.sluice.cache.get(name, lambda _: self._dump(default() if callable(default) else default), policy))

    def touch(self, key: Any, timeout: Any = DEFAULT_TIMEOUT, version: Any = None) -> bool:
        name = self.make_and_validate_key(key, version=version)
        policy = self._policy(timeout)
        if policy is None:
            return self.sluice.cache.delete(name)
        return self._change(name, lambda value: value, policy) is not None

    def incr(self, key: Any, delta: int = 1, version: Any = None) -> Any:
        name = self.make_and_validate_key(key, version=version)
        value = self._change(name, lambda old: self._dump(pickle.loads(old) + delta), None)
        if value is None:
            raise ValueError(f"Key '{key}' not found")
        return pickle.loads(value)

    def delete(self, key: Any, version: Any = None) -> bool:
        return self.sluice.cache.delete(self.make_and_validate_key(key, version=version))

    def has_key(self, key: Any, version: Any = None) -> bool:
        return self.sluice.run(bool, "EXISTS", self.make_and_validate_key(key, version=version))

    def get_many(self, keys: Iterable[Any], version: Any = None) -> dict[Any, Any]:
        keys = list(keys)
        replies = self.sluice.run_many([["CACHE.GET", self.make_and_validate_key(key, version=version)] for key in keys])
        return {key: pickle.loads(value) for key, value in zip(keys, replies) if value is not None}

    def set_many(self, data: Mapping[Any, Any], timeout: Any = DEFAULT_TIMEOUT, version: Any = None) -> list[Any]:
        policy = self._policy(timeout)
        if policy is None:
            self.delete_many(data, version)
            return []
        # Not repeated after a broken connection: another process can delete an entry meanwhile.
        self.sluice.run_many([
            policy.store(self.make_and_validate_key(key, version=version), self._dump(value)) for key, value in data.items()],
            repeat=False)
        return []

    def delete_many(self, keys: Iterable[Any], version: Any = None) -> None:
        self.sluice.run_many([["CACHE.DEL", self.make_and_validate_key(key, version=version)] for key in keys])

    def clear(self) -> bool:
        prefix = "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in self.key_prefix)
        pattern = f"{prefix}:*" if prefix else "*"
        for name in self.sluice.client.scan_iter(pattern, count=SCAN_COUNT, _type=TYPE):
            self.sluice.cache.delete(name)
        return True

    def close(self, **kwargs: Any) -> None:
        """Keeps the connections: the next request uses them."""

    def _policy(self, timeout: Any) -> Policy | None:
        """Returns how long an entry lasts, or None if it is over at once."""
        if timeout is DEFAULT_TIMEOUT:
            timeout = self.default_timeout
        if timeout is None:
            timeout = FOREVER_SECONDS
        return None if timeout <= 0 else Policy(
            fresh=min(timeout, FOREVER_SECONDS), jitter=0, lease=LEASE_SECONDS, backoff=0.0)

    def _dump(self, value: Any) -> bytes:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def _change(self, name: Any, change: Callable[[bytes], bytes], policy: Policy | None) -> bytes | None:
        """Changes a value in one step: only one caller at a time gets the lease, and other writes end it.

        Args:
            name: The key.
            change: Returns the new value.
            policy: How long the entry lasts. None: as long as before.

        Returns:
            The new value, or None if there is no entry.
        """
        words: list[Word] = ["CACHE.FETCH", name, "LEASE", round(LEASE_SECONDS * 1000), "EARLY", round(FOREVER_SECONDS * 1000)]
        while True:
            state, value, token = self.sluice.run(fetched, *words)
            if state == "LEASE" and value is None:
                self.sluice.run(bool, "CACHE.FAIL", name, token, until=time.monotonic() + LEASE_SECONDS)
            if value is None:
                return None
            if state == "LEASE":
                with self._lease(name, token) as ends_at:
                    new = change(value)
                    left = self.sluice.run(int, "PTTL", name)
                    fresh = FOREVER_SECONDS if left == NO_EXPIRY else left / 1000
                    if fresh > 0 and self.sluice.run(
                            bool, *(policy or Policy(fresh=fresh, jitter=0)).store(name, new), "TOKEN", token, until=ends_at):
                        return new
            time.sleep(PAUSE_SECONDS)

    @contextlib.contextmanager
    def _lease(self, name: Any, token: int) -> Iterator[float]:
        """Gives a lease back if the block raises. The block gets the end of the lease, by `time.monotonic`."""
        ends_at = time.monotonic() + LEASE_SECONDS
        try:
            yield ends_at
        except BaseException:
            self.sluice.cache._failed(name, token, ends_at)
            raise


def cached(timeout: Any = DEFAULT_TIMEOUT, *, key: str | None = None, cache: str = "default") -> Callable[[Callable[..., T]], Any]:
    """Returns a decorator that caches the results of a function. One caller at a time runs the function, across all processes.

    Args:
        timeout: The seconds for which a result is fresh. None: forever. The default is that of the cache.
        key: The name of the entries. The default is the name of the function. The arguments are appended; they need a `repr` that
            is the same in all processes.
        cache: The name of the cache in the settings.

    The decorated function has `invalidate(*args, **kwargs)`, which removes the result for these arguments, and `key(*args,
    **kwargs)`, which returns its key.
    """

    def decorate(function: Callable[..., T]) -> Any:
        name = key or f"{function.__module__}.{function.__qualname__}"

        def key_of(*args: Any, **kwargs: Any) -> str:
            if not args and not kwargs:
                return name
            words = repr((args, sorted(kwargs.items())))
            return f"{name}:{hashlib.sha256(words.encode()).hexdigest()[:32]}"

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> T:
            result: T = caches[cache].get_or_set(key_of(*args, **kwargs), lambda: function(*args, **kwargs), timeout)
            return result

        def invalidate(*args: Any, **kwargs: Any) -> bool:
            return bool(caches[cache].delete(key_of(*args, **kwargs)))

        setattr(wrapper, "key", key_of)
        setattr(wrapper, "invalidate", invalidate)
        return wrapper

    return decorate
