"""The web application: routes and replies. `python web.py` serves it."""

import asyncio
import contextlib
import json
import os
import pathlib
import random
import time

import uvicorn
from starlette.applications import Starlette
from starlette.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import chaos
import connections
import settings
from board import Board, Times
from catalog import Catalog, Unavailable
from connections import DATABASE_DOWN, REDIS_DOWN
from orders import Orders

STATIC = pathlib.Path(__file__).parent / "static"
LONGEST_BODY = 10_000


@contextlib.asynccontextmanager
async def lifespan(app):
    """The clients and background tasks of this process."""
    orders, cache, db = connections.orders(), connections.cache(), await connections.database()
    state = app.state
    state.redis, state.db = orders, db
    state.catalog = Catalog(orders, cache, db)
    state.orders = Orders(orders, state.catalog, db)
    # The board has connections of its own: it also works while visitors use all others.
    state.board = Board(connections.orders(2), connections.cache(2), await connections.database(1), state.catalog.near,
                        state.twice, state.times, state.orders.unwritten)
    tasks = [asyncio.create_task(state.catalog.near.listen()), asyncio.create_task(state.board.run())]
    yield
    for task in tasks:
        task.cancel()


def answer(reply):
    headers = {"Retry-After": str(-(-reply.retry_ms // 1000))} if reply.retry_ms else {}
    return JSONResponse(reply.body, reply.status, headers)


def user_of(request):
    """The shop has no accounts: the browser chooses a name."""
    return request.headers.get("x-user", "guest")[:64]


async def body_of(request):
    if int(request.headers.get("content-length", 0)) > LONGEST_BODY:
        raise ValueError("the body is too long")
    body = json.loads(await request.body() or b"{}")
    if not isinstance(body, dict):
        raise ValueError("the body is no object")
    return body


def number(body, name, least, most):
    value = body.get(name)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be between {least} and {most}")
    return value


# Pages and products


async def page(request):
    return FileResponse(STATIC / "index.html")


async def products(request):
    catalog, client = request.app.state.catalog, request.app.state.redis
    ids = await catalog.ids()
    rows = [row for row in await asyncio.gather(*map(catalog.product, ids)) if row]
    try:
        available = await client.execute_command("STOCK.MGET", *(settings.stock_key(row["id"]) for row in rows)) if rows else []
    except REDIS_DOWN:
        available = [None] * len(rows)
    shown = [row | {"available": number} for row, number in zip(rows, available)]
    return JSONResponse({"products": shown, "now_ms": int(time.time() * 1000), "shop": settings.STATE.name})


async def product(request):
    row = await request.app.state.catalog.product(request.path_params["id"])
    return JSONResponse(row) if row else JSONResponse({"error": "no such product"}, 404)


# Orders


def timed(handler):
    """Its times are on the board."""

    async def handle(request):
        with request.app.state.times.measure():
            return await handler(request)

    return handle


@timed
async def place_order(request):
    key = request.headers.get("idempotency-key", "")
    if not 8 <= len(key) <= 128:
        raise ValueError("the header Idempotency-Key must have 8 to 128 characters")
    body = await body_of(request)
    product_id, qty = number(body, "product", 1, 2**31 - 1), number(body, "qty", 1, 100)
    return answer(await request.app.state.orders.place(user_of(request), request.client.host, product_id, qty, key))


@timed
async def pay(request):
    path = request.path_params
    return answer(await request.app.state.orders.pay(user_of(request), path["product"], path["order"]))


@timed
async def refund(request):
    path = request.path_params
    return answer(await request.app.state.orders.refund(user_of(request), path["product"], path["order"]))


async def my_orders(request):
    return JSONResponse({"orders": await request.app.state.orders.of_user(user_of(request))})


# The board, and its buttons


async def board(request):
    async def events():
        async for numbers in request.app.state.board.changes():
            yield f"data: {json.dumps(numbers)}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def set_price(request):
    """`forget`: the writer dies between its commit and its invalidation."""
    body = await body_of(request)
    cents = number(body, "price_cents", 1, 10_000_000)
    is_found = await request.app.state.catalog.set_price(request.path_params["id"], cents, bool(body.get("forget")))
    return JSONResponse({"price_cents": cents}) if is_found else JSONResponse({"error": "no such product"}, 404)


async def start_sale(request):
    body = await body_of(request)
    stock, in_s = number(body, "stock", 1, 1_000_000), number(body, "in_s", 0, 3600)
    name, about, icon = random.choice(FLASH)
    starts_at_ms = int(time.time() * 1000) + in_s * 1000
    product_id = await request.app.state.catalog.add(name, about, icon, 9_900, stock, True, starts_at_ms)
    return JSONResponse({"product": product_id, "starts_at_ms": starts_at_ms}, 201)


FLASH = [
    ("Pocket projector", "A cinema for every white wall", "projector"),
    ("Field camera", "One lens, one dial, no menus", "camera"),
    ("Walnut radio", "Plays what the air has to offer", "radio"),
]


async def break_something(request):
    body = await body_of(request)
    what = body.get("what")
    if what == "twice":
        request.app.state.twice.is_on = bool(body.get("on"))
        return JSONResponse({"twice": request.app.state.twice.is_on})
    if what not in chaos.DOWN_S:
        raise ValueError(f"what must be twice or one of {', '.join(chaos.DOWN_S)}")
    down_s = body.get("down_s", chaos.DOWN_S[what])
    return JSONResponse(await chaos.ask_supervisor(what="kill", name=what, down_s=float(down_s)))


# Errors


async def bad_request(request, error):
    return JSONResponse({"error": str(error)}, 400)


async def unavailable(request, error):
    return JSONResponse({"error": "a server does not answer"}, 503, {"Retry-After": "1"})


def application():
    app = Starlette(
        routes=[
            Route("/", page),
            Route("/api/products", products),
            Route("/api/products/{id:int}", product),
            Route("/api/products/{id:int}/price", set_price, methods=["POST"]),
            Route("/api/orders", my_orders),
            Route("/api/orders", place_order, methods=["POST"]),
            Route("/api/orders/{product:int}/{order}/pay", pay, methods=["POST"]),
            Route("/api/orders/{product:int}/{order}/refund", refund, methods=["POST"]),
            Route("/api/sales", start_sale, methods=["POST"]),
            Route("/api/board", board),
            Route("/api/break", break_something, methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={ValueError: bad_request} | {
            error: unavailable for error in (Unavailable, *REDIS_DOWN, *DATABASE_DOWN)},
        lifespan=lifespan)
    twice = chaos.Twice(app)
    app.state.twice, app.state.times = twice, Times()
    return twice


if __name__ == "__main__":
    # The proxy headers of clients on this machine are believed: `make shop-load` gives each shopper an address.
    uvicorn.run(application(), host=os.environ.get("SHOP_HOST", "127.0.0.1"), port=int(os.environ["SHOP_PORT"]),
                log_level="warning", timeout_graceful_shutdown=1)
