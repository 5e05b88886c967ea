"""Thousands of simulated shoppers, while programs of the shop die: `make shop-load`. Fails if a check fails."""

import argparse
import asyncio
import json
import random
import shutil
import sys
import time

import run  # sets SHOP_STATE before the other modules read it
import connections
import settings
from check import check, is_stale, noise
from crowd import Crowd
from http_client import Client, Lost
from supervisor import Failed

# After which part of the shoppers a program dies, and for how long. "twice" sends all order requests twice from then on.
BREAKAGES = [(0.1, "worker", 3), (0.25, "mariadb", 5), (0.4, "orders", 2), (0.55, "cache", 4), (0.7, "twice", 0),
             (0.8, "canal", 2), (0.9, "web", 1)]
LABELS = {"worker": "order worker killed", "mariadb": "MariaDB killed", "orders": "Redis (orders) killed",
          "cache": "Redis (cache) killed", "twice": "each request twice", "canal": "binlog reader killed",
          "web": "web server killed", None: "all programs run"}
PRICE_EVERY_S = 0.03
QUIET_S = 180


def positive(text):
    """For argparse."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


async def change_prices(port, products):
    """Three kinds of writers: the shop, the shop dying before its invalidation, and another program."""
    client, db, draw = Client(port), await connections.database(1), random.Random(1)
    changes = 0
    try:
        while True:
            product, cents, kind = draw.choice(products), draw.randrange(500, 20_000), draw.randrange(3)
            try:
                if kind == 2:
                    await connections.query(
                        db, "UPDATE products SET price_cents = %s, version = version + 1 WHERE id = %s", cents, product)
                else:
                    body = {"price_cents": cents, "forget": kind == 1}
                    await client.request("POST", f"/api/products/{product}/price", body)
                changes += 1
            except (Lost, *connections.DATABASE_DOWN):
                pass  # the next writer tries
            await asyncio.sleep(PRICE_EVERY_S)
    except asyncio.CancelledError:
        return changes


async def watch(port, phases):
    """Reads the board, and keeps the extreme numbers of the current phase."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /api/board HTTP/1.0\r\n\r\n")
            while line := await reader.readline():
                if line.startswith(b"data: "):
                    numbers, phase = json.loads(line[6:]), phases[-1]
                    for name in ("lag", "delayed", "trips", "queries_s", "orders_s", "stale", "refused"):
                        phase[name] = max(phase.get(name, 0), numbers.get(name) or 0)
            writer.close()
        except (OSError, ValueError):
            pass
        await asyncio.sleep(0.1)


async def break_things(supervisor, port, crowd, shoppers, phases, products):
    client = Client(port)
    for part, name, down_s in BREAKAGES:
        while crowd.done < part * shoppers:
            await asyncio.sleep(0.02)
        phases[-1]["503"] = crowd.counts[503] - phases[-1]["503 before"]
        phases.append({"name": name, "503 before": crowd.counts[503], "down_s": down_s})
        if name == "twice":
            await client.request("POST", "/api/break", {"what": "twice", "on": True})
        else:
            await supervisor.kill(name, down_s)
        if name == "mariadb":
            await break_further(supervisor, products)


async def break_further(supervisor, products):
    """While MariaDB is away: the loaders of products fail, so the breaker opens, and the worker dies with a batch that it could
    not write."""
    cache, orders = connections.cache(1), connections.orders(1)
    for product in products:
        await cache.execute_command("CACHE.DEL", f"product:{product}")
    await supervisor.kill("worker", 1)  # a batch of events gathers meanwhile
    while not (await orders.xpending(settings.EVENTS, settings.WORKERS))["pending"]:
        if supervisor.services["mariadb"].state == "runs":
            break
        await asyncio.sleep(0.05)
    await supervisor.kill("worker", 0)
    await cache.aclose()
    await orders.aclose()


async def show_progress(crowd, shoppers, phases):
    """A bar on a terminal; a line for each tenth elsewhere."""
    last = -1
    while True:
        part = crowd.done / shoppers
        text = f"{crowd.done:6} of {shoppers} shoppers, {len(crowd.orders)} orders, {LABELS[phases[-1]['name']]}"
        if sys.stdout.isatty():
            width = shutil.get_terminal_size().columns - 32
            print(f"\r  [{'█' * int(20 * part):20}] {100 * part:3.0f} %{text[:width]:{width}}", end="", flush=True)
        elif int(10 * part) > last:
            last = int(10 * part)
            print(f"  {100 * part:3.0f} %{text}", flush=True)
        await asyncio.sleep(0.2)


async def wait_until_quiet(orders, db):
    """Until no reservation, event, invalidation or refund is open."""
    deadline = time.monotonic() + QUIET_S
    while True:
        try:
            if not (left := await noise(orders, db)):
                return
        except (*connections.REDIS_DOWN, *connections.DATABASE_DOWN) as error:
            left = [str(error)]
        if time.monotonic() > deadline:
            raise Failed(f"The shop is not quiet after {QUIET_S} s: {', '.join(left)}")
        await asyncio.sleep(0.2)


async def wait_for_reader(client, db, product):
    """Waits until the binlog reader has reported all price changes.

    For this, changes a row directly in the database: only the binlog reader can report that change, and it reports it last.
    """
    deadline = time.monotonic() + QUIET_S
    await client.request("GET", f"/api/products/{product}")  # the product is cached from now on
    await connections.query(db, "UPDATE products SET version = version + 1 WHERE id = %s", product)
    [row] = await connections.query(db, "SELECT * FROM products WHERE id = %s", product)
    while await is_stale(client, row):
        if time.monotonic() > deadline:
            raise Failed(f"The reader of the binlog has not reported all changes after {QUIET_S} s")
        await asyncio.sleep(0.2)


def percentile(times, part):
    return sorted(times)[min(len(times) - 1, int(len(times) * part))] * 1000 if times else 0


def print_report(crowd, phases, count, changes, seconds):
    print(f"\n  {crowd.done} shoppers in {seconds:.0f} s, {crowd.counts['lost replies']} lost replies,"
          f" {crowd.counts['repeated requests']} repeated requests, {changes} changes of prices\n")
    print(f"  {'request':24}{'replies':>9}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}")
    for kind, times in sorted(crowd.times.items()):
        print(f"  {kind:24}{len(times):9}{percentile(times, .5):9.1f}{percentile(times, .99):9.1f}{percentile(times, 1):9.0f}")
    print(f"\n  {'while':24}{'503':>9}{'lag':>9}{'delayed':>9}{'trips':>9}{'queries/s':>11}{'orders/s':>10}")
    for phase in phases:
        print(f"  {LABELS[phase['name']]:24}{phase.get('503', 0):9}" + "".join(
            f"{phase.get(name, 0):{width}}" for name, width in
            [("lag", 9), ("delayed", 9), ("trips", 9), ("queries_s", 11), ("orders_s", 10)]))
    print(f"\n  {'sold out':24}{crowd.counts['sold out']:9}\n  {'limiter refusals':24}{crowd.counts[429]:9}")
    for name, number in count.items():
        print(f"  {name:24}{number:9}{'' if name == 'sold' or number == 0 else '   must be 0'}")


async def main(arguments):
    port = run.free_port(0)
    # Cached products expire after the check: only an invalidation can replace an old one.
    environment = {"SHOP_RESERVE_MS": "4000", "SHOP_TICK_MS": "1000", "SHOP_FRESH_MS": "600000"}
    async with run.shop(port, 0, say=lambda line: print(f"  {line}", flush=True), **environment) as supervisor:
        print(f"  The page and its board: http://127.0.0.1:{port}", flush=True)
        client, orders, db = Client(port), connections.orders(2), await connections.database(2)
        # Too few items for all shoppers.
        _, sale = await client.request("POST", "/api/sales", {"stock": max(1, arguments.shoppers // 4), "in_s": 0})
        others = list(range(1, sale["product"]))
        crowd, phases = Crowd(port, sale["product"], others, arguments.seed), [{"name": None, "503 before": 0}]
        began = time.monotonic()
        background = [asyncio.create_task(work) for work in (
            watch(port, phases), show_progress(crowd, arguments.shoppers, phases),
            *([] if arguments.calm else [break_things(supervisor, port, crowd, arguments.shoppers, phases, others)]))]
        prices = asyncio.create_task(change_prices(port, others))
        await crowd.run(arguments.shoppers, arguments.parallel)
        seconds = time.monotonic() - began
        if not arguments.calm:
            await background[-1]  # also the last breakage
        phases[-1]["503"] = crowd.counts[503] - phases[-1]["503 before"]
        prices.cancel()
        changes = await prices
        await asyncio.sleep(0.3)  # the last line of the progress
        print("\n  Waiting until unpaid reservations have expired and the shop is quiet", flush=True)
        await wait_until_quiet(orders, db)
        count = await quiet_check(crowd, client, db, sale["product"])
        for task in background:
            task.cancel()
        await orders.aclose()
        print_report(crowd, phases, count, changes, seconds)
    return [name for name, number in count.items() if number and name != "sold"]


async def quiet_check(crowd, client, db, product):
    """The web server may still start after its kill."""
    for _ in range(100):
        try:
            status, _ = await client.request("GET", "/api/products")
            if status == 200:
                break
        except Lost:
            pass
        await asyncio.sleep(0.2)
    await wait_for_reader(client, db, product)
    return await check(crowd, client)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Thousands of simulated shoppers, while programs of the shop die.")
    parser.add_argument("--shoppers", type=positive, default=5000)
    parser.add_argument("--parallel", type=positive, default=50, help="shoppers at the same time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calm", action="store_true", help="no program dies")
    try:
        failed = asyncio.run(run.until_signal(main(parser.parse_args())))
    except Failed as error:
        sys.exit(str(error))
    except asyncio.CancelledError:
        sys.exit("\nInterrupted. Everything has ended, and all files are removed.")
    sys.exit(f"  Failed: {', '.join(failed)}" if failed else None)
