"""A client of a cluster. The keys `foo` and `bar` are on different nodes."""

import pytest

from sluice import LockLost, Policy, Rate

from .helpers import LockSession, eventually, is_set, pause, together

KEYS = "bar", "foo"


async def test_locks_are_on_the_node_of_their_key(make_for, cluster):
    sluice = make_for(cluster)
    inside, most = 0, 0
    for key in KEYS:

        async def work():
            nonlocal inside, most
            async with sluice.lock(key, wait=60) as lock:
                inside += 1
                most = max(most, inside)
                await lock.check()
                await pause()
                inside -= 1

        await together(work, 20)
        async with sluice.lock_many([f"{{{key}}}:a", f"{{{key}}}:b"]), sluice.semaphore(f"{{{key}}}:s", 1):
            pass
        async with sluice.read_lock(key):
            assert await sluice.lock(key, wait=0).acquire() is False
    assert most == 1


async def test_a_loss_is_reported(make_for, cluster):
    sluice = make_for(cluster)
    for key in KEYS:
        with pytest.raises(LockLost):
            async with sluice.lock(key) as lock:
                await cluster.delete(key)
                assert await is_set(lock.lost)


async def test_a_loss_is_reported_while_a_lock_follows_its_slot(make_for, cluster, move_slot, monkeypatch):
    sluice = make_for(cluster)
    async with sluice.lock("foo"):
        pass  # the session of the other node is open: a new one would bind the lock itself
    lock = sluice.lock("bar", lease=600)
    await lock.acquire()
    call = LockSession.call
    losses = []

    async def lose_before_reading(session, *words):
        reply = await call(session, *words)
        if words[0] == "LOCK.ACQUIRE" and reply == lock.fence and not losses:
            losses.append(await cluster.delete("bar"))
            await pause(0.1)  # the session reads the message about the loss before the lock has the reply
        return reply

    monkeypatch.setattr(LockSession, "call", lose_before_reading)
    move_slot("bar")
    assert await is_set(lock.lost)
    assert losses == [1]
    with pytest.raises(LockLost):
        await lock.release()


async def test_commands_find_their_nodes(make_for, cluster):
    sluice = make_for(cluster)

    async def work(token):
        return "result"

    async def load(key):
        return "value"

    async def load_many(keys):
        return {key: "value" for key in keys}

    for key in KEYS:
        sku, other, user, job, queue = (f"{{{key}}}:{name}" for name in ("sku", "other", "user", "job", "queue"))
        await sluice.stock.create(sku, 10, replace=True)
        await sluice.stock.create(other, 10, replace=True)
        assert (await sluice.stock.deduct(sku, order="1")).quantity == 9
        assert await sluice.stock.deduct_many({sku: 1, other: 1}, order="2")
        assert await sluice.cache.get(user, load) == "value"
        assert await sluice.once.run(job, work) == "result"
        assert await sluice.limit.many({f"{user}:a": Rate(5, 60, burst=5), f"{user}:b": Rate(5, 60, burst=5)})
        await sluice.delay.create(queue, f"{queue}:stream")
        assert await sluice.bloom.add(f"{{{key}}}:names", "ann") in (True, False)
    assert await sluice.cache.get_many([f"{{{key}}}:user" for key in KEYS], load_many) == {
        f"{{{key}}}:user": "value" for key in KEYS}


async def test_a_command_that_is_not_idempotent_is_sent_once(make_for, distant_cluster, nodes):
    sluice = make_for(distant_cluster)
    for key in KEYS:
        for network in nodes.values():
            network.loses = ["RATE.GCRA"]
        with pytest.raises(sluice.library.broken):
            await sluice.limit.gcra(f"{{{key}}}:limit", Rate(1, 3600, burst=9))
        for network in nodes.values():
            network.loses = ["BF.ADD"]
        assert (await sluice.limit.gcra(f"{{{key}}}:limit", Rate(1, 3600, burst=9), peek=True)).remaining == 9
        assert await sluice.bloom.add(f"{{{key}}}:new names", "ann") is False  # the repetition
        assert sum(len(network.loses) for network in nodes.values()) == 1


async def test_a_node_without_replies_leaves_no_lease_on_the_other_one(make_for, distant_cluster, nodes, cluster):
    sluice = make_for(distant_cluster)

    async def load(keys):
        raise AssertionError("one key has no reply")

    network = nodes[await port_of(cluster, "foo")]
    network.meanwhile = lambda: network.loses.append("CACHE.FETCH")
    near = sluice.cache.near()
    for get_many in sluice.cache.get_many, near.get_many:
        network.loses = ["CACHE.FETCH"]
        with pytest.raises(sluice.library.broken):
            await get_many(["bar", "foo"], load, Policy(lease=600))
        network.loses = []
        assert await cluster.execute_command("CACHE.INFO", "bar") is None


async def port_of(cluster, key):
    """Returns the port of the node that has the key."""
    await cluster.exists(key)
    return cluster.get_node_from_key(key).port


POLICY = Policy(fresh=600, jitter=0)


async def keep(near, keys, database):
    """Reads the keys until the map has all of them."""

    async def load(key):
        return database[key]

    for _ in range(1000):
        for key in keys:
            assert await near.get(key, load, POLICY) == database[key]
        if len(near._map) == len(keys):
            return
        await pause(0.005)
    raise AssertionError("the map does not keep the values")


async def test_a_near_cache_hears_of_changes_on_each_node(make_for, cluster):
    sluice = make_for(cluster)
    near = sluice.cache.near()
    database = {f"{{{key}}}:{number}": "old" for key in KEYS for number in range(10)}

    async def load_many(keys):
        return {key: database[key] for key in keys}

    await keep(near, list(database), database)
    are_hits = False
    while not are_hits:  # after a pause of this process, the map is not trusted
        hits = near.hits
        assert await near.get_many(list(database), load_many, POLICY) == database
        are_hits = near.hits == hits + len(database)
    for key in database:
        database[key] = "new"
        await sluice.cache.delete(key)
    await eventually(lambda: not len(near._map))
    assert await near.get_many(list(database), load_many, POLICY) == database
    await near.close()


async def test_a_lost_connection_empties_the_map_of_its_node(make_for, distant_cluster, nodes):
    near = make_for(distant_cluster).cache.near()
    database = {key: "v" for key in KEYS}
    await keep(near, KEYS, database)
    for port, network in nodes.items():
        session = next(one for name, one in near._sessions.items() if name.endswith(f":{port}") or name.endswith(f":{network.port}"))
        network.cut()
        await eventually(lambda: not near._map.has(session))
        await keep(near, KEYS, database)


async def test_a_near_cache_follows_a_hash_slot(make_for, cluster, move_slot):
    sluice = make_for(cluster)
    near = sluice.cache.near()
    database = {key: "old" for key in KEYS}
    for new in "older", "new", "newer":
        await keep(near, KEYS, database)
        move_slot("bar")
        await keep(near, KEYS, database)
        for key in KEYS:
            database[key] = new
            await sluice.cache.delete(key)
        await eventually(lambda: not len(near._map))
    await keep(near, KEYS, database)


async def test_a_near_cache_drops_its_entries_when_the_topology_changes(make_for, cluster, move_slot):
    near = make_for(cluster).cache.near()
    await keep(near, KEYS, {key: "v" for key in KEYS})
    move_slot("{another slot}")
    await eventually(lambda: not len(near._map))
