"""A proxy that breaks connections at a chosen point of a request or of its reply, and that can be silent."""

import asyncio
import collections
import socket
import struct

from . import wire

CONFIRMATIONS = (b"subscribe", b"unsubscribe", b"psubscribe", b"punsubscribe")


class Fault:
    """Breaks the connection of the next request of a command.

    `side` and `offset` say where: after so many bytes of the request or of the reply. `is_behind` is set if the reply is not longer:
    then the client gets all of it before the connection breaks. `is_readable` is set, too, if only the last byte is missing: some
    clients do not wait for it.
    """

    def __init__(self, name, side, offset, is_reset=False):
        self.name, self.side, self.offset, self.is_reset = name.upper(), side, offset, is_reset
        self.fired = asyncio.Event()
        self.is_behind = self.is_readable = False


class Proxy:
    """Passes the connections of clients to the server on `target`, a port of this machine."""

    def __init__(self, target):
        self.target = target
        self.port = None
        self.faults = []
        self.seen = collections.Counter()
        self._links = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._server = None

    async def start(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def close(self):
        self._server.close()
        self.cut()

    def cut(self):
        """Closes all connections."""
        for link in list(self._links):
            link.close()

    def pause(self):
        """Passes nothing on until `resume`. New connections are accepted, and silent, too."""
        self._flows.clear()

    def resume(self):
        self._flows.set()

    def take(self, name):
        """Returns the fault for this request, if one waits for it."""
        self.seen[name] += 1
        for fault in self.faults:
            if fault.name == name:
                self.faults.remove(fault)
                return fault
        return None

    async def flow(self):
        await self._flows.wait()

    async def _accept(self, reader, writer):
        link = Link(self, reader, writer)
        self._links.add(link)
        try:
            await link.run()
        except asyncio.CancelledError:
            pass  # the end of the program
        finally:
            self._links.discard(link)


class Link:
    """One connection of a client."""

    def __init__(self, proxy, reader, writer):
        self._proxy = proxy
        self._client = (reader, writer)
        self._writers = [writer]
        self._outstanding = collections.deque()

    async def run(self):
        await self._proxy.flow()
        try:
            server = await asyncio.open_connection("127.0.0.1", self._proxy.target)
        except OSError:
            self.close()
            return
        self._writers.append(server[1])
        pumps = [
            asyncio.create_task(self._pump(self._client[0], server[1], self._request)),
            asyncio.create_task(self._pump(server[0], self._client[1], self._reply)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        self.close()
        await asyncio.gather(*pumps, return_exceptions=True)

    def close(self, is_reset=False):
        for writer in self._writers:
            if is_reset:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            else:
                writer.close()

    async def _pump(self, reader, writer, fault_of):
        data = b""
        while part := await reader.read(1 << 16):
            data += part
            while data and (end := wire.end_of_frame(data)) is not None:
                frame, data = data[:end], data[end:]
                await self._proxy.flow()
                if fault := fault_of(frame):
                    fault.is_behind = fault.offset >= len(frame)
                    fault.is_readable = fault.offset >= len(frame) - 1
                    writer.write(frame[:fault.offset])
                    await writer.drain()
                    self.close(fault.is_reset)
                    fault.fired.set()
                    return
                writer.write(frame)
            await writer.drain()

    def _request(self, frame):
        name = wire.parse(frame)[0][0].upper()
        fault = self._proxy.take(name)
        if fault and fault.side == "request":
            return fault
        self._outstanding.append(fault)
        return None

    def _reply(self, frame):
        if is_message(frame):
            return self._proxy.take("MESSAGE")
        return self._outstanding.popleft() if self._outstanding else None


def is_message(frame):
    """Whether the frame is no reply to a request: a message of a channel, or an invalidation."""
    kind = frame[:64].split(b"\r\n")[2:3]
    return frame[:1] == b">" and kind[0] not in CONFIRMATIONS or frame.startswith(b"*3\r\n$7\r\nmessage\r\n")
