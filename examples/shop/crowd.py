"""Simulated shoppers. They browse, order, pay, cancel and ask for refunds; they lose replies and repeat their requests."""

import asyncio
import collections
import random
import time

from http_client import Client, Lost

LOSS, LONGEST_LOSS_S = 0.15, 0.03  # the probability that a shopper loses a reply, and how long it waits before
GREEDY, GREEDY_ORDERS = 0.02, 30  # shoppers who order as fast as they can
MISSING_ID = 1_000_000  # ids from here on do not exist


class Crowd:
    def __init__(self, port, flash, others, seed):
        self.port, self.flash, self.others = port, flash, others
        self.random = random.Random(seed)
        self.times = collections.defaultdict(list)  # the seconds of each attempt with a reply, by kind
        self.counts = collections.Counter()
        self.orders = {}  # the last acknowledged state of each order
        self.keys = collections.Counter()  # the idempotency keys of each user
        self.done = 0

    async def run(self, shoppers, parallel):
        numbers = iter(range(shoppers))

        async def visitors():
            client = Client(self.port)
            for number in numbers:
                await self._visit(client, number)
                self.done += 1
            client.close()

        await asyncio.gather(*(visitors() for _ in range(parallel)))

    async def _visit(self, client, number):
        user = f"shopper-{number}"
        address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        headers = [f"X-User: {user}", f"X-Forwarded-For: {address}"]
        await self._browse(client, headers)
        if self.random.random() < GREEDY:
            for attempt in range(GREEDY_ORDERS):
                await self._order(client, user, headers, f"{user}-{attempt}", is_patient=False)
            return
        order = await self._order(client, user, headers, f"{user}-only")
        if order is None:
            return
        choice = self.random.random()
        if choice < 0.6 and await self._change(client, headers, order, "pay") and choice < 0.1:
            await self._change(client, headers, order, "refund")
        elif 0.6 <= choice < 0.7:
            await self._change(client, headers, order, "refund")
        # All others do not pay: the reservation expires.

    async def _browse(self, client, headers):
        if self.random.random() < 0.1:
            await self._insist(client, "browse", "GET", "/api/products", None, headers)
        for product in (self.flash, self.random.choice(self.others)):
            status, body = await self._insist(client, "browse", "GET", f"/api/products/{product}", None, headers)
            assert status == 200 and body["id"] == product, (status, body)
        if self.random.random() < 0.2:
            missing = self.random.randrange(MISSING_ID, 2 * MISSING_ID)
            status, _ = await self._insist(client, "browse", "GET", f"/api/products/{missing}", None, headers)
            assert status == 404, status

    async def _order(self, client, user, headers, key, is_patient=True):
        """The id of the order, or None."""
        product = self.flash if self.random.random() < 0.8 else self.random.choice(self.others)
        self.keys[user] += 1
        status, body = await self._insist(
            client, "order", "POST", "/api/orders", {"product": product, "qty": 1},
            [*headers, f"Idempotency-Key: {key}"], is_patient)
        if status != 201:
            self.counts[body["error"]] += 1
            return None
        self.orders[body["order"]] = (product, "reserved")
        return body["order"]

    async def _change(self, client, headers, order, verb):
        product, _ = self.orders[order]
        status, body = await self._insist(client, verb, "POST", f"/api/orders/{product}/{order}/{verb}", {}, headers)
        assert status in (200, 409), (status, body)
        if status == 200:
            self.orders[order] = (product, body["state"])
        return status == 200

    async def _insist(self, client, kind, method, path, body, headers, is_patient=True):
        """Repeats the same request until a reply arrives that is not "try again"."""
        is_repeated = False
        while True:
            loses = method == "POST" and self.random.random() < LOSS
            began = time.perf_counter()
            try:
                status, reply = await client.request(
                    method, path, body, headers, self.random.random() * LONGEST_LOSS_S if loses else None)
            except Lost:
                self.counts["lost replies" if loses else "broken connections"] += 1
                is_repeated = True
                await asyncio.sleep(self.random.random() * 0.05)
                continue
            if status not in (429, 503):
                self.times[kind].append(time.perf_counter() - began)
                self.counts["repeated requests"] += is_repeated
                return status, reply
            self.counts[status] += 1
            if status == 429 and not is_patient:
                return status, reply
            is_repeated = True
            await asyncio.sleep(0.1 + self.random.random() * 0.2)
