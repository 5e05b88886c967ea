"""Locks for redis-py: one that the server renews (`lock`), and one that a thread renews (`renewed_lock`).

Both are context managers that raise LockTimeout if the lock is not free in time, and LockLost at their end, or at
`check()`, if it was lost in between. Copy this file; docs/clients.md says what to watch.
"""

import contextlib
import threading
import time
import uuid

import redis


class LockTimeout(Exception):
    """Another owner held the lock for the whole waiting time."""


class LockLost(Exception):
    """Another owner may hold the lock. Stop the protected work."""


@contextlib.contextmanager
def patient(client, key, wait_ms):
    """A connection for one caller, with a timeout longer than BLOCK. It is closed at the end."""
    node = node_of(client, key) if isinstance(client, redis.RedisCluster) else client
    with node.client() as own:
        connection = own.connection
        usual = connection.socket_timeout  # 5 seconds in redis-py 8
        connection.disconnect()  # the time-out is that of the next socket
        connection.socket_timeout = wait_ms / 1000 + 5 if wait_ms else None  # 0 waits for ever
        try:
            yield own
        finally:
            connection.disconnect()  # in each case, the server releases the hold with its connection
            connection.socket_timeout = usual


@contextlib.contextmanager
def lock(client, key, lease_ms=30_000, wait_ms=10_000):
    """Holds `key` while the block runs and its connection is open. The server renews the lease."""
    owner = uuid.uuid4().hex  # of this hold, not of this process
    with patient(client, key, wait_ms) as own:
        fence = own.execute_command(
            "LOCK.ACQUIRE", key, owner, "PX", lease_ms, "BLOCK", wait_ms, "WATCHDOG", "ID", owner)
        if fence is None:
            raise LockTimeout(key)
        yield Held(own, key, owner, fence)
        if own.execute_command("LOCK.RELEASE", key, owner, "ALL") is None:
            raise LockLost(key)


class Held:
    """A lock that is held as far as this client knows. Send `fence` with each protected write."""

    def __init__(self, client, key, owner, fence):
        self.client, self.key, self.owner, self.fence = client, key, owner, fence

    def check(self):
        """Raises LockLost if the lock is lost. Call it before each protected step."""
        if self.client.execute_command("LOCK.HELD", self.key, self.owner) != self.fence:
            raise LockLost(self.key)


@contextlib.contextmanager
def renewed_lock(client, key, lease_ms=30_000, wait_ms=10_000):
    """Holds `key` while the block runs and a thread renews it, on any connection."""
    owner = uuid.uuid4().hex
    with patient(client, key, wait_ms) as own:
        fence = own.execute_command("LOCK.ACQUIRE", key, owner, "PX", lease_ms, "BLOCK", wait_ms, "ID", owner)
    if fence is None:
        raise LockTimeout(key)
    held = Renewed(client, key, owner, fence, lease_ms)
    try:
        held.start()
        yield held
    finally:
        held.stop()
        released = client.execute_command("LOCK.RELEASE", key, owner, "ALL")
    if released is None:
        raise LockLost(key)


class Renewed(Held):
    """A lock that a thread renews at a third of its lease."""

    def __init__(self, client, key, owner, fence, lease_ms):
        super().__init__(client, key, owner, fence)
        self.lease_ms = lease_ms
        self.lost = False
        self.valid_until = 0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.keep, daemon=True)

    def check(self):
        """Raises LockLost if the lock is lost, or if no renewal succeeded in time."""
        if self.lost or time.monotonic() >= self.valid_until:
            raise LockLost(self.key)

    def start(self):
        self.renew()  # the lease began when the request was served; after this, its end is known
        self.thread.start()

    def stop(self):
        self.done.set()
        if self.thread.ident:
            self.thread.join()

    def keep(self):
        while not self.lost and not self.done.wait(self.lease_ms / 3000):
            with contextlib.suppress(redis.RedisError):
                self.renew()  # after a failure, the next attempt follows a third of the lease later

    def renew(self):
        asked = time.monotonic()  # before the request, so the local end is never later than the server's
        fence = self.client.execute_command("LOCK.RENEW", self.key, self.owner, "PX", self.lease_ms)
        self.lost = fence != self.fence
        self.valid_until = asked + self.lease_ms / 1000


def node_of(cluster, key):
    """Returns the client of the node that serves `key`: a RedisCluster has many connections, and a hold needs one."""
    return cluster.get_redis_connection(cluster.get_node_from_key(key))
