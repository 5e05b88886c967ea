# `clients/python/generate` writes this file from the folder aio.
"""One connection for commands and one for messages of the server, which many callers share."""

from __future__ import annotations

import time
from typing import Any, Sequence

from ..library import Endpoint, Library, code_of
from ..replies import Word
from .runtime import Handle, Mailbox, Mutex, receive, sleep, spawn, stop

HEARTBEAT_SECONDS = 1.0
SILENCE_SECONDS = 3 * HEARTBEAT_SECONDS
PAUSE_SECONDS = 0.1

# After these replies the server cannot serve the keys: perhaps another server of the same name can.
UNAVAILABLE = ("READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "UNBLOCKED")

# The hash slot is on another server.
REDIRECTED = ("MOVED", "ASK", "TRYAGAIN")


class Session:
    """Two connections to one server. A closed connection is opened again when it is needed.

    A subclass says what happens with messages, and what a new connection must send first.

    Attributes:
        contact: When the last answered command was sent, by the monotonic clock.
        heard: When the connection for messages was heard last, by the monotonic clock.
        interval: The seconds between two heartbeats.
    """

    def __init__(self, library: Library, endpoint: Endpoint, channel: str) -> None:
        self.endpoint = endpoint
        self.contact = 0.0
        self.heard = 0.0
        self.interval = HEARTBEAT_SECONDS
        self._library = library
        self._channel = channel
        self._mutex = Mutex()
        self._wire: Any = None
        self._inbox: Any = None
        self._inbox_id = 0
        self._pinged = 0.0
        self._is_greeted = False
        self._is_closed = False
        self._reader: Handle | None = None
        self._watcher: Handle | None = None
        self._end = Mailbox()

    def call(self, *words: Word) -> Any:
        """Sends one command and returns its reply.

        Raises:
            Exception: One of `Library.broken`, or `Library.error_reply`.
        """
        reply = (self.call_many([words]))[0]
        if isinstance(reply, self._library.error_reply):
            raise reply
        return reply

    def call_many(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Sends commands in one round trip. Returns their replies, also error replies.

        Raises:
            Exception: One of `Library.broken`.
        """
        return self._call(commands)

    def wake(self) -> None:
        """Ends the pause before the next `_tick`."""
        self._end.put(None)

    def close(self) -> None:
        """Closes both connections."""
        with self._mutex:
            self._is_closed = True
            self._drop_wire()
            self._drop_inbox()
        self._end.put(None)
        for handle in (self._reader, self._watcher):
            if handle is not None:
                stop(handle)

    # For subclasses

    def _greet(self) -> None:
        """Runs after a connection was opened, before other commands. It sends commands with `_exchange`."""

    def _turn_deaf(self) -> None:
        """Runs when the connection for messages is closed: messages can be lost until it is open again."""

    def _hear(self, message: Any) -> None:
        """Runs for each message: its type, its channel and its data, as bytes."""

    def _heartbeat(self) -> tuple[Word, ...] | None:
        """Returns a command that has no effect, or None if no caller needs the connections now."""
        return None

    def _hear_heartbeat(self, reply: Any) -> None:
        """Runs for each reply to a heartbeat."""

    def _pause(self) -> float:
        """Returns the seconds until the next `_tick`."""
        return self.interval

    def _tick(self) -> None:
        """Runs after each pause, and after `wake`."""

    def _exchange(self, *words: Word) -> Any:
        reply = (self._exchange_many([words]))[0]
        if isinstance(reply, self._library.error_reply):
            raise reply
        return reply

    def _exchange_many(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        asked = time.monotonic()
        try:
            self._wire.send_packed_command(self._wire.pack_commands(commands))
            replies = [self._reply() for _ in commands]
            for reply in replies:
                if isinstance(reply, self._library.error_reply) and code_of(reply) in UNAVAILABLE:
                    raise self._library.connection_error(str(reply)) from reply
        except BaseException:
            self._drop_wire()  # a reply that was not read would answer the next command
            raise
        self.contact = asked
        return replies

    def _reply(self) -> Any:
        """Returns a reply, also an error reply: the replies to other commands follow it."""
        try:
            return self._wire.read_response()
        except self._library.error_reply as error:
            return error

    # Connections

    def _call(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        with self._mutex:
            self._open()
            return self._exchange_many(commands)

    def _open(self) -> None:
        if self._is_closed:
            raise self._library.connection_error("the Sluice object is closed")
        if self._inbox is None:
            self._is_greeted = False
            self._subscribe()
        if self._wire is None:
            self._is_greeted = False
            self._wire = self._connect()
        if not self._is_greeted:
            self._greet()
            self._is_greeted = True
        if self._reader is None:
            self._reader = spawn(self._read)
            self._watcher = spawn(self._watch)

    def _connect(self) -> Any:
        connection = self.endpoint.connection_class(**self.endpoint.options)
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def _subscribe(self) -> None:
        inbox = self._connect()
        try:
            inbox.send_command("CLIENT", "ID")
            self._inbox_id = int(inbox.read_response())
            inbox.send_command("SUBSCRIBE", self._channel)
            inbox.read_response()
        except BaseException:
            inbox.disconnect()
            raise
        self.heard = time.monotonic()
        self._inbox = inbox

    def _drop_wire(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.disconnect()

    def _drop_inbox(self) -> None:
        inbox, self._inbox = self._inbox, None
        self._turn_deaf()
        if inbox is not None:
            inbox.disconnect()

    # Messages

    def _read(self) -> None:
        last = 0.0
        while not self._is_closed:
            inbox = self._inbox
            if inbox is None:
                sleep(PAUSE_SECONDS)
            elif not self._listen(inbox):
                with self._mutex:
                    self._drop_inbox()
            if self._inbox is None or time.monotonic() - last >= self.interval:
                self._beat()
                last = time.monotonic()

    def _watch(self) -> None:
        # Not the task that reads: its heartbeat waits as long as the server is silent.
        while not self._is_closed:
            self._end.get(self._pause())
            self._tick()

    def _beat(self) -> None:
        words = self._heartbeat()
        if words is None or (self._inbox is not None and time.monotonic() - self.contact < self.interval):
            return
        try:
            self._hear_heartbeat(self.call(*words))  # opens the closed connections, too
        except self._library.broken:
            pass
        except self._library.error_reply as error:
            if code_of(error) in REDIRECTED:
                self._is_greeted = False

    def _listen(self, inbox: Any) -> bool:
        """Reads one message. Returns false if the connection is broken."""
        try:
            message = receive(inbox, self.interval)
            if message is None:
                now = time.monotonic()
                if now - self.heard > SILENCE_SECONDS:
                    return False
                if now - self._pinged >= HEARTBEAT_SECONDS:
                    self._pinged = now
                    inbox.send_command("PING")
        except Exception:
            return False  # also the errors of a connection that another caller closes meanwhile
        if message is not None:
            self.heard = time.monotonic()
            if message[0] == b"message":
                self._hear(message)
        return True
