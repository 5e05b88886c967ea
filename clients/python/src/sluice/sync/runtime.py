"""What the sync client needs of threads. sluice/aio/runtime.py has the same names for asyncio."""

from __future__ import annotations

import inspect
import queue
import threading
import time
from typing import Any, Callable, TypeVar

from ..library import Endpoint, Library

T = TypeVar("T")

Mutex = threading.Lock
Event = threading.Event
Handle = threading.Thread
current = threading.get_ident
sleep = time.sleep

STOP_SECONDS = 5.0


class Mailbox:
    """Messages for one thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, message: Any) -> None:
        self._queue.put(message)

    def get(self, seconds: float) -> Any:
        """Returns a message, or None if there is none in time."""
        try:
            return self._queue.get(timeout=seconds)
        except queue.Empty:
            return None


class Requests:
    """Requests whose replies can grant something. Threads cannot be canceled: each caller gets its reply."""

    def run(self, send: Callable[[], T], give_back: Callable[[T], object]) -> T:
        return send()

    def close(self) -> None:
        """The client of asyncio needs it."""


def require_kind(library: Library) -> None:
    """Raises a `TypeError` if a client is one for asyncio."""
    if library.is_async:
        raise TypeError(f"sluice.Sluice needs a client for threads, not one of {library.name}.asyncio: use sluice.aio.Sluice")


def spawn(run: Callable[[], None]) -> Handle:
    """Runs a function beside the caller."""
    thread = threading.Thread(target=run, name="sluice", daemon=True)
    thread.start()
    return thread


def stop(handle: Handle) -> None:
    """Waits for the end of such a function. Its connection is closed already."""
    if handle is not threading.current_thread():
        handle.join(STOP_SECONDS)


def call_soon(callback: Callable[[], object]) -> None:
    """Calls a callback of the user, in a thread of its own: it may use locks and may fail."""
    threading.Thread(target=callback, name="sluice-lost", daemon=True).start()


def result_of(function: Callable[..., T], name: str, argument: Any) -> T:
    """Calls a function of the user, the argument `name` of a method."""
    result = function(argument)
    if inspect.iscoroutine(result):
        result.close()  # it has not begun
        raise TypeError(f"{name} must not be a coroutine function: only sluice.aio awaits what it returns")
    return result


def receive(connection: Any, seconds: float) -> Any:
    """Reads a message as bytes. Returns None if there is none in time."""
    if not connection.can_read(timeout=seconds):
        return None
    return connection.read_response(disable_decoding=True)


def initialize(client: Any) -> None:
    """The client of asyncio needs it. This one initializes itself when it is created."""


def endpoint_of(client: Any, library: Library, key: Any) -> Endpoint:
    """Returns the server that has the key."""
    if not library.is_cluster:
        pool = client.connection_pool
        return library.endpoint("", pool.connection_class, pool.connection_kwargs)
    node = client.get_node_from_key(key)
    pool = getattr(client, f"get_{library.name}_connection")(node).connection_pool
    return library.endpoint(node.name, pool.connection_class, pool.connection_kwargs)
