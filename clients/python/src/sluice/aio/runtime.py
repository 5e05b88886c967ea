"""What the asyncio client needs of asyncio. sluice/sync/runtime.py has the same names for threads."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import Any, Awaitable, Callable, TypeVar

from ..errors import WrongResult
from ..library import Endpoint, Library

T = TypeVar("T")

# How long the request of a canceled task waits for its reply. After it, the connection is closed.
REPLY_SECONDS = 5.0

Mutex = asyncio.Lock
Event = asyncio.Event
Handle = asyncio.Task[None]
current = asyncio.current_task
shield = asyncio.shield
sleep = asyncio.sleep


class Mailbox:
    """Messages for one task."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, message: Any) -> None:
        self._queue.put_nowait(message)

    async def get(self, seconds: float) -> Any:
        """Returns a message, or None if there is none in time."""
        try:
            return await asyncio.wait_for(self._queue.get(), seconds)
        except asyncio.TimeoutError:
            return None


class Requests:
    """Requests whose replies can grant something: a lease, a lock, the right to work."""

    def __init__(self) -> None:
        self._abandoned: set[Handle] = set()

    async def run(self, send: Callable[[], Awaitable[T]], give_back: Callable[[T], Awaitable[object]]) -> T:
        """Sends a request. If the caller is canceled meanwhile, the request continues without it, and its reply is given back.

        Args:
            send: Sends the request and returns its reply.
            give_back: Runs with a reply that no caller gets.
        """
        request = asyncio.ensure_future(send())
        has_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # cheaper than `asyncio.wait`

        def end(_: object) -> None:
            if not has_ended.done():
                has_ended.set_result(None)

        request.add_done_callback(end)
        try:
            await has_ended
        except asyncio.CancelledError:
            handle = asyncio.get_running_loop().create_task(self._abandon(request, give_back))
            self._abandoned.add(handle)  # the event loop itself does not keep it
            handle.add_done_callback(self._abandoned.discard)
            raise
        return request.result()

    async def close(self) -> None:
        """Waits for the requests of canceled callers."""
        while self._abandoned:
            await asyncio.wait(list(self._abandoned))

    @staticmethod
    async def _abandon(request: asyncio.Future[T], give_back: Callable[[T], Awaitable[object]]) -> None:
        done, _ = await asyncio.wait([request], timeout=REPLY_SECONDS)
        if not done:
            request.cancel()  # closes its connection
            await asyncio.wait([request])
        if not request.cancelled() and request.exception() is None:
            await give_back(request.result())


def require_kind(library: Library) -> None:
    """Raises a `TypeError` if a client is not one for asyncio."""
    if not library.is_async:
        raise TypeError(f"sluice.aio.Sluice needs a client of {library.name}.asyncio; sluice.Sluice is for a client of {library.name}")


def spawn(run: Callable[[], Awaitable[None]]) -> Handle:
    """Runs a function beside the caller."""

    async def main() -> None:
        await run()

    return asyncio.get_running_loop().create_task(main())


async def stop(handle: Handle) -> None:
    """Ends such a function. Its connection is closed already."""
    handle.cancel()
    if handle is not asyncio.current_task():
        with contextlib.suppress(asyncio.CancelledError):
            await handle


def call_soon(callback: Callable[[], object]) -> None:
    """Calls a callback of the user. If it fails, the event loop logs the error."""
    asyncio.get_running_loop().call_soon(callback)


async def result_of(function: Callable[..., Awaitable[T]], name: str, argument: Any) -> T:
    """Calls a function of the user, the argument `name` of a method."""
    result = function(argument)
    if not inspect.isawaitable(result):
        raise WrongResult(f"{name} must be a coroutine function: sluice.aio awaits what it returns, not a {type(result).__name__}")
    return await result


async def receive(connection: Any, seconds: float) -> Any:
    """Reads a message as bytes. Returns None if there is none in time."""
    return await connection.read_response(disable_decoding=True, timeout=seconds)


async def initialize(client: Any) -> None:
    """Opens the one connection of a client with one connection, or reads the topology of a cluster."""
    await client.initialize()


async def endpoint_of(client: Any, library: Library, key: Any) -> Endpoint:
    """Returns the server that has the key."""
    if not library.is_cluster:
        pool = client.connection_pool
        return library.endpoint("", pool.connection_class, pool.connection_kwargs)
    await initialize(client)
    node = client.get_node_from_key(key)
    return library.endpoint(node.name, node.connection_class, node.connection_kwargs)
