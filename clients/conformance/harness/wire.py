"""RESP: the ends of frames, for the proxy, and a connection that the tested clients have no part in."""

import asyncio

LINES = b"+-:,(#_"
BULKS = b"$=!"
AGGREGATES = b"*~>%|"


class ErrorReply(Exception):
    """An error reply of the server."""


def end_of_frame(data, start=0):
    """Returns the index behind the frame that begins at `start`, or None if the frame is incomplete."""
    end = data.find(b"\r\n", start)
    if end < 0:
        return None
    kind = data[start]
    end += 2
    if kind in LINES:
        return end
    length = int(data[start + 1:end - 2])
    if kind in BULKS:
        end += length + 2 if length >= 0 else 0
        return end if end <= len(data) else None
    if kind not in AGGREGATES:
        raise ValueError(f"not RESP: {data[start:start + 20]!r}")
    for _ in range(max(length, 0) * (2 if kind in b"%|" else 1)):
        end = end_of_frame(data, end)
        if end is None:
            return None
    return end


def parse(data, start=0):
    """Returns the value of a complete frame in RESP2, and the index behind it."""
    end = data.index(b"\r\n", start)
    kind, line = data[start], data[start + 1:end]
    end += 2
    if kind == ord("-"):
        return ErrorReply(line.decode()), end
    if kind == ord("+"):
        return line.decode(), end
    if kind == ord(":"):
        return int(line), end
    length = int(line)
    if length < 0:
        return None, end
    if kind == ord("$"):
        return data[end:end + length].decode(errors="replace"), end + length + 2
    items = []
    for _ in range(length):
        item, end = parse(data, end)
        items.append(item)
    return items, end


def command(words):
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


class Honest:
    """A connection to a server, without a proxy. Each command has a connection of its own, so none of them is in the way."""

    def __init__(self, port):
        self.port = port

    async def __call__(self, *words, asking=False):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        try:
            requests = [["ASKING"], words] if asking else [words]
            writer.write(b"".join(map(command, requests)))
            data = b""
            for _ in requests:
                while (end := end_of_frame(data)) is None:
                    part = await reader.read(1 << 16)
                    if not part:
                        raise ConnectionError("the server closed the connection")
                    data += part
                reply, data = parse(data)[0], data[end:]
        finally:
            writer.close()
        if isinstance(reply, ErrorReply):
            raise reply
        return reply
