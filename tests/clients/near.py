"""The near cache of examples/clients/python: python near.py <server>. Run by tests/clients/main.rs."""

import multiprocessing
import os
import pathlib
import random
import sys
import time

import redis

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples/clients/python"))
sys.dont_write_bytecode = True
from near import NearCache, get_many  # noqa: E402
from shop import LoaderFailed  # noqa: E402

PORT = int(sys.argv[1])
PROCESSES = 8
STEPS = int(os.environ.get("SLUICE_NEAR_STEPS", "400"))
KEYS = [f"key:{number}" for number in range(20)]

client = redis.Redis(port=PORT, decode_responses=True)


class Deaf(NearCache):
    """One that misses all invalidations: the checker must find it."""

    def _invalidate(self, push):
        pass


def eventually(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def commands():
    return client.info("stats")["total_commands_processed"]


def a_hit_costs_no_round_trip():
    client.flushall()
    near, loads = NearCache(client, check_ms=600_000), []
    load = lambda key: loads.append(key) or "v"
    none = lambda key: loads.append(key)
    for _ in range(3):
        assert near.get("k", load) == "v" and near.get("none", none) is None
    assert loads == ["k", "none"]
    before = commands()
    for _ in range(1000):
        assert near.get("k", load) == "v" and near.get("none", none) is None
    assert commands() - before < 10 and near.hits >= 2000
    near.close()


def an_invalidation_reaches_values_and_negative_entries():
    client.flushall()
    near, database = NearCache(client), {"k": "old"}
    for change in (
        lambda key: client.execute_command("CACHE.DEL", key),
        lambda key: client.delete(key),
        lambda key: client.flushall(),
        lambda key: client.execute_command("CACHE.DEL", key, "GRACE", 1),
    ):
        for key, old, new in (("k", "old", "new"), ("n", None, "now")):
            database[key] = old
            client.flushall()
            for _ in range(3):
                near.get(key, database.get)
            assert name(key) in near._entries
            database[key] = new
            change(key)
            eventually(lambda: near.get(key, database.get) == new)
    near.close()


def name(key):
    return key.encode()


def a_lost_connection_empties_the_map():
    client.flushall()
    near, database = NearCache(client), {"k": "old"}
    for _ in range(2):
        near.get("k", database.get)
    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    database["k"] = "new"
    client.execute_command("CACHE.DEL", "k")
    assert near.get("k", database.get) == "new"
    near.close()


def what_is_fresh_for_a_moment_is_kept_no_longer():
    client.flushall()
    near = NearCache(client)
    client.execute_command("CACHE.SET", "k", "old", "PX", 100, "STALE", 600_000)
    near.get("k", lambda key: "new")
    eventually(lambda: near.get("k", lambda key: "new") == "new")
    near.close()


def the_map_is_bounded():
    client.flushall()
    near = NearCache(client, size=5)

    # The invalidation of a stored value may come after the value was read again.
    def is_full():
        near.get_many(KEYS, lambda keys: {key: key for key in keys})
        assert len(near._entries) <= 5
        return len(near._entries) == 5

    eventually(is_full)
    near.close()


def many_keys_are_loaded_at_once():
    client.flushall()
    asked = []

    def load(keys):
        asked.append(sorted(keys))
        return {key: key.upper() for key in keys if key != "b"}

    for _ in range(2):
        assert get_many(client, ["a", "b", "a", "c"], load) == {"a": "A", "b": None, "c": "C"}
    assert asked == [["a", "b", "c"]]
    # A key that another caller loads is waited for in the second round, and no lease waits with it.
    _, _, token = client.execute_command("CACHE.FETCH", "x", "LEASE", 300)
    assert get_many(client, ["x", "y"], load) == {"x": "X", "y": "Y"}
    assert asked[1:] == [["y"], ["x"]]

    def fail(keys):
        raise ValueError("the database is down")

    try:
        get_many(client, ["d", "e"], fail)
        raise AssertionError("it failed")
    except ValueError:
        pass
    try:
        get_many(client, ["d", "e"], load)
        raise AssertionError("it failed a moment ago")
    except LoaderFailed:
        pass


def work(number, kind, barrier, found):
    """Reads and writes at random, then reads everything when all are quiet. The database is a hash."""
    own = redis.Redis(port=PORT, decode_responses=True)
    near, dice = kind(own, check_ms=600_000), random.Random(number)
    load = lambda key: own.hget("database", key)
    kills = kind is NearCache and number == 0
    for step in range(STEPS):
        key = dice.choice(KEYS)
        if dice.random() < 0.2:
            if dice.random() < 0.2:
                own.hdel("database", key)
            else:
                own.hset("database", key, f"{number}:{step}")
            own.execute_command(*dice.choice([("CACHE.DEL", key), ("DEL", key), ("CACHE.DEL", key, "GRACE", 5)]))
        elif dice.random() < 0.1:
            near.get_many(KEYS, lambda keys: {key: load(key) for key in keys})
        else:
            near.get(key, load)
        if kills and step % 100 == 99:
            connection = near._connection
            if connection is not None:
                connection._sock.shutdown(2)
    barrier.wait()
    time.sleep(0.5)
    for _ in range(2):
        for key in KEYS:
            if near.get(key, load) != load(key):
                found.put((number, key))
    near.close()


def stale_reads(kind):
    client.flushall()
    barrier, found = multiprocessing.Barrier(PROCESSES), multiprocessing.Queue()
    workers = [
        multiprocessing.Process(target=work, args=(number, kind, barrier, found)) for number in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    stale = []
    while not found.empty():
        stale.append(found.get())
    return stale


def after_random_writes_of_eight_processes_nobody_serves_an_old_value():
    assert stale_reads(NearCache) == []


def a_near_cache_that_hears_no_invalidation_is_found():
    assert stale_reads(Deaf) != []


TESTS = [
    a_hit_costs_no_round_trip,
    an_invalidation_reaches_values_and_negative_entries,
    a_lost_connection_empties_the_map,
    what_is_fresh_for_a_moment_is_kept_no_longer,
    the_map_is_bounded,
    many_keys_are_loaded_at_once,
    after_random_writes_of_eight_processes_nobody_serves_an_old_value,
    a_near_cache_that_hears_no_invalidation_is_found,
]

if __name__ == "__main__":
    for test in TESTS:
        test()
        print(test.__name__, flush=True)
