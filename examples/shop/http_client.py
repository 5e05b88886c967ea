"""A small HTTP client that can lose a reply: it sends the request, and closes the connection before it reads."""

import asyncio
import json

TIMEOUT_S = 30


class Lost(Exception):
    """There is no reply: the shop may have done the work or not."""


class Client:
    """One connection, kept open between requests."""

    def __init__(self, port):
        self.port = port
        self.streams = None

    async def request(self, method, path, body=None, headers=(), lose_after_s=None):
        """Returns the status and the JSON body. `lose_after_s`: closes the connection so long after the request."""
        try:
            return await asyncio.wait_for(self._request(method, path, body, headers, lose_after_s), TIMEOUT_S)
        except (OSError, EOFError, asyncio.TimeoutError, ValueError) as error:
            self.close()
            raise Lost from error

    async def _request(self, method, path, body, headers, lose_after_s):
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        content = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: shop", f"Content-Length: {len(content)}", *headers, "", ""]
        writer.write("\r\n".join(lines).encode() + content)
        await writer.drain()
        if lose_after_s is not None:
            await asyncio.sleep(lose_after_s)
            raise EOFError
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().splitlines()
        length = next(int(line.split(":")[1]) for line in head if line.startswith("content-length"))
        content = await reader.readexactly(length)
        if "connection: close" in head:
            self.close()
        return int(head[0].split()[1]), json.loads(content or b"null")

    def close(self):
        if self.streams:
            self.streams[1].close()
        self.streams = None
