"""Near caches of several processes that read and write at random serve nothing old."""

import multiprocessing
import os
import random
import time

from settings import PORT, PROTOCOL, classes
from sluice import Sluice
from sluice.sync.cache import NearMap, NearSession

PROCESSES = 8
STEPS = int(os.environ.get("SLUICE_NEAR_STEPS", "200"))
KEYS = [f"key:{number}" for number in range(20)]

# An entry that changed while a connection was broken is served for at most three seconds.
QUIET_SECONDS = 3.2
WAIT_SECONDS = 60


def work(number, is_deaf, barrier, found):
    """Reads and writes at random, then reads everything when all are quiet. The database is a hash."""
    if is_deaf:
        NearSession._hear = lambda self, message: None
    own = classes()[0](port=PORT, protocol=PROTOCOL, decode_responses=True)
    dice = random.Random(number)
    with Sluice(own) as sluice:
        near = sluice.cache.near()

        def load(key):
            return own.hget("database", key)

        def load_many(keys):
            return {key: load(key) for key in keys}

        for step in range(STEPS):
            key = dice.choice(KEYS)
            if dice.random() < 0.2:
                if dice.random() < 0.2:
                    own.hdel("database", key)
                else:
                    own.hset("database", key, f"{number}:{step}")
                own.execute_command(*dice.choice([("CACHE.DEL", key), ("DEL", key), ("CACHE.DEL", key, "GRACE", 5)]))
            elif dice.random() < 0.1:
                near.get_many(KEYS, load_many)
            else:
                near.get(key, load)
            if number == 0 and not is_deaf and step % 50 == 49:
                kill_one_of(near, own, dice)
        barrier.wait(WAIT_SECONDS)
        time.sleep(0.2 if is_deaf else QUIET_SECONDS)
        for _ in range(2):
            for key in KEYS:
                if near.get(key, load) != load(key):
                    found.put((number, key))


def kill_one_of(near, client, dice):
    """The server closes one of the two connections of the near cache."""
    inbox = str(next(iter(near._sessions.values()))._inbox_id)
    ids = [one["id"] for one in client.client_list() if inbox in (one["id"], one["redir"])]
    if ids:
        client.execute_command("CLIENT", "KILL", "ID", dice.choice(ids))


def stale_reads(is_deaf):
    context = multiprocessing.get_context("fork")
    barrier, found = context.Barrier(PROCESSES), context.Queue()
    workers = [
        context.Process(target=work, args=(number, is_deaf, barrier, found)) for number in range(PROCESSES)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    stale = []
    while not found.empty():
        stale.append(found.get())
    return stale


def test_after_random_writes_no_process_serves_an_old_value(admin):
    assert stale_reads(False) == []


def test_a_near_cache_that_hears_no_invalidation_is_found(admin):
    # A worker without a message for two seconds trusts no entry, so a stall of the machine can hide the old values.
    assert any(stale_reads(True) for _ in range(3))


def test_a_hit_costs_no_round_trip(admin):
    own = classes()[0](port=PORT, protocol=PROTOCOL)
    with Sluice(own) as sluice:
        near = sluice.cache.near()
        reads = {"near cache": near.get, "without it": sluice.cache.get}
        rates = {}
        for name, read in reads.items():
            for key in KEYS:
                read(key, lambda key: "value")
            before = fetches(own)
            start, count = time.perf_counter(), 0
            for _ in range(100):
                for key in KEYS:
                    assert read(key, lambda key: "value") is not None
                count += len(KEYS)
            rates[name] = count / (time.perf_counter() - start)
            sent = fetches(own) - before
            # A process that stood still for two seconds trusts no entry, and fetches all of them again.
            assert sent < count / 10 if name == "near cache" else sent == count
    print(", ".join(f"{name}: {rate:,.0f} hits a second" for name, rate in rates.items()))


def fetches(client):
    calls = {name.lower(): one["calls"] for name, one in client.info("commandstats").items()}
    return calls["cmdstat_cache.fetch"]


def test_a_lost_server_costs_only_its_own_entries():
    map, here, there = NearMap(10), object(), object()
    for name, session in ("a", here), ("b", there):
        map.put(name, name, float("inf"), map.ask(name, session))
    late = map.ask("c", here)
    map.clear(here)
    map.put("c", "c", float("inf"), late)  # the reply to a request before the loss
    assert map.get("a") is None and map.get("b")[0] == "b" and map.get("c") is None
    assert map.has(there) and not map.has(here)
