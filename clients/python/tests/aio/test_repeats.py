"""Lost replies: another client acts before this one notices. A repetition must not undo what the other client did."""

import threading
import time

import pytest

from settings import PORT, classes
from sluice import LockLost, Policy, Rate, Refusal

from .helpers import eventually, finish, start

RATE = Rate(1, 3600, burst=9)


def prepare(admin):
    admin.execute_command("CACHE.BREAKER", "database", "RESET")
    fail(admin)
    for words in (
        "STOCK.SET sku 10", "STOCK.RESERVE sku 2 ORDER reserved PX 600000", "STOCK.DEDUCT sku 1 ORDER sold", "SET counter 7",
        "RATE.GCRA charged 9 1 3600000 COST 4", "DELAY.SET queue STREAM stream",
        "DELAY.ADD queue waiting PX 600000 VALUES text old", "BF.RESERVE part 0.01 1000", "BF.RESERVE all LIKE part", "BF.ADD part ann",
        "CF.ADD names ann", "CF.ADD names bob",
    ):
        admin.execute_command(*words.split())


def fail(admin):
    """A loader of another client fails, and its breaker opens."""
    token = admin.execute_command("CACHE.FETCH", "failing", "LEASE", 600_000, "BREAKER", "database", 1, 600_000)[2]
    admin.execute_command("CACHE.FAIL", "failing", token)


def remaining(admin, key="limit"):
    return admin.execute_command("RATE.GCRA", key, 9, 1, 3_600_000, "PEEK")[2]


def delay_info(admin, field):
    words = admin.execute_command("DELAY.INFO", "queue")
    return words[words.index(field) + 1]


# What a client does once: the command, the call, what another client does meanwhile, and whether its effect is still there.
ONCE = {
    "a stock that replaces another": (
        "STOCK.SET", lambda s: s.stock.create("sku", 5, replace=True), lambda a: a.execute_command("STOCK.DEDUCT", "sku", 1, "ORDER", "new"),
        lambda a: a.execute_command("STOCK.GET", "sku") == 4 and a.execute_command("STOCK.ORDER", "sku", "new")),
    "a counter that becomes a stock": (
        "STOCK.IMPORT", lambda s: s.stock.import_counter("counter"), lambda a: a.execute_command("STOCK.DEDUCT", "counter", 1),
        lambda a: a.execute_command("STOCK.GET", "counter") == 6),
    "a cached value": (
        "CACHE.SET", lambda s: s.cache.set("value", "old"), lambda a: a.execute_command("CACHE.DEL", "value"),
        lambda a: a.execute_command("CACHE.GET", "value") is None),
    "a cached value with a version": (
        "CACHE.SET", lambda s: s.cache.set("value", "old", version=1), lambda a: a.execute_command("CACHE.DEL", "value"),
        lambda a: a.execute_command("CACHE.GET", "value") is None),
    "a negative entry": (
        "CACHE.SETNULL", lambda s: s.cache.set("value", None), lambda a: a.execute_command("CACHE.SET", "value", "new", "PX", 600_000),
        lambda a: a.execute_command("CACHE.GET", "value") == "new"),
    "a queue": (
        "DELAY.SET", lambda s: s.delay.create("queue", "old"), lambda a: a.execute_command("DELAY.SET", "queue", "STREAM", "new"),
        lambda a: delay_info(a, "stream") == "new"),
    "a message of now": (
        "DELAY.ADD", lambda s: s.delay.add("queue", "new", {"a": 1}), lambda a: wait_for_delivery(a),
        lambda a: (delay_info(a, "delivered"), delay_info(a, "messages")) == (1, 1)),
    "a message of the past": (
        "DELAY.ADD", lambda s: s.delay.add("queue", "new", {"a": 1}, at=1.0), lambda a: wait_for_delivery(a),
        lambda a: (delay_info(a, "delivered"), delay_info(a, "messages")) == (1, 1)),
    "a message of soon": (
        "DELAY.ADD", lambda s: s.delay.add("queue", "new", {"a": 1}, seconds=0.001), lambda a: wait_for_delivery(a),
        lambda a: (delay_info(a, "delivered"), delay_info(a, "messages")) == (1, 1)),
    "a message that is canceled": (
        "DELAY.ADD", lambda s: s.delay.add("queue", "new", {"a": 1}, seconds=600),
        lambda a: a.execute_command("DELAY.CANCEL", "queue", "new"), lambda a: a.execute_command("DELAY.GET", "queue", "new") is None),
    "a canceled message that is added again": (
        "DELAY.CANCEL", lambda s: s.delay.cancel("queue", "waiting"),
        lambda a: a.execute_command("DELAY.ADD", "queue", "waiting", "PX", 600_000, "VALUES", "text", "new"),
        lambda a: a.execute_command("DELAY.GET", "queue", "waiting")),
    "a merged filter": (
        "BF.MERGE", lambda s: s.bloom.merge("all", ["part"]), lambda a: a.execute_command("BF.ADD", "all", "eve"),
        lambda a: a.execute_command("BF.CARD", "all") == 2),
    "a reserved filter": (
        "BF.RESERVE", lambda s: s.bloom.reserve("new", 0.01, 1000), lambda a: a.execute_command("BF.ADD", "new", "eve"),
        lambda a: a.execute_command("BF.EXISTS", "new", "eve")),
    "a reserved cuckoo filter": (
        "CF.RESERVE", lambda s: s.cuckoo.reserve("new", 1000), lambda a: a.execute_command("CF.ADD", "new", "eve"),
        lambda a: a.execute_command("CF.EXISTS", "new", "eve")),
    "an item that is added once more": (
        "CF.ADD", lambda s: s.cuckoo.add("names", "eve"), lambda a: a.execute_command("CF.DEL", "names", "eve"),
        lambda a: not a.execute_command("CF.EXISTS", "names", "eve")),
    "a new item that is deleted": (
        "CF.ADDNX", lambda s: s.cuckoo.add_new("names", "eve"), lambda a: a.execute_command("CF.DEL", "names", "eve"),
        lambda a: not a.execute_command("CF.EXISTS", "names", "eve")),
    "a deleted item that is added again": (
        "CF.DEL", lambda s: s.cuckoo.delete("names", "ann"), lambda a: a.execute_command("CF.ADD", "names", "ann"),
        lambda a: a.execute_command("CF.EXISTS", "names", "ann")),
    "a limit": (
        "RATE.GCRA", lambda s: s.limit.gcra("limit", RATE), lambda a: a.execute_command("RATE.GCRA", "limit", 9, 1, 3_600_000),
        lambda a: remaining(a) == 8),
    "a limit in a window": (
        "RATE.WINDOW", lambda s: s.limit.window("window", 10, 3600), lambda a: a.execute_command("RATE.WINDOW", "window", 10, 3_600_000),
        lambda a: a.execute_command("RATE.WINDOW", "window", 10, 3_600_000, "PEEK")[2] == 8),
    "several limits of a key": (
        "RATE.TIERS", lambda s: s.limit.tiers("tiers", [RATE]), lambda a: a.execute_command("RATE.TIERS", "tiers", 1, 9, 1, 3_600_000),
        lambda a: a.execute_command("RATE.TIERS", "tiers", 1, 9, 1, 3_600_000, "PEEK")[2] == 8),
    "the limits of several keys": (
        "RATE.MGCRA", lambda s: s.limit.many({"limit": RATE}), lambda a: a.execute_command("RATE.GCRA", "limit", 9, 1, 3_600_000),
        lambda a: remaining(a) == 8),
    "a charge": (
        "RATE.CHARGE", lambda s: s.limit.charge("charged", 1), lambda a: a.execute_command("RATE.CHARGE", "charged", 1),
        lambda a: remaining(a, "charged") == 4),
    "a refund": (
        "RATE.REFUND", lambda s: s.limit.refund("charged", 1), lambda a: a.execute_command("RATE.REFUND", "charged", 1),
        lambda a: remaining(a, "charged") == 8),
    "a breaker that opens again": (
        "CACHE.BREAKER", lambda s: s.cache.reset_breaker("database"), fail,
        lambda a: "open" in a.execute_command("CACHE.BREAKER", "database")),
    "a filter like another": (
        "BF.RESERVE", lambda s: s.bloom.reserve("new", like="part"), lambda a: a.execute_command("BF.ADD", "new", "eve"),
        lambda a: a.execute_command("BF.EXISTS", "new", "eve")),
    "the first of several": (
        "RATE.ONCE", lambda s: s.limit.first("first", 600), lambda a: a.delete("first"), lambda a: not a.exists("first")),
}


def wait_for_delivery(admin):
    deadline = time.monotonic() + 60
    while not delay_info(admin, "delivered"):
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("what", ONCE)
async def test_a_command_that_is_not_idempotent_is_sent_once(make, admin, proxy, what):
    prepare(admin)
    command, call, other, is_there = ONCE[what]
    happened = []
    proxy.loses = [command]
    proxy.meanwhile = lambda: happened.append(other(admin))
    sluice = make(proxy.port)  # the client of redis-py repeats commands by itself
    with pytest.raises(sluice.library.broken):
        await call(sluice)
    assert len(happened) == 1 and is_there(admin)


def take_again(admin):
    """Another client gets the lock after the release, with the same name of its owner."""
    admin.execute_command("LOCK.ACQUIRE", "lock", "me", "PX", 600_000)


def begin(admin, key="job"):
    return admin.execute_command("ONCE.BEGIN", key, "LEASE", 600_000)[2]


# What a client repeats: the command, the call, what another client does meanwhile, the result, and whether the other effect is there.
REPEATED = {
    "a new stock": (
        "STOCK.SET", lambda s: s.stock.create("new", 5), lambda a: a.execute_command("STOCK.DEDUCT", "new", 1),
        lambda created: not created, lambda a: a.execute_command("STOCK.GET", "new") == 4),
    "a sale": (
        "STOCK.DEDUCT", lambda s: s.stock.deduct("sku", order="1"), lambda a: a.execute_command("STOCK.DEDUCT", "sku", 1, "ORDER", "2"),
        lambda reply: reply.quantity == 6, lambda a: a.execute_command("STOCK.GET", "sku") == 5),
    "a sale that is canceled": (
        "STOCK.DEDUCT", lambda s: s.stock.deduct("sku", order="1"), lambda a: a.execute_command("STOCK.CANCEL", "sku", "1"),
        lambda reply: reply.refusal is Refusal.CLOSED, lambda a: a.execute_command("STOCK.GET", "sku") == 7),
    "a reservation that is canceled": (
        "STOCK.RESERVE", lambda s: s.stock.reserve("sku", order="1", seconds=600), lambda a: a.execute_command("STOCK.CANCEL", "sku", "1"),
        lambda reply: reply.refusal is Refusal.CLOSED, lambda a: a.execute_command("STOCK.GET", "sku") == 7),
    "a confirmation that is canceled": (
        "STOCK.CONFIRM", lambda s: s.stock.confirm("sku", "reserved"), lambda a: a.execute_command("STOCK.CANCEL", "sku", "reserved"),
        lambda reply: reply.refusal is Refusal.CLOSED, lambda a: a.execute_command("STOCK.GET", "sku") == 9),
    "a cancellation": (
        "STOCK.CANCEL", lambda s: s.stock.cancel("sku", "sold"), lambda a: a.execute_command("STOCK.DEDUCT", "sku", 8),
        lambda reply: reply.quantity == 1, lambda a: a.execute_command("STOCK.GET", "sku") == 0),
    "more pieces": (
        "STOCK.ADD", lambda s: s.stock.add("sku", 3, order="more"), lambda a: a.execute_command("STOCK.DEDUCT", "sku", 10),
        lambda reply: reply.quantity == 10, lambda a: a.execute_command("STOCK.GET", "sku") == 0),
    "a sale of several stocks": (
        "STOCK.MDEDUCT", lambda s: s.stock.deduct_many({"sku": 1}, order="1"), lambda a: a.execute_command("STOCK.MCANCEL", 1, "sku", "1"),
        lambda reply: reply["sku"].refusal is Refusal.CLOSED, lambda a: a.execute_command("STOCK.GET", "sku") == 7),
    "a deleted value": (
        "CACHE.DEL", lambda s: s.cache.delete("value"), lambda a: a.execute_command("CACHE.SET", "value", "new", "PX", 600_000),
        lambda existed: existed, lambda a: a.execute_command("CACHE.GET", "value") is None),  # a miss: the next caller loads it
    "an item of a Bloom filter": (
        "BF.ADD", lambda s: s.bloom.add("part", "eve"), lambda a: a.execute_command("BF.ADD", "part", "bob"),
        lambda is_new: not is_new, lambda a: a.execute_command("BF.CARD", "part") == 3),
    "a fence": (
        "LOCK.GUARD", lambda s: s.guard("guard", 5), lambda a: a.execute_command("LOCK.GUARD", "guard", 6),
        lambda passed: not passed, lambda a: a.get("guard") == "6"),
}


@pytest.mark.parametrize("what", REPEATED)
async def test_an_idempotent_command_is_repeated(make, admin, proxy, what):
    prepare(admin)
    command, call, other, is_expected, is_there = REPEATED[what]
    happened = []
    proxy.loses = [command]
    proxy.meanwhile = lambda: happened.append(other(admin))
    assert is_expected(await call(make(proxy.port)))
    assert len(happened) == 1 and is_there(admin)


async def test_a_loaded_value_that_is_deleted_stays_deleted(make, admin, proxy):
    sluice = make(proxy.port)

    async def load(key):
        return "old"

    proxy.loses = ["CACHE.SET"]
    proxy.meanwhile = lambda: admin.execute_command("CACHE.DEL", "value")
    assert await sluice.cache.get("value", load) == "old"
    assert not proxy.loses and admin.execute_command("CACHE.GET", "value") is None


async def test_work_that_another_worker_began_again_is_not_ended(make, admin, proxy):
    sluice = make(proxy.port)
    token = (await sluice.once.begin("job", lease=600)).token
    proxy.loses = ["ONCE.FAIL"]
    proxy.meanwhile = lambda: begin(admin)
    assert await sluice.once.fail("job", token) is False
    assert not proxy.loses and (await sluice.once.info("job"))["state"] == "busy"


async def test_the_release_of_a_lock_does_not_end_a_later_hold_of_the_same_owner(make, admin, proxy):
    sluice = make(proxy.port)
    for family, lock in ("LOCK", sluice.lock("lock", owner="me")), ("SEM", sluice.semaphore("permits", 1, owner="me")):
        key, limit = lock.keys[0], ["LIMIT", 1] if family == "SEM" else []
        assert await lock.acquire()
        proxy.loses = [f"{family}.RELEASE"]
        proxy.meanwhile = lambda: admin.execute_command(f"{family}.ACQUIRE", key, "me", *limit, "PX", 600_000)
        await lock.release()
        assert not proxy.loses and admin.exists(key)


async def test_a_lock_that_ended_before_its_lost_release_is_lost(make, admin, proxy):
    sluice = make(proxy.port)
    lock = sluice.lock("lock", owner="me", linger=False)
    assert await lock.acquire()
    proxy.loses = ["LOCK.RELEASE"]
    with pytest.raises(LockLost):
        await lock.release()
    await eventually(lambda: not admin.exists("lock"))


async def fill(sluice, admin, seconds=0.6):
    """Occupies the only connection of the client. `seconds`: for how long; `None`: until the test adds an item to `no list`."""

    async def wait():
        await sluice.client.execute_command("BLPOP", "no list", 120)

    handle = start(wait)
    await eventually(lambda: admin.info("clients")["blocked_clients"] == 1)
    if seconds is not None:
        other = classes()[0](port=PORT)
        threading.Timer(seconds, lambda: other.rpush("no list", "end")).start()
    return handle


@pytest.mark.parametrize("raises", ["at once", "later"])
async def test_the_end_of_work_waits_for_a_free_connection(make_small, admin, raises):
    sluice = make_small(raises)
    handles = []

    async def work(token):
        handles.append(await fill(sluice, admin))
        return "charged"

    async def fail(token):
        handles.append(await fill(sluice, admin))
        raise KeyError

    assert await sluice.once.run("done", work, lease=600) == "charged"
    assert (await sluice.once.begin("done", lease=600)).result == "charged"
    with pytest.raises(KeyError):
        await sluice.once.run("failed", fail, lease=600)
    assert not admin.exists("failed")
    ends = {"begun": lambda token: sluice.once.done("begun", token, "r"), "freed": lambda token: sluice.once.fail("freed", token)}
    for key, end in ends.items():
        begun = await sluice.once.begin(key, lease=600)
        handles.append(await fill(sluice, admin))
        assert await end(begun.token)
    for handle in handles:
        await finish(handle)


@pytest.mark.parametrize("raises", ["at once", "later"])
async def test_the_end_of_a_load_waits_for_a_free_connection(make_small, admin, raises):
    sluice = make_small(raises)
    handles = []
    policy = Policy(lease=600, backoff=600)

    async def load(key):
        handles.append(await fill(sluice, admin))
        return "value"

    async def load_many(keys):
        return {key: await load(key) for key in keys[:1]}

    async def fail(key):
        handles.append(await fill(sluice, admin))
        raise KeyError

    assert await sluice.cache.get("one", load, policy) == "value"
    assert admin.execute_command("CACHE.GET", "one") == "value"
    assert await sluice.cache.get_many(["a", "b"], load_many, policy) == {"a": "value", "b": None}
    assert admin.execute_command("CACHE.GET", "a") == "value"
    with pytest.raises(KeyError):
        await sluice.cache.get("failed", fail, policy)
    assert admin.info("sluice")["sluice_cache_leases_now"] == 0
    for handle in handles:
        await finish(handle)


@pytest.mark.parametrize("raises", ["at once", "later"])
async def test_the_end_of_work_waits_for_a_free_connection_until_its_lease_has_ended(make_small, admin, raises):
    sluice = make_small(raises)
    handles = []

    async def work(token):
        handles.append(await fill(sluice, admin, None))
        return "charged"

    began = time.monotonic()
    with pytest.raises(sluice.library.broken):
        await sluice.once.run("k", work, lease=0.5)
    assert time.monotonic() - began > 0.5
    admin.rpush("no list", "end")
    await finish(handles[0])


async def test_a_call_that_ends_nothing_does_not_wait_long_for_a_free_connection(make_small, admin):
    sluice = make_small("at once")
    handle = await fill(sluice, admin, None)
    with pytest.raises(sluice.library.broken):
        await sluice.once.begin("k", lease=600)
    with pytest.raises(sluice.library.broken):
        await sluice.limit.gcra("limit", RATE)
    admin.rpush("no list", "end")
    await finish(handle)


async def test_the_client_knows_the_errors_of_a_request_that_was_not_sent(make_small, admin):
    for raises in "at once", "later":
        sluice = make_small(raises)
        handle = await fill(sluice, admin, None)
        with pytest.raises(sluice.library.broken) as error:
            await sluice.cache.read("k")
        assert sluice.library.is_unsent(error.value)
        admin.rpush("no list", "end")
        await finish(handle)
    assert not sluice.library.is_unsent(sluice.library.connection_error("Connection closed by server."))
