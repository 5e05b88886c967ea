"""A near cache: a bounded map of cached entries in the process, which the server invalidates by `CLIENT TRACKING`.

`python near.py [redis://...]` tries it on a server with Sluice. Copy what you need.
"""

import sys
import threading
import time

import redis

from shop import LoaderFailed, cached

CONNECTION_ERRORS = (redis.ConnectionError, redis.TimeoutError, OSError)


def text(word):
    return word.decode() if isinstance(word, bytes) else word


def settle(client, keys, replies, load, fresh_ms=60_000):
    """A dictionary of the values for these replies of CACHE.FETCH. `load(keys)` returns a dictionary; it is called once for all
    keys with a lease."""
    values, leases, waiting = {}, {}, []
    for key, (state, value, n) in zip(keys, replies):
        state = text(state)
        if state == "LEASE":
            leases[key] = n
        elif state in ("WAIT", "MISS"):
            waiting.append(key)  # another caller loads it, or a replica replied
        elif state == "DOWN" and value is None:
            values[key] = LoaderFailed(key)
        else:
            values[key] = value
    if leases:
        try:
            loaded = load(list(leases))
        except Exception:
            with client.pipeline(transaction=False) as pipe:
                for key, token in leases.items():
                    pipe.execute_command("CACHE.FAIL", key, token, "BACKOFF", 1000)
                pipe.execute()
            raise
        with client.pipeline(transaction=False) as pipe:
            for key, token in leases.items():
                values[key] = loaded.get(key)
                if values[key] is None:
                    pipe.execute_command("CACHE.SETNULL", key, "PX", 5000, "TOKEN", token)
                else:
                    pipe.execute_command("CACHE.SET", key, values[key], "PX", fresh_ms, "JITTER", 10, "TOKEN", token)
            pipe.execute()
    # The second round blocks. No lease waits for it.
    for key in waiting:
        values[key] = cached(client, key, lambda key: load([key]).get(key), fresh_ms)
    for value in values.values():
        if isinstance(value, LoaderFailed):
            raise value
    return values


def get_many(client, keys, load, fresh_ms=60_000):
    """A dictionary of the values of many keys, in one round trip if all are cached; `load(keys)` returns a dictionary."""
    keys = list(dict.fromkeys(keys))
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.execute_command("CACHE.FETCH", key, "LEASE", 3000)
        replies = pipe.execute()
    return settle(client, keys, replies, load, fresh_ms)


class NearCache:
    """Entries of `CACHE.*` in this process. Threads may share it. A forked process needs its own.

    A hit costs no round trip: it only looks whether the server has sent an invalidation. After a lost connection the map is
    empty. If nothing has come from the server for `check_ms`, a hit costs a `PING`, so that a silent connection is noticed.
    """

    def __init__(self, client, size=10_000, check_ms=1000):
        self.client = client
        self.size = size
        self.hits = 0
        self._check = check_ms / 1000
        self._lock = threading.Lock()
        self._entries = {}  # the name of a key: its value, and until when it is fresh
        self._told = set()  # the names that the server has invalidated since the last request
        self._connection = None
        self._heard = 0.0

    def get(self, key, load, fresh_ms=60_000):
        """The value, or None if there is none; `load(key)` is called by one caller at a time."""
        return self.get_many([key], lambda keys: {key: load(key)}, fresh_ms)[key]

    def get_many(self, keys, load, fresh_ms=60_000):
        """A dictionary of the values of many keys; `load(keys)` returns a dictionary."""
        keys = list(dict.fromkeys(keys))
        values, missing = {}, []
        with self._lock:
            self._listen()
            now = time.monotonic()
            for key in keys:
                value, until = self._entries.get(name_of(key), (None, 0))
                if now < until:
                    values[key] = value
                    self.hits += 1
                else:
                    missing.append(key)
            replies = self._fetch(missing) if missing else []
        values.update(settle(self.client, missing, replies, load, fresh_ms))
        return values

    def close(self):
        with self._lock:
            self._forget()

    def _connect(self):
        if self._connection is None:
            pool = self.client.connection_pool
            connection = pool.connection_class(**{**pool.connection_kwargs, "protocol": 3})
            connection.connect()
            connection._parser.set_invalidation_push_handler(self._invalidate)
            connection.send_command("CLIENT", "TRACKING", "ON")
            connection.read_response()
            self._connection = connection
        return self._connection

    def _forget(self):
        """Without a connection, nobody would say what has changed."""
        self._entries.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _invalidate(self, push):
        if push[1] is None:  # FLUSHALL, or the server tracks too many keys
            self._told.update(self._entries)
            self._entries.clear()
            return
        for key in push[1]:
            self._told.add(name_of(key))
            self._entries.pop(name_of(key), None)

    def _listen(self):
        """Reads the invalidations that have arrived."""
        connection = self._connection
        if connection is None:
            return
        try:
            while connection.can_read(timeout=0):
                connection.read_response(push_request=True)
                self._heard = time.monotonic()
            if time.monotonic() - self._heard > self._check:
                connection.send_command("PING")
                connection.read_response()
                self._heard = time.monotonic()
        except CONNECTION_ERRORS:
            self._forget()

    def _fetch(self, keys):
        for is_last in (False, True):
            try:
                return self._fetch_once(keys)
            except CONNECTION_ERRORS:
                self._forget()
                if is_last:
                    raise

    def _fetch_once(self, keys):
        connection = self._connect()
        self._told.clear()
        asked = time.monotonic()
        commands = [("CACHE.FETCH", key, "LEASE", 3000) for key in keys]
        connection.send_packed_command(connection.pack_commands(commands))
        replies = []
        for key in keys:
            try:
                reply = connection.read_response()
            except redis.ResponseError as error:
                replies.append(error)  # the other replies follow
                continue
            replies.append(reply)
            state, value, n = reply
            # The other states change without an invalidation. One that came before the reply may be of this value.
            if text(state) in ("HIT", "NULL") and name_of(key) not in self._told:
                while len(self._entries) >= self.size:
                    del self._entries[next(iter(self._entries))]
                self._entries[name_of(key)] = value, asked + n / 1000
        self._heard = time.monotonic()
        for reply in replies:
            if isinstance(reply, redis.ResponseError):
                raise reply
        return replies


def name_of(key):
    return key if isinstance(key, bytes) else str(key).encode()


def main():
    url = sys.argv[1] if len(sys.argv) > 1 else "redis://localhost"
    client = redis.Redis.from_url(url, decode_responses=True)
    near = NearCache(client)
    database = {"user:ann": "Ann", "user:bob": "Bob"}
    load = lambda keys: {key: database.get(key) for key in keys}
    print("loaded:", near.get_many(["user:ann", "user:bob", "user:eve"], load))
    near.get_many(["user:ann", "user:bob", "user:eve"], load)  # fills the map
    start = time.perf_counter()
    for _ in range(10_000):
        near.get("user:ann", database.get)
    print(f"hits a second: {10_000 / (time.perf_counter() - start):.0f}")
    database["user:ann"] = "Anne"
    client.execute_command("CACHE.DEL", "user:ann")
    time.sleep(0.1)
    print("invalidated:", near.get("user:ann", database.get))


if __name__ == "__main__":
    main()
