"""Products: the read path (near cache, Bloom filter, CACHE.FETCH, MariaDB) and the write path (commit, then invalidate)."""

import json
import time

import redis

import connections
import invalidation
import settings
from connections import DATABASE_DOWN, REDIS_DOWN, query, transaction
from near import NearCache

FILTER = "filter:products"
CATALOG = "catalog"  # the cached list of ids
PREFIXES = ["product:", CATALOG]
LEASE_MS, BLOCK_MS, EARLY_MS, STALE_MS, NULL_MS = 5_000, 2_000, 1_000, 60_000, 3_000
BREAKER = ("BREAKER", "mariadb", 3, 1_000)  # three failures in a row: no query for a second


class Unavailable(Exception):
    """MariaDB does not answer, and there is no old value."""


class Catalog:
    def __init__(self, orders, cache, db):
        self.orders, self.cache, self.db = orders, cache, db
        # A caller that waits occupies its connection. With one pool for all, the caller with the lease could not store.
        self.waiting = connections.cache(50)
        self.near = NearCache(settings.CACHE_SOCKET, PREFIXES)

    # Read path

    async def product(self, product_id):
        """The row as a dictionary, or None."""
        guard = ("GUARD", FILTER, product_id)
        return await self._cached(f"product:{product_id}", lambda: self._load_product(product_id), *guard)

    async def ids(self):
        return await self._cached(CATALOG, self._load_ids) or []

    async def _cached(self, key, load, *options):
        is_hit, value = self.near.get(key)
        if is_hit:
            return value
        try:
            return await self._fetched(key, load, options)
        except REDIS_DOWN:
            return await self._loaded(load)  # without a cache; the pool bounds the load on MariaDB

    async def _fetched(self, key, load, options):
        while True:
            changes, asked = self.near.changes, time.monotonic()
            state, text, n = await self.waiting.execute_command(
                "CACHE.FETCH", key, "LEASE", LEASE_MS, "EARLY", EARLY_MS, *options, *BREAKER, "BLOCK", BLOCK_MS)
            value = None if text is None else json.loads(text)
            if state == "LEASE":
                return await self._rebuilt(key, load, n, value)
            if state == "DOWN" and value is None:
                raise Unavailable(key)
            if state == "MISS" and value is None:
                return await self._loaded(load)  # a replica: it grants no leases
            if state in ("HIT", "NULL"):
                self.near.set(key, value, n, changes, asked)
            if state != "WAIT":
                return value  # HIT, STALE, DOWN or MISS with an old value; None for NULL and ABSENT

    async def _rebuilt(self, key, load, token, old):
        try:
            value = await self._loaded(load)
        except Unavailable:
            await self.cache.execute_command("CACHE.FAIL", key, token, "BACKOFF", 500)
            if old is None:
                raise
            return old
        if value is None:
            await self.cache.execute_command("CACHE.SETNULL", key, "PX", NULL_MS, "TOKEN", token)
        else:
            await self.cache.execute_command(
                "CACHE.SET", key, json.dumps(value), "PX", settings.FRESH_MS, "STALE", STALE_MS, "JITTER", 10,
                "TOKEN", token)
        return value

    async def _loaded(self, load):
        try:
            return await load()
        except DATABASE_DOWN as error:
            raise Unavailable from error

    async def _load_product(self, product_id):
        rows = await query(self.db, "SELECT * FROM products WHERE id = %s", product_id)
        return rows[0] if rows else None

    async def _load_ids(self):
        return [row["id"] for row in await query(self.db, "SELECT id FROM products ORDER BY is_flash DESC, id DESC")]

    # Write path

    async def set_price(self, product_id, cents, is_forgetful=False):
        """Commits, then invalidates. A forgetful writer dies in between: then canal.py invalidates."""
        async with transaction(self.db) as cursor:
            await cursor.execute(
                "UPDATE products SET price_cents = %s, version = version + 1 WHERE id = %s", (cents, product_id))
            is_found = cursor.rowcount == 1
        if is_found and not is_forgetful:
            await invalidation.invalidate(self.cache, self.orders, f"product:{product_id}")
        return is_found

    async def add(self, name, about, icon, price_cents, stock, is_flash, starts_at_ms):
        """Inserts a product, and its stock. Returns its id."""
        async with transaction(self.db) as cursor:
            await cursor.execute(
                "INSERT INTO products (name, about, icon, price_cents, stock, is_flash, starts_at_ms)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s)",
                (name, about, icon, price_cents, stock, is_flash, starts_at_ms))
            product_id = cursor.lastrowid
            # Before the commit: the filter never hides a committed row, and a committed row has a stock.
            await self._add_to_filter(product_id)
            await open_stock(self.orders, product_id, stock)
        await self._add_to_filter(product_id)  # again, if another process has built a new filter meanwhile
        for key in (f"product:{product_id}", CATALOG):
            await invalidation.invalidate(self.cache, self.orders, key)
        return product_id

    async def _add_to_filter(self, *ids):
        try:
            await self.cache.execute_command("BF.INSERT", FILTER, "NOCREATE", "ITEMS", *ids)
        except redis.ResponseError:
            pass  # no filter: it guards nothing
        except REDIS_DOWN:
            pass  # the cache restarts without a filter


async def open_stock(orders, product_id, stock):
    """Sets the stock of a product that nobody can order yet: its row is not committed, or the shop is not open."""
    await orders.execute_command(
        "STOCK.SET", settings.stock_key(product_id), stock, "PERUSER", settings.PER_USER,
        "EVENTS", settings.EVENTS, "MAXLEN", 1_000_000)


async def build_filter(cache, db):
    """Builds the filter of all ids if there is none. An insertion can run at the same time: see `Catalog.add`."""
    if await cache.exists(FILTER):
        return False
    building = f"{FILTER}:building"
    ids = await _all_ids(db)
    await cache.delete(building)
    await cache.execute_command("BF.RESERVE", building, 0.001, max(1000, 2 * len(ids)))
    await cache.execute_command("BF.MADD", building, *ids)
    await cache.rename(building, FILTER)
    await cache.execute_command("BF.MADD", FILTER, *await _all_ids(db))
    return True


async def _all_ids(db):
    return [row["id"] for row in await query(db, "SELECT id FROM products")] or [0]
