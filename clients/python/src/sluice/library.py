"""What differs between redis-py and valkey-py, and between a client of one server and a client of a cluster."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Mapping

CONNECT_SECONDS = 5.0
BLOCK_SECONDS = 1.0

# The texts of a pool whose connections are all in use.
POOL_ERRORS = ("Too many connections", "No connection available")

# The libraries have classes for these codes, and remove the code from the text.
CODES = {
    "AskError": "ASK",
    "BusyLoadingError": "LOADING",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
}


def code_of(error: Exception) -> str:
    """Returns the code of an error reply: its first word."""
    return CODES.get(type(error).__name__) or str(error).split(" ", 1)[0]


@dataclass(frozen=True)
class Endpoint:
    """A server: how to open connections of our own to it.

    Attributes:
        name: The node of a cluster, otherwise an empty string.
        connection_class: The class of its connections.
        options: The arguments of that class.
    """

    name: str
    connection_class: Any
    options: Mapping[str, Any]


class Library:
    """The library of a client.

    Attributes:
        name: `redis` or `valkey`.
        error_reply: The exception for an error that the server replied with.
        broken: The exceptions for a broken connection.
        data_error: The exception for an argument that is neither text nor bytes nor a number.
        not_owned: The exception for a lock that is not held any more.
        failures: All exceptions of the library.
        is_async: Whether the client is one for asyncio.
        is_cluster: Whether the client is one of a cluster.
        block: The seconds for which a command may block its connection. 0 if all callers share one connection.
    """

    def __init__(self, client: Any) -> None:
        roots = [kind.__module__.split(".")[0] for kind in type(client).__mro__]
        name = next((root for root in roots if root in ("redis", "valkey")), None)
        if name is None:
            raise TypeError(f"expected a client of redis-py or valkey-py, not {type(client).__name__}")
        self.name: str = name
        self.is_async = any(f"{name}.asyncio" in kind.__module__ for kind in type(client).__mro__)
        errors = importlib.import_module(f"{name}.exceptions")
        self.error_reply: type[Exception] = errors.ResponseError
        self.failures: type[Exception] = getattr(errors, "RedisError", None) or errors.ValkeyError
        self.connection_error: type[Exception] = errors.ConnectionError
        self.broken: tuple[type[Exception], ...] = (errors.ConnectionError, errors.TimeoutError, OSError)
        self._max_connections: type[Exception] = errors.MaxConnectionsError
        self.data_error: type[Exception] = errors.DataError
        self.not_owned: type[Exception] = errors.LockNotOwnedError
        self.is_cluster = hasattr(client, "get_node_from_key")
        retry = importlib.import_module(f"{name}.asyncio.retry" if self.is_async else f"{name}.retry").Retry
        self._no_retry = retry(importlib.import_module(f"{name}.backoff").NoBackoff(), 0)
        is_shared = getattr(client, "single_connection_client", False) or getattr(client, "connection", None) is not None
        patience = self._options_of(client).get("socket_timeout") or BLOCK_SECONDS * 2
        self.block: float = 0.0 if is_shared else min(BLOCK_SECONDS, patience / 2)

    def is_unsent(self, error: Exception) -> bool:
        """Returns whether an error proves that nothing was sent: all connections of the pool were in use."""
        if isinstance(error, self._max_connections):
            return True
        # Not all pools have a class for it.
        return type(error) is self.connection_error and str(error).rstrip(".") in POOL_ERRORS

    def _options_of(self, client: Any) -> Mapping[str, Any]:
        options: Mapping[str, Any]
        if not self.is_cluster:
            options = client.connection_pool.connection_kwargs
            return options
        options = getattr(client, "connection_kwargs", None) or client.nodes_manager.connection_kwargs
        return options

    def endpoint(self, name: str, connection_class: Any, options: Mapping[str, Any]) -> Endpoint:
        """Returns an endpoint whose connections are in RESP2 and do not repeat commands by themselves."""
        own = {key: value for key, value in options.items() if "maint_notifications" not in key}
        own.update(
            protocol=2, health_check_interval=0, retry=self._no_retry,
            socket_timeout=own.get("socket_timeout") or CONNECT_SECONDS,
            socket_connect_timeout=own.get("socket_connect_timeout") or CONNECT_SECONDS)
        return Endpoint(name, connection_class, own)
