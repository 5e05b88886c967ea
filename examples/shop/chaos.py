"""Things that break the shop on purpose: the buttons of the board. The supervisor (run.py) kills and restarts programs."""

import asyncio
import json

import settings

DOWN_S = {"worker": 6, "mariadb": 8, "orders": 3, "cache": 8}  # how long the program stays away


async def ask_supervisor(**request):
    """One line of JSON each way."""
    reader, writer = await asyncio.open_unix_connection(str(settings.CONTROL_SOCKET))
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        return json.loads(await reader.readline())
    finally:
        writer.close()


class Twice:
    """ASGI middleware. While `is_on`, it hands each POST request about an order to the application twice, and drops the first
    reply: as if every client lost its first reply."""

    def __init__(self, app):
        self.app = app
        self.is_on = False

    async def __call__(self, scope, receive, send):
        if not (self.is_on and scope["type"] == "http" and scope["method"] == "POST"
                and scope["path"].startswith("/api/orders")):
            return await self.app(scope, receive, send)
        body, is_more = b"", True
        while is_more:
            message = await receive()
            body, is_more = body + message.get("body", b""), message.get("more_body", False)

        async def replay():
            return {"type": "http.request", "body": body, "more_body": False}

        async def drop(message):
            pass

        await self.app(dict(scope), replay, drop)
        await self.app(dict(scope), replay, send)
