# `clients/python/generate` writes this file from the folder aio.
"""The client: all families over one client of redis-py or valkey-py."""

from __future__ import annotations

import contextlib
import inspect
import time
from typing import TYPE_CHECKING, Any, Iterator, Callable, Mapping, Sequence, TypeVar

from ..errors import WrongResult, typed
from ..library import Library
from ..replies import Key, Value, Word
from ..tracing import span
from .cache import Cache
from .families import Bloom, Cuckoo, Delay, Limit, Once, Stock
from .locks import Lock, LockOptions, Locks, Target
from .runtime import Mutex, Requests, initialize, require_kind, sleep

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
K = TypeVar("K", bound=Key)

ATTEMPTS = 3
PAUSE_SECONDS = 0.05


class Sluice:
    """All command families over one client. All tasks or threads of a process may share it.

    Each command, also one that waits, occupies a connection of the client's pool. Locks, semaphores and near caches have connections of
    their own. The default pool of redis-py 8 has 100 connections and raises `MaxConnectionsError` above it. For many tasks or threads,
    use a `BlockingConnectionPool`, for example with `max_connections=50, timeout=10`: it waits for a free connection.

    Args:
        client: A client of redis-py or valkey-py, also one of a cluster or of Sentinel. The caller closes it.

    Attributes:
        client: The same client.
        stock: Inventory that never oversells.
        limit: Rate limits.
        once: Idempotency keys: work that is done once.
        cache: Cached values without cache stampede.
        delay: Delay queues.
        bloom: Bloom filters.
        cuckoo: Cuckoo filters, whose items can be removed.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self.library = Library(client)
        require_kind(self.library)
        self._locks = Locks(client, self.library, self.run)
        self._mutex = Mutex()
        self._requests = Requests()
        self.stock = Stock(self)
        self.limit = Limit(self)
        self.once = Once(self)
        self.cache = Cache(self)
        self.delay = Delay(self)
        self.bloom = Bloom(self)
        self.cuckoo = Cuckoo(self)

    def __enter__(self) -> "Sluice":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases all locks and closes the connections of locks and near caches. The client stays open."""
        self._requests.close()
        self.cache.close()
        self._locks.close()

    def run(self, read: Callable[[Any], T], *words: Word, repeat: bool = True, until: float = 0.0) -> T:
        """Sends one command.

        Args:
            read: The function that reads the reply.
            words: The command and its arguments.
            repeat: Whether the command is idempotent, also if another client acts between the command and its repetition. If so, it
                is sent again after a broken connection. Otherwise it is sent once, even if the client library repeats commands by
                itself.
            until: The end of what the command ends, for example of a lease, by `time.monotonic`. If all connections of the pool are in
                use, the command is sent again until then.

        Returns:
            The result of `read`.

        Raises:
            CommandError: The server replied with an error. The class says which.
            ConnectionError: The server does not answer. The exception is that of the client library.
        """
        name = str(words[0])
        if repeat:
            return read(self._attempt(lambda: self.client.execute_command(*words), name, True, until))
        return read((self._attempt(lambda: send_once(self.client, self.library, [words]), name, False, until))[0])

    def run_many(self, commands: Sequence[Sequence[Word]], *, repeat: bool = True) -> list[Any]:
        """Sends commands in one pipeline, without a transaction, and returns their replies.

        Args:
            commands: The commands and their arguments.
            repeat: Whether all of them are idempotent. See `run`.

        Raises:
            CommandError: The server replied to one of them with an error.
            ConnectionError: The server does not answer. The exception is that of the client library.
        """

        def send() -> Any:
            return self._pipeline(commands)

        def send_each_once() -> Any:
            return send_once(self.client, self.library, commands)

        return list(self._attempt(send if repeat else send_each_once, "pipeline", repeat)) if commands else []

    def run_each(self, commands: Sequence[Sequence[Word]], replies: dict[int, Any] | None = None) -> list[Any]:
        """Sends commands in one pipeline, and returns their replies, also error replies.

        Args:
            commands: The commands and their arguments. A command without a reply is sent again.
            replies: Gets each reply by the position of its command, also if the method raises because others are missing.

        Raises:
            ConnectionError: The server does not answer. The exception is that of the client library.
        """

        known = {} if replies is None else replies

        def send() -> Any:
            missing = [index for index in range(len(commands)) if index not in known]
            found = self._pipeline([commands[index] for index in missing], raise_on_error=False)
            broken = None
            for index, reply in zip(missing, found):
                if isinstance(reply, self.library.broken):
                    broken = reply
                else:
                    known[index] = reply
            if broken is not None:
                key = key_of(commands[missing[0]])
                if isinstance(key, (str, bytes)):
                    self.look_again(key)
                raise broken

        if commands:
            self._attempt(send, "pipeline", True)
        return [known[index] for index in range(len(commands))]

    def _pipeline(self, commands: Sequence[Sequence[Word]], **options: bool) -> Any:
        pipe = self.client.pipeline(**({} if self.library.is_cluster else {"transaction": False}))
        for words in commands:
            pipe.execute_command(*words)
        return pipe.execute(**options)

    def _attempt(self, send: Callable[[], Any], name: str, repeat: bool, until: float = 0.0) -> Any:
        with span(name):
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    if self.library.block:
                        return send_until(until, self.library, send)
                    with self._mutex:  # one connection: not all versions of the libraries protect it
                        return send()
                except self.library.error_reply as error:
                    raise typed(error) from error
                except self.library.broken:
                    if not repeat or attempt == ATTEMPTS:
                        raise
                    sleep(PAUSE_SECONDS * attempt)

    @property
    def block_seconds(self) -> float:
        """The seconds for which a command may block its connection. 0: all callers share one connection."""
        return self.library.block

    def value(self, value: Value | None) -> Any:
        """Returns a value as the client would read it: a string if the client decodes replies, otherwise bytes."""
        if value is None:
            return None
        encoder = self.client.get_encoder()
        return encoder.decode(encoder.encode(value))

    def check(self, value: Any, what: str) -> None:
        """Raises a `TypeError` if a value cannot be stored: its type is not `str`, `bytes`, `int` or `float`.

        Args:
            value: The value.
            what: What has the value, for the text of the error.
        """
        try:
            self.client.get_encoder().encode(value)
        except (self.library.data_error, UnicodeError) as error:
            name = "None" if value is None else f"a {type(value).__name__}"
            raise WrongResult(f"{what} {name}, which cannot be stored: use a str or bytes, for example json.dumps(...)") from error

    def look_again(self, key: Key) -> None:
        """In a cluster, lets the client follow a redirection and so learn where the key is."""
        self._locks.look_again(key)

    # Locks

    def lock(self, key: Key, **options: Unpack[LockOptions]) -> Lock:
        """Returns a distributed lock: `with` acquires and releases it.

        Args:
            key: The key of the lock.
            options: See `LockOptions`.
        """
        return Lock(self._locks, Target("LOCK", (key,), (key,)), **options)

    def read_lock(self, key: Key, **options: Unpack[LockOptions]) -> Lock:
        """Returns a shared lock. Several holders of `read_lock` hold it together; `lock` of the same key excludes them.

        Args:
            key: The key of the lock.
            options: See `LockOptions`.
        """
        return Lock(self._locks, Target("LOCK", (key,), (key,), ("SHARED",)), **options)

    def lock_many(self, keys: Sequence[Key], **options: Unpack[LockOptions]) -> Lock:
        """Returns a lock of several keys: all or none. Callers need no common order of the keys.

        Args:
            keys: The keys of the locks, of one hash slot.
            options: See `LockOptions`.
        """
        return Lock(self._locks, Target("LOCK", tuple(keys), (len(keys), *keys)), **options)

    def semaphore(self, key: Key, limit: int, *, permits: int = 1, **options: Unpack[LockOptions]) -> Lock:
        """Returns a semaphore: at most `limit` permits are held at once.

        Args:
            key: The key of the semaphore.
            limit: The number of permits. Each acquisition sets it anew.
            permits: How many of them this holder takes.
            options: See `LockOptions`.
        """
        return Lock(self._locks, Target("SEM", (key,), (key,), ("LIMIT", limit, "PERMITS", permits)), **options)

    def semaphore_many(self, limits: Mapping[K, int], *, permits: int = 1, **options: Unpack[LockOptions]) -> Lock:
        """Returns several semaphores: all or none.

        Args:
            limits: The limit of each key. All keys are of one hash slot.
            permits: How many permits this holder takes of each.
            options: See `LockOptions`.
        """
        names = [word for key in limits for word in (key, limits[key])]
        return Lock(self._locks, Target("SEM", tuple(limits), (len(limits), *names), ("PERMITS", permits)), **options)

    def guard(self, key: Key, fence: int, *, seconds: float | None = None) -> bool:
        """Compares a fencing token with the largest one seen, for a resource in Redis.

        Args:
            key: The key that remembers the largest token.
            fence: The fencing token of the holder.
            seconds: When the key expires. None: never.

        Returns:
            False if a later holder has used the resource: stop and roll back.
        """
        words: list[Word] = [] if seconds is None else ["PX", round(seconds * 1000)]
        return self.run(bool, "LOCK.GUARD", key, fence, *words)


def send_until(until: float, library: Library, send: Callable[[], T]) -> T:
    """Sends a request. While all connections of the pool are in use, tries again until a time by `time.monotonic`."""
    while True:
        try:
            return send()
        except library.broken as error:
            if not library.is_unsent(error) or time.monotonic() >= until:
                raise
        sleep(PAUSE_SECONDS)


def send_once(client: Any, library: Library, commands: Sequence[Sequence[Word]]) -> list[Any]:
    """Sends commands and returns their replies. `execute_command` of redis-py 6 and later repeats a command by itself.

    In a cluster, the commands are sent one after the other. The library follows redirections: the server did not run these commands.
    """
    initialize(client)
    if library.is_cluster:
        # The library repeats no command for which the caller names the node.
        return [client.execute_command(*words, target_nodes=client.get_node_from_key(key_of(words))) for words in commands]
    with borrow(client) as connection:
        try:
            connection.send_packed_command(connection.pack_commands(commands))
            replies = [reply_of(client, library, connection, words) for words in commands]
        except library.broken:
            connection.disconnect()
            raise
    for reply in replies:
        if isinstance(reply, library.error_reply):
            raise reply
    return replies


@contextlib.contextmanager
def borrow(client: Any) -> Iterator[Any]:
    """Returns the one connection of a client, or one of its pool."""
    if client.connection:
        # redis-py protects it by a mutex, too. Another name, or none, in other versions.
        mutex = getattr(client, "single_connection_lock", None) or getattr(client, "_single_conn_lock", None) or Mutex()
        with mutex:
            yield client.connection
        return
    pool = client.connection_pool
    # redis-py 5 and valkey-py need a name of a command, which has no effect. Later versions of redis-py warn about it.
    name = inspect.signature(pool.get_connection).parameters.get("command_name")
    is_named = name is not None and name.default is inspect.Parameter.empty
    connection = pool.get_connection(*["_"] if is_named else [])
    try:
        yield connection
    finally:
        pool.release(connection)


def reply_of(client: Any, library: Library, connection: Any, words: Sequence[Word]) -> Any:
    """Returns the reply to a command, also an error reply: the connection has the replies to other commands behind it."""
    try:
        return client.parse_response(connection, words[0])
    except library.error_reply as error:
        return error


def key_of(words: Sequence[Word]) -> Word:
    """Returns the first key of a command whose keys begin with its first argument, or after their number."""
    return words[2] if isinstance(words[1], int) else words[1]
