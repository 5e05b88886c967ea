# `clients/python/generate` writes this file from the folder aio.
"""Locks and semaphores. All of them share one connection for commands and one subscription for messages."""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import dataclass
from typing import Any, Callable, Sequence, TypedDict

from ..errors import CommandError, Deadlock, LockLost, LockTimeout, typed
from ..library import BLOCK_SECONDS, Endpoint, Library, code_of
from ..replies import Key, LockInfo, Word, fields, lock_info, ms, same, text
from ..tracing import span
from .runtime import Event, Mailbox, call_soon, current, endpoint_of, sleep, spawn
from .session import HEARTBEAT_SECONDS, PAUSE_SECONDS, REDIRECTED, Session

LEASE_SECONDS = 10.0
WAIT_SECONDS = 10.0

GRACE_SECONDS = 0.5
REPEAT_SECONDS = 30.0
CONNECTION_ATTEMPTS = 3
HEARTBEATS_PER_LEASE = 8
RELEASE_ATTEMPTS = 5
POLL_SECONDS = 0.02
SHORTEST_PAUSE_SECONDS = 0.001


@dataclass(frozen=True)
class Target:
    """What a lock locks: the keys, and the words of its commands."""

    family: str
    keys: tuple[Key, ...]
    names: tuple[Word, ...]
    options: tuple[Word, ...] = ()

    def acquire(self, owner: str, options: Sequence[Word]) -> tuple[Word, ...]:
        return (self._command("ACQUIRE"), *self.names, owner, *self.options, *options)

    def release(self, owner: str) -> tuple[Word, ...]:
        return (self._command("RELEASE"), *self._key_words, owner, "ALL")

    def release_one(self, key: Key, owner: str) -> tuple[Word, ...]:
        """Returns the words that end the hold of one of the keys."""
        return (f"{self.family}.RELEASE", key, owner, "ALL")

    def undo(self, owner: str) -> tuple[Word, ...]:
        """Returns the words that undo one acquisition. Other holds of the owner stay."""
        return (self._command("RELEASE"), *self._key_words, owner, *(self.options[-2:] if self.family == "SEM" else ()))

    def cancel(self, request: str) -> tuple[Word, ...]:
        return (f"{self.family}.CANCEL", self.keys[0], request)

    def renew(self, key: Key, owner: str, lease_ms: int) -> tuple[Word, ...]:
        return (f"{self.family}.RENEW", key, owner, "PX", lease_ms)

    def look(self, key: Key, owner: str) -> tuple[Word, ...]:
        """Returns a command that only reads, for `fence_in`."""
        return ("LOCK.HELD", key, owner) if self.family == "LOCK" else ("SEM.INFO", key)

    def fence_in(self, reply: Any, owner: str) -> Any:
        """Returns the fence of the owner, or None."""
        if self.family == "LOCK":
            return reply
        holders = [fields(holder) or {} for holder in (fields(reply) or {}).get("holders", [])]
        return next((holder["fence"] for holder in holders if text(holder["owner"]) == owner), None)

    def fences(self, reply: Any) -> tuple[int, ...]:
        return tuple(reply) if self._is_several else (reply,)

    def replies(self, reply: Any) -> tuple[Any, ...]:
        """Returns the reply for each key."""
        return tuple(reply) if self._is_several else (reply,)

    @property
    def _key_words(self) -> tuple[Word, ...]:
        return (len(self.keys), *self.keys) if self._is_several else self.keys

    @property
    def _is_several(self) -> bool:
        return self.names[0] != self.keys[0] or len(self.names) > 1

    def _command(self, verb: str) -> str:
        return f"{self.family}.{'M' if self._is_several else ''}{verb}"


class LockOptions(TypedDict, total=False):
    """The options of locks and semaphores.

    Attributes:
        wait: The longest wait in seconds, by default 10. 0: no wait. None: no limit.
        lease: The seconds of the lease, by default 10. The server renews it while the connection is open. If the process crashes,
            the lock is free after at most this time.
        max_hold: The longest hold in seconds, for a process that hangs. The default is no limit.
        linger: False: the lock ends with its connection. So it is free at once after a crash, and lost after a short failure of the
            network. The default is true.
        owner: The owner's name. The default is a random name for each acquisition. If a task holds several locks, the server
            detects deadlocks only if they have the same owner. Do not lock one key twice with the same owner.
        on_lost: A callback, called once if the lock is lost. The sync client calls it in a thread of its own.
        watchdog: False: the server does not renew the lease. Call `renew` before the lease ends; otherwise the lock is lost. So a
            process that hangs loses its lock, and a broken connection does not matter. `max_hold` and `linger` have no effect. The
            default is true.
    """

    wait: float | None
    lease: float
    max_hold: float | None
    linger: bool
    owner: str | None
    on_lost: Callable[[], object] | None
    watchdog: bool


class Lock:
    """A distributed lock, a semaphore, or several of them at once. Create it with a method of `Sluice`.

    Use it as a context manager. The block gets the lock itself. One object is for one task or thread, which can acquire the lock again
    while it holds it: the fence stays, and the last release ends the hold. Another task or thread needs another object.

    The server renews the lease while the connection is open. If the connection breaks, the lock survives: the client opens another
    one and binds the lock to it. If that does not succeed within half of the lease, the lock counts as lost. With `watchdog=False`,
    the lock counts as lost when its lease ends.

    Attributes:
        keys: The names of the keys.
        owner: The owner's name. Empty before the first acquisition, unless it was named.
        fences: The fencing token of each key, in the order of `keys`. Empty while the lock is not held.
        lost: An event that is set when the lock is lost.
    """

    def __init__(self, locks: "Locks", target: Target, *, wait: float | None = WAIT_SECONDS, lease: float = LEASE_SECONDS,
                 max_hold: float | None = None, linger: bool = True, owner: str | None = None,
                 on_lost: Callable[[], object] | None = None, watchdog: bool = True) -> None:
        self.keys = target.keys
        self.owner = owner or ""
        self.fences: tuple[int, ...] = ()
        self.lost = Event()
        self._locks = locks
        self._target = target
        self._wait = wait
        self._lease = lease
        self._max_hold = max_hold
        self._linger = linger or not watchdog
        self._watchdog = watchdog
        self._named_owner = owner
        self._on_lost = on_lost
        self._id = ""
        self._session: LockSession | None = None
        self._last_lost = 0
        self._bound_at: float | None = None  # None: bound to the connection, and valid as long as the server answers
        self._is_doubtful = False  # whether a message since the last request says that it is lost
        self._granted_at = 0.0
        self._acquired: tuple[int, ...] = ()  # the fences of the acquisition: an upgrade changes the others
        self._holder: Any = None
        self._count = 0
        self._ends_at = 0.0  # without a watchdog: the end of the lease

    @property
    def fence(self) -> int:
        """The fencing token: send it with each protected write. 0 while the lock is not held."""
        return self.fences[0] if self.fences else 0

    def __enter__(self) -> "Lock":
        if not self.acquire():
            raise LockTimeout(*self.keys)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.release()
            return
        with contextlib.suppress(LockLost, *self._locks.library.broken, CommandError):
            self.release()

    def acquire(self) -> bool:
        """Acquires the lock. If this task or thread holds it already, the server is not asked, and one more release is needed.

        Returns:
            False if another owner held it for the whole waiting time.

        Raises:
            Deadlock: The wait would never end.
            LockLost: This task or thread holds the lock already, and it is lost.
            TooManyWaiting: Too many clients wait on this server.
            CommandError: Another error reply.
            ConnectionError: The server did not answer in the waiting time. The exception is that of the client library.
        """
        if self._id:
            if not self.fences or self._holder != current():
                raise RuntimeError("another task or thread has acquired the lock with this object: create another object")
            if self.lost.is_set():
                raise LockLost(*self.keys)
            self._count += 1
            return True
        self._id = uuid.uuid4().hex
        self._holder = current()
        self.owner = self._named_owner or self._id
        self.lost = Event()
        self._last_lost = 0
        self._bound_at = None
        try:
            with span(str(self._target.acquire("", ())[0])):
                fences = self._request()
        except BaseException:
            self._give_up()
            raise
        if not fences:
            self._give_up()
            return False
        self.fences = self._acquired = fences
        self._granted_at = time.monotonic()
        self._count = 1
        self._report()
        self._wake()
        if not self._watchdog and not self._ends_at:
            # A message came, or a repetition: when the lease began is not known. Its end is at least that of a renewal.
            with contextlib.suppress(LockLost):
                try:
                    self.renew()
                except BaseException:
                    self._release()
                    raise
        return True

    def release(self) -> None:
        """Releases the lock. If this task or thread acquired it several times, the last release ends the hold.

        Raises:
            LockLost: The lock was lost before.
            ConnectionError: The server does not answer. The lock ends with its lease.
        """
        if not self.fences:
            raise RuntimeError("the lock is not acquired")
        if self._count > 1:
            self._count -= 1
            if self.lost.is_set():
                raise LockLost(*self.keys)
            return
        self._release()

    def check(self) -> None:
        """Asks the server. Call it before a protected step that cannot compare fences.

        Raises:
            LockLost: The lock is lost.
        """
        self._require()
        for key, fence in zip(self.keys, self.fences):
            if self.lost.is_set() or self._confirm(key) != fence:
                self._lose()
                raise LockLost(*self.keys)

    def renew(self, lease: float | None = None) -> None:
        """Sets the end of the lease. Only a lock with `watchdog=False` needs it: call it at a third of the lease.

        Args:
            lease: The seconds from now to the end of the lease. The default is the option `lease`.

        Raises:
            LockLost: The lock is lost.
            ConnectionError: The server does not answer. The lease ends when it would have ended.
        """
        self._require()
        seconds = self._lease if lease is None else lease
        asked = time.monotonic()
        for key, fence in zip(self.keys, self.fences):
            if self.lost.is_set() or self._persist(self._target.renew(key, self.owner, ms(seconds))) != fence:
                self._lose()
                raise LockLost(*self.keys)
        self._ends_at = asked + seconds
        self._wake()

    def upgrade(self, wait: float | None = WAIT_SECONDS) -> bool:
        """Makes a shared lock exclusive, before all requests that wait for it. `fence` is a new one then.

        A wait needs a connection of the client's pool.

        Args:
            wait: The longest wait in seconds for the other holders. 0: no wait. None: no limit.

        Returns:
            False if other holders share the lock after the whole waiting time. Then it stays shared.

        Raises:
            Deadlock: Another holder waits for an upgrade: each would wait for the other.
            LockLost: The lock is lost.
            TypeError: This is a semaphore, or a lock of several keys.
            ConnectionError: The server does not answer. The exception is that of the client library.
        """
        self._require_one_key()
        if self.lost.is_set():
            raise LockLost(*self.keys)
        deadline = None if wait is None else time.monotonic() + wait
        try:
            while True:
                left = BLOCK_SECONDS if deadline is None else deadline - time.monotonic()
                fence = self._ask_upgrade(min(left, self._locks.library.block))
                if fence is not None:
                    self.fences = (fence,)
                    self._report()
                    return True
                self.check()
                if left <= 0:
                    return False
                if not self._locks.library.block:
                    sleep(min(left, POLL_SECONDS))
        except (LockLost, Deadlock):
            raise
        except BaseException:
            self._learn_fence()  # the server can have upgraded the lock
            raise

    def downgrade(self) -> None:
        """Makes an exclusive lock shared, at once. The fence stays, and shared requests that wait are served.

        Raises:
            LockLost: The lock is lost.
            TypeError: This is a semaphore, or a lock of several keys.
            ConnectionError: The server does not answer. The exception is that of the client library.
        """
        self._require_one_key()
        if self._persist(("LOCK.DOWNGRADE", self.keys[0], self.owner)) != self.fence:
            self._lose()
            raise LockLost(*self.keys)

    def info(self, key: Key | None = None) -> LockInfo | None:
        """Returns the holders and the waiting requests, of all clients. The lock need not be acquired.

        Args:
            key: One of the keys. The default is the first one.

        Returns:
            None if no client holds the lock.
        """
        return lock_info(self._locks.run(f"{self._target.family}.INFO", self.keys[0] if key is None else key))

    def _wake(self) -> None:
        """Lets the session look at the end of the lease. It may sleep longer than that."""
        if not self._watchdog and self._session is not None:
            self._session.wake()

    def _require(self) -> None:
        if not self.fences or self._session is None:
            raise RuntimeError("the lock is not acquired")

    def _require_one_key(self) -> None:
        if self._target.family != "LOCK" or len(self.keys) != 1:
            raise TypeError("only a lock of one key can be shared or exclusive")
        self._require()

    def _ask_upgrade(self, block: float) -> int | None:
        words: tuple[Word, ...] = ("LOCK.UPGRADE", self.keys[0], self.owner, "PX", ms(self._lease))
        fence: int | None
        if block > 0:  # not the connection of all locks
            fence = self._locks.run(*words, "BLOCK", ms(block))
        else:
            fence = self._persist(words)
        return fence

    def _learn_fence(self) -> None:
        with contextlib.suppress(*self._locks.library.broken, CommandError):
            fence = self._send("LOCK.HELD", self.keys[0], self.owner)
            if fence is not None:
                self.fences = (fence,)

    def _confirm(self, key: Key) -> Any:
        """Returns the fence that the owner has on the server, or None."""
        if self._target.family == "LOCK" or not self._watchdog:
            reply = self._persist(self._target.look(key, self.owner))
            return self._target.fence_in(reply, self.owner)
        # A semaphore has no command that only reads one owner.
        lease = self._lease
        if self._max_hold is not None:
            lease = min(lease, self._granted_at + self._max_hold - time.monotonic())
        return self._persist(self._target.renew(key, self.owner, ms(lease)))

    def _persist(self, words: tuple[Word, ...]) -> Any:
        """Sends an idempotent command, several times if the connection breaks."""
        for _ in range(1, CONNECTION_ATTEMPTS):
            with contextlib.suppress(*self._locks.library.broken):
                return self._send(*words)
            sleep(PAUSE_SECONDS)
        return self._send(*words)

    # The words

    def _words(self, block: float | None) -> tuple[Word, ...]:
        words: list[Word] = ["PX", ms(self._lease)]
        if self._watchdog:
            words += ["WATCHDOG"]
            if self._max_hold is not None:
                words += ["MAXHOLD", ms(self._max_hold)]
            if self._linger:
                words += ["LINGER"]
        if block is not None:
            words += ["BLOCK", ms(block) if block else 0]
        words += ["ID", self._id, "NOTIFY", self._locks.channel]
        return self._target.acquire(self.owner, words)

    # Acquisition

    def _request(self) -> tuple[int, ...]:
        """Returns the fences, none after a timeout."""
        deadline = None if self._wait is None else time.monotonic() + self._wait
        is_first, failures = True, 0
        self._ends_at = 0.0
        while True:
            left = 0.0 if deadline is None else max(deadline - time.monotonic(), 0.001)
            is_over = deadline is not None and left <= 0.001
            try:
                session = self._locks.session_of(self)
                mailbox = session.expect(self._id)
                try:
                    asked = time.monotonic()
                    reply = session.call(*self._words(None if self._wait == 0 else left))
                    if reply is not None:
                        if is_first and not failures:
                            self._ends_at = asked + self._lease
                        return self._target.fences(reply)
                    if self._wait == 0 or (is_over and not is_first):
                        return ()
                    is_first = False
                    what = mailbox.get(min(left + GRACE_SECONDS, REPEAT_SECONDS) if deadline else REPEAT_SECONDS)
                finally:
                    session.expect_no_more(self._id)
            except self._locks.library.error_reply as error:
                if is_over or code_of(error) not in REDIRECTED:
                    raise typed(error) from error
                self._locks.look_again(self.keys[0])
                sleep(PAUSE_SECONDS)
                continue
            except self._locks.library.broken:
                failures += 1
                if is_over and failures >= CONNECTION_ATTEMPTS:
                    raise
                sleep(PAUSE_SECONDS)
                continue
            if what is None or what[0] == "moved":
                if what is not None:
                    self._locks.look_again(self.keys[0])
                    sleep(PAUSE_SECONDS if is_over else 0)
            elif what[0] == "granted" and len(self.keys) == 1:
                return (what[1],)
            elif what[0] == "deadlock":
                raise Deadlock("DEADLOCK waiting for this lock would never end")
            elif what[0] == "timeout":
                return ()

    def _give_up(self) -> None:
        """Withdraws the request, whether it waits or was granted meanwhile. If the connection breaks, tries again in the background.

        A broken connection ends the wait, but the request can have been granted.
        """
        session, words = self._session, (self._target.cancel(self._id), self._target.release(self.owner))
        self._forget()
        if session is None or session.withdraw(words):
            return
        if self._named_owner is not None:
            return  # the owner can acquire the lock again meanwhile: this hold ends with its lease

        def try_again() -> None:
            for _ in range(1, RELEASE_ATTEMPTS):
                sleep(PAUSE_SECONDS)
                if session.withdraw(words):
                    break

        spawn(try_again)

    def _forget(self) -> None:
        if self._session is not None:
            self._session.held.pop(self._id, None)
        self.fences = ()
        self._id = ""

    # Release

    def _release(self) -> None:
        request, is_lost = self._id, self.lost.is_set()
        session, keys = self._session, self.keys
        try:
            if session is not None:
                session.held.pop(request, None)
            if is_lost:  # part of several keys can still be held
                with contextlib.suppress(*self._locks.library.broken):
                    self._release_again()
                raise LockLost(*keys)
            is_lost = not self._send_release()
        finally:
            self._forget()
        if is_lost:
            raise LockLost(*keys)

    def _send_release(self) -> bool:
        """Returns false if the lock was lost before."""
        with contextlib.suppress(*self._locks.library.broken):
            return None not in self._target.replies(self._send(*self._target.release(self.owner)))
        for _ in range(2, RELEASE_ATTEMPTS):
            sleep(PAUSE_SECONDS)
            with contextlib.suppress(*self._locks.library.broken):
                return self._release_again()
        sleep(PAUSE_SECONDS)
        return self._release_again()

    def _release_again(self) -> bool:
        """Ends the holds that the first command did not end. A later hold of the same owner, with another fence, stays."""
        if self._named_owner is None:  # the owner has only this hold
            self._send(*self._target.release(self.owner))
            return self._linger
        for key, fence in zip(self.keys, self.fences):
            if self._target.fence_in(self._send(*self._target.look(key, self.owner)), self.owner) == fence:
                self._send(*self._target.release_one(key, self.owner))
        return self._linger  # without it, the lock ended with its connection

    def _send(self, *words: Word) -> Any:
        session = self._session
        assert session is not None
        with span(str(words[0])):
            try:
                return session.call(*words)
            except self._locks.library.error_reply as error:
                if code_of(error) not in REDIRECTED:
                    raise typed(error) from error
        self._locks.look_again(self.keys[0])
        try:
            return (self._locks.session_of(self)).call(*words)
        except self._locks.library.error_reply as error:
            raise typed(error) from error

    # Loss

    def _hear_lost(self, fence: int) -> None:
        # The message can be read before the reply that has the fence.
        self._last_lost = max(self._last_lost, fence)
        self._report()

    def _report(self) -> None:
        if self.fences and self._last_lost >= min(self.fences):
            self._lose()

    def _lose(self) -> None:
        if self.fences and not self.lost.is_set():
            self.lost.set()
            if self._on_lost is not None:
                call_soon(self._on_lost)


class LockSession(Session):
    """The session of all locks of one server.

    Attributes:
        held: The locks that are held or being acquired, by their ids.
    """

    def __init__(self, locks: "Locks", endpoint: Endpoint) -> None:
        super().__init__(locks.library, endpoint, locks.channel)
        self.held: dict[str, Lock] = {}
        self._locks = locks
        self._unused_id = uuid.uuid4().hex
        self._waiting: dict[str, Mailbox] = {}

    def expect(self, request: str) -> Mailbox:
        """Returns the mailbox for the messages of a request."""
        mailbox = self._waiting[request] = Mailbox()
        return mailbox

    def expect_no_more(self, request: str) -> None:
        self._waiting.pop(request, None)

    def withdraw(self, commands: Sequence[Sequence[Word]]) -> bool:
        """Sends the commands that withdraw a request. Returns false if another attempt is needed."""
        with contextlib.suppress(*self._library.broken):
            self.call_many(commands)
            return True
        return self._is_closed

    def _greet(self) -> None:
        # The holds belong to the closed connection, and messages can be lost: bind the holds to this connection.
        for lock in list(self.held.values()):
            if lock.fences and lock._watchdog and not lock.lost.is_set():
                self._bind(lock)
        # The queue has no requests of a closed connection: repeat them.
        for mailbox in list(self._waiting.values()):
            mailbox.put(("moved", 0))

    def _bind(self, lock: Lock) -> None:
        try:
            reply = self._exchange(*lock._words(None))
        except self._library.error_reply as error:
            if code_of(error) in REDIRECTED:
                self._leave(lock)
            else:
                lock._lose()
            return
        if reply is not None and lock._target.fences(reply) == lock._acquired:
            lock._bound_at = None
            return
        lock._lose()
        if reply is not None:  # another hold: the old one is lost
            self._exchange(*lock._target.undo(lock.owner))

    def _leave(self, lock: Lock) -> None:
        """The lock is lost, or its hash slot is on another server now: look for the lock there."""
        lock._is_doubtful = True
        if lock._bound_at is None:
            lock._bound_at = self.contact
            spawn(Follower(self._locks, self, lock).run)

    def _hear(self, message: Any) -> None:
        what, _, rest = text(message[2]).partition(" ")
        fence, _, request = rest.partition(" ")
        if not fence.isdigit():
            return
        if what == "lost":
            lock = self.held.get(request)
            if lock is not None and self._library.is_cluster and lock.fences:
                self._leave(lock)
            elif lock is not None:
                lock._hear_lost(int(fence))
        else:
            mailbox = self._waiting.get(request)
            if mailbox is not None:
                mailbox.put((what, int(fence)))

    def _heartbeat(self) -> tuple[Word, ...] | None:
        for lock in list(self.held.values()):
            return lock._target.cancel(self._unused_id)  # a replica refuses it, unlike PING
        return ("PING",) if self._waiting else None

    def _pause(self) -> float:
        now = time.monotonic()
        ends = [lock._ends_at - now for lock in list(self.held.values()) if not lock._watchdog and lock.fences and lock._ends_at]
        return max(min([self.interval, *ends]), SHORTEST_PAUSE_SECONDS)

    def _tick(self) -> None:
        if not self.held:
            self.interval = HEARTBEAT_SECONDS
        now = time.monotonic()
        for lock in list(self.held.values()):
            if not lock._watchdog:
                if lock.fences and lock._ends_at and now >= lock._ends_at:
                    lock._lose()
                continue
            since = self.contact if lock._bound_at is None else lock._bound_at
            if now - since > lock._lease / 2:
                lock._lose()


class Follower:
    """Looks for a lock whose hash slot has moved, until half of its lease is over."""

    def __init__(self, locks: "Locks", old: LockSession, lock: Lock) -> None:
        self._locks = locks
        self._old = old
        self._lock = lock
        self._request = lock._id
        self._owner = lock.owner
        self._words = lock._words(None)
        self._acquired = lock._acquired

    def run(self) -> None:
        lock = self._lock
        while lock._id == self._request and not lock.lost.is_set():
            lock._is_doubtful = False
            self._locks.look_again(lock.keys[0])
            try:
                session = self._locks.session_of(lock)
                reply = session.call(*self._words)
            except (*self._locks.library.broken, self._locks.library.error_reply):
                sleep(PAUSE_SECONDS)
                continue
            is_held = lock._id == self._request  # otherwise released meanwhile, and perhaps acquired again
            is_same = reply is not None and lock._target.fences(reply) == self._acquired
            if is_same and not is_held:
                return
            if is_same:
                bound_at, lock._bound_at = lock._bound_at, None
                if not lock._is_doubtful:  # after the assignment: a message from now on begins another search
                    return
                # The new server published a loss, perhaps before this process read the reply.
                lock._bound_at = bound_at
                continue
            if reply is not None:
                with contextlib.suppress(*self._locks.library.broken, self._locks.library.error_reply):
                    session.call(*lock._target.undo(self._owner))
            if is_held:
                lock._lose()


class Locks:
    """The sessions of all locks: one, or in a cluster one for each node."""

    def __init__(self, client: Any, library: Library, run: Callable[..., Any]) -> None:
        self.library = library
        self._run = run
        self.channel = f"sluice:{uuid.uuid4().hex}"
        self._client = client
        self._is_closed = False
        self._sessions: dict[str, LockSession] = {}

    def session_of(self, lock: Lock) -> LockSession:
        """Returns the session of the server that has the key, and makes it that of the lock."""
        if self._is_closed:
            raise RuntimeError("the Sluice object is closed")
        endpoint = endpoint_of(self._client, self.library, lock.keys[0])
        session = self._sessions.get(endpoint.name)
        if session is None:
            session = self._sessions.setdefault(endpoint.name, LockSession(self, endpoint))
        if lock._session is not None:
            lock._session.held.pop(lock._id, None)
        lock._session = session
        session.held[lock._id] = lock
        session.interval = min(session.interval, lock._lease / HEARTBEATS_PER_LEASE)
        return session

    def run(self, *words: Word) -> Any:
        """Sends an idempotent command with the client, not over the connection of all locks."""
        return self._run(same, *words)

    def look_again(self, key: Key) -> None:
        """In a cluster, lets the client follow a redirection and so learn where the key is."""
        if self.library.is_cluster:
            with contextlib.suppress(self.library.failures, OSError):
                self._client.execute_command("EXISTS", key)

    def close(self) -> None:
        """Releases all locks and closes all sessions."""
        for session in list(self._sessions.values()):
            for lock in list(session.held.values()):
                lock._count = 1
                with contextlib.suppress(LockLost, CommandError, RuntimeError, *self.library.broken):
                    lock.release()
        self._is_closed = True
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()
