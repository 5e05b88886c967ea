"""Checks of a quiet shop. Each of them returns the number of violations."""

import connections
import invalidation
import settings
from board import as_map
from connections import query
from settle import settle

SALES = "SELECT p.id, p.stock, COALESCE(SUM(o.qty * (o.state = 'sold')), 0) AS sold," \
        " COALESCE(SUM(o.qty * (o.state = 'reserved')), 0) AS reserved" \
        " FROM products p LEFT JOIN orders o ON o.product_id = p.id GROUP BY p.id"


async def noise(orders, db):
    """Why the shop is not quiet yet, or an empty list."""
    group = as_map((await orders.execute_command("XINFO", "GROUPS", settings.EVENTS))[0])
    stocks = [await stock_of(orders, row["id"]) for row in await query(db, "SELECT id FROM products")]
    unsettled = await query(
        db, "SELECT COUNT(*) AS n FROM payments p JOIN orders o ON o.id = p.order_id"
        " WHERE p.state = 'charged' AND o.state IN ('cancelled', 'expired')")
    left = {
        "events that the worker has not written": (group["lag"] or 0) + group["pending"],
        "reserved items": sum(stock["reserved"] for stock in stocks),
        "invalidations that wait": as_map(await orders.execute_command("DELAY.INFO", invalidation.RETRIES))["messages"]
        + (await orders.xpending(invalidation.DUE, invalidation.GROUP))["pending"],
        "payments of closed orders": unsettled[0]["n"],
    }
    return [f"{number} {what}" for what, number in left.items() if number]


async def stock_of(orders, product_id):
    return as_map(await orders.execute_command("STOCK.INFO", settings.stock_key(product_id)))


async def check(crowd, client):
    """All checks, by their names. `client` is an HTTP client of the shop."""
    orders, db = connections.orders(2), await connections.database(2)
    rows = {row["id"]: row for row in await query(db, "SELECT * FROM orders")}
    sales = await query(db, SALES)
    count = {"sold": sum(int(row["sold"]) for row in sales)}
    count["oversold"] = sum(max(0, int(row["sold"] + row["reserved"]) - row["stock"]) for row in sales)
    by_user = await query(db, "SELECT user, COUNT(*) AS n FROM orders GROUP BY user")
    count["double orders"] = sum(max(0, row["n"] - crowd.keys[row["user"]]) for row in by_user)
    count["lost orders"] = sum(order not in rows for order in crowd.orders)
    count["wrong states"] = sum(
        order in rows and rows[order]["state"] not in ACCEPTED[state] for order, (_, state) in crowd.orders.items())
    count["books that differ"] = sum([await differs(orders, row) for row in sales])
    count["wrong payments"] = (await query(
        db, "SELECT COUNT(*) AS n FROM orders o LEFT JOIN payments p ON p.order_id = o.id AND p.state = 'charged'"
        " WHERE (o.state = 'sold') <> (p.order_id IS NOT NULL)"))[0]["n"]
    over = await query(db, "SELECT user FROM orders WHERE state = 'sold' GROUP BY user, product_id HAVING SUM(qty) > %s",
                       settings.PER_USER)
    count["users over their limit"] = len(over)
    count["jobs with an old fence"] = (await query(
        db, "SELECT COUNT(*) AS n FROM (SELECT fence < LAG(fence) OVER (ORDER BY tick) AS is_old FROM reports) r"
        " WHERE is_old"))[0]["n"]
    # A holder of the lock that awakes after a long pause: its token is small.
    count["late jobs accepted"] = int(await settle(db, fence=1, tick=FAR_TICK))
    count["stale reads"] = sum([await is_stale(client, row) for row in await query(db, "SELECT * FROM products")])
    db.close()
    await orders.aclose()
    return count


FAR_TICK = 10**15

# The state that the database may have after the last acknowledged one.
ACCEPTED = {"reserved": {"expired"}, "sold": {"sold"}, "cancelled": {"cancelled"}}


async def differs(orders, row):
    """Whether the stock in Redis and the rows in MariaDB disagree, or items are missing."""
    stock = await stock_of(orders, row["id"])
    return stock["sold"] != row["sold"] or stock["available"] + stock["sold"] != row["stock"]


async def is_stale(client, row):
    """Whether the shop shows another row than MariaDB has. Read twice: the second time from the near cache."""
    shown = [await client.request("GET", f"/api/products/{row['id']}") for _ in range(2)]
    return any(product != (200, row) for product in shown)
