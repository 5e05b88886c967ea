"""Orders: limits, the idempotency key of the request, a reservation, the payment, the refund.

Nothing here writes an order to MariaDB: worker.py does, from the events of the stock.
"""

import dataclasses
import hashlib
import json
import time

import redis

import connections
import settings
from connections import DATABASE_DOWN, query
from catalog import Unavailable

LEASE_MS, BLOCK_MS, REMEMBERED_MS = 5_000, 3_000, 86_400_000
PER_USER_LIMIT = (9, 5, 1_000)  # burst, count, period: 5 requests a second, and 10 at once
PER_ADDRESS_LIMIT = (99, 50, 1_000)
REFUSALS = {-1: "sold out", -2: f"at most {settings.PER_USER} items for each customer", -3: "the order has ended", -4: "not for sale"}


@dataclasses.dataclass
class Reply:
    status: int
    body: dict
    retry_ms: int = 0


class Orders:
    def __init__(self, client, catalog, db):
        self.client, self.catalog, self.db = client, catalog, db
        self.unwritten = set()  # the ids of acknowledged orders; the board removes those that MariaDB has
        self.waiting = connections.orders(50)  # for ONCE.BEGIN: a caller that waits occupies its connection

    async def place(self, user, address, product_id, qty, key):
        """Reserves `qty` items. `key` is the idempotency key, which the client created before its first attempt."""
        if wait_ms := await self._wait_ms(user, address):
            return Reply(429, {"error": "too many requests"}, wait_ms)
        product = await self.catalog.product(product_id)
        if product is None:
            return Reply(404, {"error": "no such product"})
        if time.time() * 1000 < product["starts_at_ms"]:
            return Reply(403, {"error": "the sale has not begun"})

        async def reserve():
            # The id follows from the request. If this process dies before ONCE.DONE, the next attempt is the same order.
            order = digest(user, key, product_id, qty)[:24]
            left = await self.client.execute_command(
                "STOCK.RESERVE", settings.stock_key(product_id), qty, "ORDER", order, "PX", settings.RESERVE_MS,
                "USER", user)
            if left < 0:
                # Not final: a late first attempt can still reserve (docs/stock.md). The customer then sees a reservation, which
                # ends by itself.
                return Reply(409, {"error": REFUSALS[left]})
            # The customer pays the price of this moment, whatever it is later. A repeated request keeps the first price.
            await self.client.set(price_key(order), product["price_cents"] * qty, px=REMEMBERED_MS, nx=True)
            ends_at_ms = int(time.time() * 1000) + settings.RESERVE_MS
            return Reply(201, {"order": order, "product": product_id, "qty": qty, "state": "reserved",
                               "pay_until_ms": ends_at_ms})

        reply = await self._once(f"once:order:{digest(user, key)}", digest(product_id, qty), reserve)
        if reply.status == 201:
            self.unwritten.add(reply.body["order"])
        return reply

    async def pay(self, user, product_id, order):
        """Charges the card once, then sells the reservation. If it has expired, the job in settle.py returns the money."""
        if await self._order_of(user, product_id, order) is None:
            return Reply(404, {"error": "no such order"})

        async def charge_and_confirm():
            cents = await self.client.get(price_key(order))
            if cents is None:
                return Reply(409, {"error": REFUSALS[-3], "order": order})
            cents = int(cents)
            # The bank. The primary key is its idempotency key, so a second charge of the order changes nothing.
            await query(self.db, "INSERT IGNORE INTO payments VALUES (%s, %s, 'charged')", order, cents)
            sold = await self.client.execute_command("STOCK.CONFIRM", settings.stock_key(product_id), order)
            if sold < 0:
                return Reply(409, {"error": "too late: the reservation has ended, the payment returns", "order": order})
            return Reply(200, {"order": order, "product": product_id, "state": "sold", "cents": cents})

        return await self._once(f"once:pay:{order}", digest(product_id, order), charge_and_confirm)

    async def refund(self, user, product_id, order):
        """Undoes a reservation or a sale. Repeated, it changes nothing, so it needs no key. settle.py returns the money."""
        if await self._order_of(user, product_id, order) is None:
            return Reply(404, {"error": "no such order"})
        qty = await self.client.execute_command("STOCK.CANCEL", settings.stock_key(product_id), order)
        if qty < 0:
            return Reply(409, {"error": REFUSALS[qty]})
        return Reply(200, {"order": order, "product": product_id, "state": "cancelled"})

    async def of_user(self, user):
        """The orders that the worker has written, newest first."""
        try:
            return await query(
                self.db,
                "SELECT o.id AS `order`, o.product_id AS product, o.qty, o.state, p.cents, p.state AS payment"
                " FROM orders o LEFT JOIN payments p ON p.order_id = o.id WHERE o.user = %s"
                " ORDER BY o.changed_at DESC LIMIT 20", user)
        except DATABASE_DOWN as error:
            raise Unavailable from error

    async def _once(self, key, fingerprint, work):
        """Runs `work` once for this key. A repeated request gets the stored reply; a refusal is not stored."""
        try:
            state, result, n = await self.waiting.execute_command(
                "ONCE.BEGIN", key, "LEASE", LEASE_MS, "FINGERPRINT", fingerprint, "BLOCK", BLOCK_MS)
        except redis.ResponseError as error:
            if "CONFLICT" not in str(error):
                raise
            return Reply(422, {"error": "the idempotency key belongs to another request"})
        if state == "DONE":
            return Reply(**json.loads(result))
        if state == "BUSY":
            return Reply(503, {"error": "the first request still runs"}, n)
        try:
            reply = await work()
        except (*DATABASE_DOWN, Unavailable):
            # All steps may be repeated, so the next attempt need not wait for the lease.
            await self.client.execute_command("ONCE.FAIL", key, n)
            return Reply(503, {"error": "the database does not answer"}, 500)
        if reply.status < 300:
            await self.client.execute_command(
                "ONCE.DONE", key, n, json.dumps(dataclasses.asdict(reply)), "PX", REMEMBERED_MS)
        else:
            await self.client.execute_command("ONCE.FAIL", key, n)
        return reply

    async def _wait_ms(self, user, address):
        """0 if both limits allow the request. If one refuses, none counts it."""
        limited, _, _, retry_ms, *_ = await self.client.execute_command(
            "RATE.MGCRA", 2, f"{{web}}:user:{user}", *PER_USER_LIMIT, f"{{web}}:address:{address}", *PER_ADDRESS_LIMIT)
        return retry_ms if limited else 0

    async def _order_of(self, user, product_id, order):
        flat = await self.client.execute_command("STOCK.ORDER", settings.stock_key(product_id), order)
        details = dict(zip(flat[::2], flat[1::2])) if flat else {}
        return details if details.get("user") == user else None


def price_key(order):
    return f"price:{order}"


def digest(*parts):
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()
