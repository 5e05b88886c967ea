"""The cache backend for Django."""

import concurrent.futures
import threading

import django
import pytest
from django.conf import settings
from django.core.cache import caches

from settings import CLIENT, PORT

settings.configure(CACHES={
    name: {
        "BACKEND": "sluice.django.SluiceCache",
        "LOCATION": f"redis://127.0.0.1:{PORT}",
        "OPTIONS": {"library": CLIENT},
        "KEY_PREFIX": prefix,
    } for name, prefix in (("default", ""), ("other", "o*"))})
django.setup()

from sluice import CommandError  # noqa: E402
from sluice.django import SluiceCache, cached  # noqa: E402  # Django must have its settings


@pytest.fixture
def cache(admin):
    return caches["default"]


def in_threads(run, count):
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return [handle.result(60) for handle in [pool.submit(run) for _ in range(count)]]


def test_the_interface_of_a_cache(cache, admin):
    assert cache.get("k", "default") == "default"
    cache.set("k", {"a": [1, None]}, 60)
    assert cache.get("k") == {"a": [1, None]} and "k" in cache and 55 < admin.pttl(":1:k") / 1000 <= 60
    assert cache.add("k", 1) is False and cache.add("new", 1) is True and cache.add("gone", 1, timeout=0) is True
    assert cache.touch("k", 600) is True and admin.pttl(":1:k") > 500_000 and cache.touch("none") is False
    cache.set("n", 1, 600)
    assert cache.incr("n", 4) == 5 and cache.decr("n") == 4 and admin.pttl(":1:n") > 500_000
    with pytest.raises(ValueError):
        cache.incr("none")
    assert cache.set_many({"a": 1, "b": None}, None) == [] and cache.get_many(["a", "b", "c"]) == {"a": 1, "b": None}
    assert admin.pttl(":1:a") > 300_000_000_000
    cache.set("a", 2, 0)
    cache.delete_many(["b"])
    assert cache.get_many(["a", "b"]) == {} and cache.delete("k") is True and cache.delete("k") is False


def test_a_missing_value_is_computed_once(cache):
    runs = []

    def compute():
        runs.append(1)
        threading.Event().wait(0.05)
        return "value"

    assert in_threads(lambda: caches["default"].get_or_set("k", compute), 20) == ["value"] * 20 and runs == [1]

    def fail():
        raise KeyError

    with pytest.raises(KeyError):
        cache.get_or_set("f", fail)
    assert cache.get_or_set("f", "now") == "now"


def test_changes_of_many_threads_are_not_lost(cache):
    cache.set("n", 0)
    in_threads(lambda: caches["default"].incr("n"), 20)
    assert cache.get("n") == 20
    assert sum(in_threads(lambda: caches["default"].add("one", 1), 20)) == 1


def test_a_change_that_fails_stops_no_other(cache, admin):
    cache.set("text", "text")
    for _ in range(2):
        with pytest.raises(TypeError):
            cache.incr("text")
        assert admin.info("sluice")["sluice_cache_leases_now"] == 0
    assert cache.touch("text", 60) and cache.get("text") == "text"


def test_a_refused_store_stops_no_other(cache, admin):
    cache.set("n", 1)
    admin.config_set("maxmemory", 1)
    try:
        for change in lambda: cache.incr("n"), lambda: cache.add("new", 1), lambda: cache.touch("n", 60):
            with pytest.raises(CommandError):
                change()
            assert admin.info("sluice")["sluice_cache_leases_now"] == 0
    finally:
        admin.config_set("maxmemory", 0)
    admin.persist(cache.make_key("n"))
    assert cache.incr("n") == 2


def test_clearing_leaves_locks_and_other_caches(cache, admin):
    caches["other"].set("k", 1)
    cache.sluice.stock.create("sku", 1)
    caches["other"].clear()
    assert caches["other"].get("k") is None
    cache.set("k", 1)
    caches["other"].clear()
    assert cache.get("k") == 1
    cache.clear()
    assert cache.get("k") is None and admin.exists("sku")


def test_the_results_of_a_function_are_cached(cache):
    runs = []

    @cached(600)
    def square(number, *, sign=1):
        runs.append(number)
        return sign * number * number

    assert [square(3), square(3), square(3, sign=-1)] == [9, 9, -9] and runs == [3, 3]
    assert square.invalidate(3) is True and square(3) == 9 and runs == [3, 3, 3]
    assert cache.get(square.key(3)) == 9


def test_a_value_whose_reply_is_lost_is_stored_once(admin, proxy):
    cache = SluiceCache(f"redis://127.0.0.1:{proxy.port}", {"OPTIONS": {"library": CLIENT}})
    for write in (lambda: cache.set("k", 1)), (lambda: cache.set_many({"k": 1, "l": 2})):
        proxy.loses = ["CACHE.SET"]
        proxy.meanwhile = lambda: admin.delete(":1:k")
        with pytest.raises(cache.sluice.library.broken):
            write()
        assert cache.get("k") is None
    assert cache.get("l") == 2
