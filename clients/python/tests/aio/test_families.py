"""Stock, limits, idempotency keys, delay queues and filters."""

import pytest

from sluice import CommandError, Conflict, FilterError, NoSuchQueue, OutcomeUnknown, Policy, Rate, Refusal, WrongType

from .helpers import eventually, finish, pause, start, together


async def test_a_stock_refuses_and_repeats_replies(sluice):
    stock = sluice.stock
    assert await stock.create("sku", 2, per_user=1, retain=60)
    assert not await stock.create("sku", 5)
    for _ in range(2):
        reply = await stock.deduct("sku", order="a", user="ann")
        assert reply and reply.quantity == 1
    for order, user, refusal in (("b", "ann", Refusal.OVER_USER_LIMIT),):
        reply = await stock.deduct("sku", order=order, user=user)
        assert not reply and reply.refusal is refusal
    reply = await stock.reserve("sku", order="c", seconds=600, user="bob")
    assert reply and reply.quantity == 0
    assert (await stock.deduct("sku", order="d", user="eve")).refusal is Refusal.SOLD_OUT
    assert (await stock.order("sku", "c"))["qty"] == 1
    assert (await stock.cancel("sku", "c")).quantity == 1
    assert (await stock.confirm("sku", "c")).refusal is Refusal.CLOSED
    assert (await stock.deduct("none", order="x")).refusal is Refusal.UNKNOWN
    with pytest.raises(Conflict):
        await stock.deduct("sku", 2, order="a", user="ann")
    assert await stock.add("sku", 3, order="more")
    assert await stock.get("sku") == 4 and await stock.get("none") is None
    assert await stock.get_many(["sku", "none"]) == {"sku": 4, "none": None}
    assert (await stock.info("sku"))["total"] == 5
    assert await stock.create("sku", 1, replace=True, events="log", max_events=10)
    assert (await stock.info("sku"))["total"] == 1


async def test_several_stocks_change_together(sluice):
    stock = sluice.stock
    await stock.create("a", 1)
    await stock.create("b", 2)
    replies = await stock.deduct_many({"a": 1, "b": 1}, order="1")
    assert replies and replies["b"].quantity == 1
    replies = await stock.reserve_many({"b": 1, "a": 1}, order="2", seconds=60)
    assert not replies and replies["a"].refusal is Refusal.SOLD_OUT and replies["b"]
    assert await stock.get_many(["a", "b"]) == {"a": 0, "b": 1}
    assert await stock.cancel_many(["a", "b"], "1")
    assert await stock.reserve_many({"b": 1, "a": 1}, order="3", seconds=60)
    assert await stock.confirm_many(["a", "b"], "3")
    assert await stock.get_many(["a", "b"]) == {"a": 0, "b": 1}


async def test_a_counter_becomes_a_stock(sluice, admin):
    admin.set("counter", 7)
    assert (await sluice.stock.import_counter("counter", per_user=1)).quantity == 7


async def test_a_sale_whose_reply_is_lost_sells_once(make, admin, proxy):
    proxy.loses = ["STOCK.DEDUCT", "ONCE.BEGIN", "ONCE.DONE", "CACHE.SET"]
    sluice = make(proxy.port)
    await sluice.stock.create("sku", 10)
    assert (await sluice.stock.deduct("sku", order="1")).quantity == 9
    assert admin.execute_command("STOCK.GET", "sku") == 9

    async def work(token):
        return "result"

    assert await sluice.once.run("o", work, lease=8.0) == "result"

    async def load(key):
        return "value"

    assert await sluice.cache.get("c", load, Policy(lease=60)) == "value"
    assert admin.execute_command("CACHE.GET", "c") == "value"


async def test_limits(sluice):
    limit = sluice.limit
    rate = Rate(1, 600, burst=1)
    for is_allowed in True, True, False:
        reply = await limit.gcra("g", rate)
        assert bool(reply) is is_allowed
    assert reply.limit == 2 and 0 < reply.retry_after <= 600 and reply.remaining == 0
    assert not await limit.gcra("g", rate, peek=True)
    assert (await limit.gcra("g", rate, ahead=3600)).retry_after > 0
    assert await limit.refund("g", 2) and await limit.charge("g", 2) and not await limit.charge("none", 1)
    assert (await limit.window("w", 1, 600)).retry_after is None
    for kind in "FIXED", "SLIDING", "EXACT":
        replies = [bool(await limit.window(kind, 1, 600, kind=kind)) for _ in range(2)]
        assert replies == [True, False]
    assert (await limit.tiers("t", [Rate(10, 1, burst=9), Rate(1, 600)])).index == 1
    assert not await limit.tiers("t", [Rate(10, 1, burst=9), Rate(1, 600)])
    assert await limit.many({"u:ann": Rate(5, 600, burst=5), "ip": Rate(1, 600)})
    reply = await limit.many({"u:ann": Rate(5, 600, burst=5), "ip": Rate(1, 600)})
    assert not reply and reply.index == 1
    assert await limit.first("f", 600) and not await limit.first("f", 600)
    with pytest.raises(WrongType):
        await limit.window("g", 1, 600)


async def test_work_is_done_once(sluice):
    runs = []

    async def work(token):
        runs.append(token)
        await pause(0.02)
        return f"result {len(runs)}"

    async def call():
        return await sluice.once.run("o", work, fingerprint="f")

    assert set(await together(call, 20)) == {"result 1"} and len(runs) == 1
    with pytest.raises(Conflict):
        await sluice.once.run("o", work, fingerprint="g")
    assert (await sluice.once.info("o"))["result_bytes"] == 8

    async def fail(token):
        raise KeyError

    with pytest.raises(KeyError):
        await sluice.once.run("p", fail)
    assert await sluice.once.run("p", work) == "result 2"


async def test_work_whose_outcome_is_unknown_is_not_begun_again(sluice, admin):
    async def work(token):
        raise AssertionError("the first work can have been done")

    for number, error in enumerate((OutcomeUnknown("no answer"), TimeoutError("no answer"))):
        async def lose(token):
            raise error

        with pytest.raises(type(error)):
            await sluice.once.run(f"o{number}", lose, lease=600)
        assert admin.pttl(f"o{number}") > 500_000
        assert (await sluice.once.begin(f"o{number}", lease=600)).state == "BUSY"


async def test_the_error_of_work_is_raised_although_its_key_cannot_be_freed(sluice, admin):
    async def fail(token):
        admin.set("o", "a string")
        raise KeyError

    with pytest.raises(KeyError):
        await sluice.once.run("o", fail)


async def test_a_result_that_cannot_be_stored_keeps_the_key_busy(sluice, admin):
    for number, (result, name) in enumerate(((None, "None"), ({"charged": 30}, "a dict"), (True, "a bool"))):
        async def work(token):
            return result

        with pytest.raises(TypeError, match=f"work .*o{number}.* returned {name}.*json.dumps"):
            await sluice.once.run(f"o{number}", work, lease=600)
        assert (await sluice.once.begin(f"o{number}", lease=600)).state == "BUSY"  # the work has been done
    begun = await sluice.once.begin("steps", lease=600)
    with pytest.raises(TypeError, match="result .*steps.* None.*json.dumps"):
        await sluice.once.done("steps", begun.token, None)

    async def number(token):
        return 17

    assert [await sluice.once.run("number", number) for _ in range(2)] == ["17", "17"]  # a number becomes text


async def test_the_steps_of_work_that_is_done_once(sluice):
    once = sluice.once
    first = await once.begin("o", lease=60)
    assert first.state == "NEW" and first.token > 0
    assert (await once.begin("o", lease=60, wait=0.02)).state == "BUSY"
    assert await once.fail("o", first.token)
    second = await once.begin("o", lease=60)
    assert not await once.done("o", first.token, "late") and await once.done("o", second.token, "r")
    third = await once.begin("o", lease=60)
    assert third.state == "DONE" and third.result == "r" and third.seconds > 0


async def test_a_client_with_one_connection_is_not_blocked(make, admin):
    sluice = make(single_connection_client=True)
    begun = await sluice.once.begin("o", lease=60)

    async def load(key):
        return "v"

    async def wait():
        return (await sluice.once.begin("o", lease=60, wait=30)).state

    async def get():
        return await sluice.cache.get("c", load)

    token = admin.execute_command("CACHE.FETCH", "c", "LEASE", 60_000)[2]
    handles = [start(wait), start(get)]
    await pause(0.05)
    assert await sluice.once.done("o", begun.token, "r")
    admin.execute_command("CACHE.SET", "c", "other", "PX", 60_000, "TOKEN", token)
    assert [await finish(handle) for handle in handles] == ["DONE", "other"]


async def test_a_delayed_message_reaches_its_stream(sluice, admin):
    delay = sluice.delay
    with pytest.raises(NoSuchQueue):
        await delay.add("d", "1", {"a": 1}, seconds=1)
    await delay.create("d", "s", max_length=100)
    assert await delay.add("d", "1", {"a": 1}, seconds=600) is True
    assert await delay.add("d", "1", {"a": 2}, seconds=600) is False
    assert await delay.add("d", "1", {"a": 1}, only="NX") is None
    left, values = await delay.get("d", "1")
    assert 0 < left <= 600 and values == {"a": "2"} and await delay.get("d", "x") is None
    assert [id for id, _ in await delay.range("d", 10)] == ["1"]
    assert (await delay.info("d"))["messages"] == 1
    assert await delay.cancel("d", "1", "2") == 1
    await delay.add("d", "2", {"a": "b"}, at=1.0)
    await eventually(lambda: admin.xlen("s") == 1)
    assert admin.xrange("s")[0][1] == {"a": "b"}


async def test_filters(sluice):
    for family in sluice.bloom, sluice.cuckoo:
        key = type(family).__name__
        assert await family.add(key, "ann") is True
        assert await family.exists(key, "ann") is True
        assert await family.exists_many(key, ["ann", "bob"]) == [True, False]
        assert await family.info(key)
    bloom, cuckoo = sluice.bloom, sluice.cuckoo
    await bloom.reserve("b", 0.001, 1000, expansion=0)
    assert await bloom.add_many("b", ["ann", "bob", "ann"]) == [True, True, False]
    assert await bloom.count("b") == 2 and await bloom.count("none") == 0
    with pytest.raises(FilterError):
        await bloom.reserve("b", 0.001, 1000)
    with pytest.raises(FilterError):
        await bloom.merge("b", ["Bloom"])
    await bloom.reserve("d", like="b")
    await bloom.merge("d", ["b"])
    assert await bloom.count("d") == 2 and await bloom.exists("d", "ann")
    for arguments in {"like": "b", "capacity": 5}, {"capacity": 5}, {}:
        with pytest.raises(TypeError):
            await bloom.reserve("e", **arguments)
    with pytest.raises(FilterError):
        await bloom.reserve("e", like="none")
    await cuckoo.reserve("c", 1000, bits=32)
    assert await cuckoo.add_new("c", "ann") is True and await cuckoo.add_new("c", "ann") is False
    assert await cuckoo.count("c", "ann") == 1
    assert await cuckoo.delete("c", "ann") is True and await cuckoo.exists("c", "ann") is False


async def test_wrong_arguments_have_clear_errors(sluice):
    stock, limit = sluice.stock, sluice.limit
    await stock.create("sku", 5)
    for error, text, call in (
        (TypeError, "order must be .*None", lambda: stock.deduct("sku", order=None)),
        (TypeError, "order must be .*{}", lambda: stock.reserve("sku", order={}, seconds=60)),
        (TypeError, "order must be .*None", lambda: stock.confirm("sku", None)),
        (TypeError, "order must be .*None", lambda: stock.cancel("sku", None)),
        (TypeError, "order must be .*None", lambda: stock.add("sku", 1, order=None)),
        (TypeError, "order must be .*None", lambda: stock.deduct_many({"sku": 1}, order=None)),
        (TypeError, r"user must be .*\[\]", lambda: stock.deduct("sku", order="o", user=[])),
        (TypeError, "qty must be an int, not 'o'", lambda: stock.deduct("sku", "o", order="p")),
        (TypeError, "qty must be an int, not 1.5", lambda: stock.reserve("sku", 1.5, order="p", seconds=60)),
        (TypeError, "qty must be an int, not True", lambda: stock.deduct_many({"sku": True}, order="p")),
        (TypeError, "total must be an int", lambda: stock.create("sku", None)),
        (TypeError, "delta must be an int", lambda: stock.add("sku", "3", order="p")),
        (ValueError, "seconds must be greater than 0, not 0", lambda: stock.reserve("sku", order="p", seconds=0)),
        (ValueError, "seconds must be greater than 0, not -1.5", lambda: stock.reserve_many({"sku": 1}, order="p", seconds=-1.5)),
        (TypeError, "seconds must be a number", lambda: stock.reserve("sku", order="p", seconds=None)),
        (ValueError, "kind must be FIXED, SLIDING or EXACT, not 'ROLLING'", lambda: limit.window("w", 1, 60, kind="ROLLING")),
        (TypeError, "rate must be a Rate, .*tuple", lambda: limit.gcra("g", (1, 60))),
        (TypeError, "rate must be a Rate, .*tuple", lambda: limit.tiers("g", [(1, 60)])),
        (TypeError, "rate must be a Rate, .*int", lambda: limit.many({"g": 5})),
    ):
        with pytest.raises(error, match=text):
            await call()
    assert await stock.get("sku") == 5
    assert await stock.deduct("sku", order=17)  # a number becomes text
    assert await limit.window("w", 1, 60, kind="exact")


async def test_errors_have_types(sluice, admin):
    admin.set("string", "value")
    with pytest.raises(WrongType):
        await sluice.stock.deduct("string", order="1")
    with pytest.raises(CommandError):
        await sluice.stock.deduct("sku", -1, order="1")
    with pytest.raises(WrongType):
        await sluice.lock("string").acquire()
    with pytest.raises(TypeError):
        type(sluice)(object())
