"""The numbers of the live board. One task collects them once for all visitors."""

import asyncio
import collections
import contextlib
import json
import time

import chaos
import invalidation
import settings
from connections import DATABASE_DOWN, REDIS_DOWN, query

PERIOD_S = 0.5

# Sold and reserved items of each product, as MariaDB has them: the stock in Redis is not asked.
BOOKS = """
SELECT p.id, p.name, p.icon, p.stock, p.version, COALESCE(SUM(o.qty * (o.state = 'sold')), 0) AS sold,
  COALESCE(SUM(o.qty * (o.state = 'reserved')), 0) AS reserved
FROM products p LEFT JOIN orders o ON o.product_id = p.id AND o.state IN ('sold', 'reserved') GROUP BY p.id
ORDER BY p.is_flash DESC, p.id DESC
"""


OVER_LIMIT = """
SELECT COUNT(*) AS n FROM (SELECT 1 FROM orders WHERE state IN ('sold', 'reserved') GROUP BY user, product_id HAVING SUM(qty) > %s) u
"""

MOST_IDS = 1000  # of one query


class Times:
    """How long the requests about orders took, over the last ten seconds."""

    def __init__(self):
        self.samples = collections.deque(maxlen=10_000)

    @contextlib.contextmanager
    def measure(self):
        began = time.monotonic()
        try:
            yield
        finally:
            ended = time.monotonic()
            self.samples.append((ended, ended - began))

    def p99_ms(self):
        """None without requests."""
        oldest = time.monotonic() - 10
        while self.samples and self.samples[0][0] < oldest:
            self.samples.popleft()
        times = sorted(seconds for _, seconds in self.samples)
        return round(1000 * times[len(times) * 99 // 100]) if times else None


class Rate:
    """The growth of a counter in a second, over the last two seconds. A counter that starts again at 0 begins anew."""

    def __init__(self):
        self.samples = collections.deque(maxlen=4)

    def of(self, counter):
        if self.samples and counter < self.samples[-1][1]:
            self.samples.clear()
        self.samples.append((time.monotonic(), counter))
        (began, first), (ended, last) = self.samples[0], self.samples[-1]
        return round((last - first) / (ended - began), 1) if ended > began else 0


class Total:
    """The sum of a server's counter since the board began. The counter starts again at 0 with its server, the sum does not."""

    def __init__(self):
        self.earlier = self.last = 0

    def of(self, counter):
        if counter < self.last:
            self.earlier += self.last
        self.last = counter
        return self.earlier + counter


class Board:
    def __init__(self, orders, cache, db, near, twice, times, unwritten):
        self.orders, self.cache, self.db, self.near, self.twice, self.times = orders, cache, db, near, twice, times
        self.unwritten = unwritten  # the ids of acknowledged orders. This task removes those that MariaDB has
        self.versions = {}  # of the products in MariaDB, as the last round has read them
        self.rates, self.totals = {}, {}
        self.numbers = {}
        self.news = asyncio.Condition()

    async def run(self):
        while True:
            started = time.monotonic()
            # First the list of products: a new one has its stock in the same round.
            books = await self._books()
            self.numbers |= books or {}
            parts = [books, *await asyncio.gather(self._queue(), self._cache(), self._services())]
            self.versions = {book["id"]: book["version"] for book in self.numbers.get("books", [])}
            # A part that does not answer keeps its last numbers, and the list of silent parts names it.
            silent = [name for name, part in zip(("mariadb", "orders", "cache", "supervisor"), parts) if part is None]
            for part in parts:
                self.numbers |= part or {}
            self.numbers |= {"silent": silent, "twice": self.twice.is_on, "unwritten": len(self.unwritten),
                             "p99_ms": self.times.p99_ms(), "now_ms": int(time.time() * 1000)}
            async with self.news:
                self.news.notify_all()
            await asyncio.sleep(max(0.1, PERIOD_S - (time.monotonic() - started)))

    async def changes(self):
        """All numbers, each time that they are collected."""
        while True:
            async with self.news:
                await self.news.wait()
            yield self.numbers

    def _per_second(self, name, counter):
        return self.rates.setdefault(name, Rate()).of(counter)

    def _total(self, info, *names):
        """The sum of counters of `INFO sluice`."""
        return sum(self.totals.setdefault(name, Total()).of(info[f"sluice_{name}"]) for name in names)

    async def _books(self):
        with contextlib.suppress(*DATABASE_DOWN):
            rows = await query(self.db, BOOKS)
            queries = (await query(self.db, "SHOW GLOBAL STATUS LIKE 'Questions'"))[0]["Value"]
            over = await query(self.db, OVER_LIMIT, settings.PER_USER)
            await self._remove_written()
            report = await query(self.db, "SELECT * FROM reports ORDER BY tick DESC LIMIT 1")
            books = [{key: int(value) if key in ("sold", "reserved") else value for key, value in row.items()} for row in rows]
            return {
                "books": books,
                "oversold": sum(max(0, book["sold"] + book["reserved"] - book["stock"]) for book in books),
                "over_limit": over[0]["n"],
                "queries_s": self._per_second("queries", int(queries)),
                "report": {key: int(value) for key, value in report[0].items()} if report else None,
            }

    async def _remove_written(self):
        """An id that stays although the queue lag is 0 is a lost order."""
        ids = list(self.unwritten)[:MOST_IDS]
        if ids:
            marks = ", ".join(["%s"] * len(ids))
            self.unwritten -= {row["id"] for row in await query(self.db, f"SELECT id FROM orders WHERE id IN ({marks})", *ids)}

    async def _stale_products(self):
        """The number of products that visitors see in an older version than MariaDB had in the last round."""
        shown = await asyncio.gather(*map(self._shown_version, self.versions))
        return sum(0 < version < self.versions[product_id] for product_id, version in zip(self.versions, shown))

    async def _shown_version(self, product_id):
        """The version in the near cache, or in the cache, or 0."""
        key = f"product:{product_id}"
        product = self.near.peek(key) or json.loads(await self.cache.execute_command("CACHE.GET", key) or "null")
        return product["version"] if product else 0

    async def _queue(self):
        with contextlib.suppress(*REDIS_DOWN):
            info = await self.orders.info("sluice")
            ids = [book["id"] for book in self.numbers.get("books", [])]
            async with self.orders.pipeline(transaction=False) as pipe:
                pipe.execute_command("XINFO", "GROUPS", settings.EVENTS)
                pipe.execute_command("DELAY.INFO", invalidation.RETRIES)
                pipe.hlen(invalidation.ALARMS)
                for product_id in ids:
                    pipe.execute_command("STOCK.INFO", settings.stock_key(product_id))
                groups, delayed, alarms, *stocks = await pipe.execute(raise_on_error=False)
            group = as_map(groups[0]) if groups and isinstance(groups, list) else {}
            stocks = {product_id: as_map(stock) for product_id, stock in zip(ids, stocks)}
            return {
                "stocks": {product_id: {name: stock[name] for name in ("available", "reserved", "sold")}
                           for product_id, stock in stocks.items() if stock},
                "orders_s": self._per_second("orders", info["sluice_stock_reserved"]),
                "refused_s": self._per_second("refused", info["sluice_rate_limited"]),
                "refused": self._total(info, "rate_limited"),
                "repeated": self._total(info, "once_replayed", "stock_duplicates"),
                "lag": (group.get("lag") or 0) + (group.get("pending") or 0),
                "delayed": as_map(delayed).get("messages", 0),
                "alarms": alarms if isinstance(alarms, int) else 0,
            }

    async def _cache(self):
        with contextlib.suppress(*REDIS_DOWN):
            info = await self.cache.info("sluice")
            breaker = as_map(await self.cache.execute_command("CACHE.BREAKER", "mariadb"))
            return {
                "near_s": self._per_second("near", self.near.hits),
                "hits_s": self._per_second("hits", info["sluice_cache_hits"]),
                "loads_s": self._per_second("loads", info["sluice_cache_leases"]),
                "waits": self._total(info, "cache_waits"),
                "waiting": info["sluice_cache_waiters_now"],
                "stale": self._total(info, "cache_stale"),
                "absent": self._total(info, "cache_absent"),
                "down": self._total(info, "cache_down"),
                "breaker": breaker.get("state", "closed"),
                "trips": breaker.get("trips", 0),
                "hit_ratio": self._hit_ratio(info),
                "stale_products": await self._stale_products(),
            }

    def _hit_ratio(self, info):
        answered = self.near.hits + self._total(info, "cache_hits", "cache_nulls", "cache_stale")
        return round(answered / max(1, answered + self._total(info, "cache_leases", "cache_down")), 4)

    async def _services(self):
        with contextlib.suppress(OSError, ValueError):
            return {"services": await chaos.ask_supervisor(what="status")}


def as_map(reply):
    """A map that RESP2 sends as an array."""
    return dict(zip(reply[::2], reply[1::2])) if isinstance(reply, list) else reply if isinstance(reply, dict) else {}
