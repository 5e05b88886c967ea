"""The places and numbers that all programs of the shop share. run.py passes them in the environment."""

import os
import pathlib

STATE = pathlib.Path(os.environ.get("SHOP_STATE", "."))
DATABASE_SOCKET = STATE / "mariadb.sock"
ORDERS_SOCKET = STATE / "orders.sock"
CACHE_SOCKET = STATE / "cache.sock"
CONTROL_SOCKET = STATE / "control.sock"

RESERVE_MS = int(os.environ.get("SHOP_RESERVE_MS", 60_000))  # the time to pay
TICK_MS = int(os.environ.get("SHOP_TICK_MS", 3_000))  # the period of the background job
FRESH_MS = int(os.environ.get("SHOP_FRESH_MS", 10_000))  # of cached products
ALARM_AFTER = int(os.environ.get("SHOP_ALARM_AFTER", 8))  # failed invalidations of one key, about 25 s. The retries go on
PER_USER = int(os.environ.get("SHOP_PER_USER", 2))  # items of one product for one user

EVENTS = "{shop}:events"  # the stream of all changes of all stocks
WORKERS = "workers"  # its consumer group


def stock_key(product_id):
    return f"{{shop}}:stock:{product_id}"


def product_of(stock_key):
    return int(stock_key.rsplit(":", 1)[1])
