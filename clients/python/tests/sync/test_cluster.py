# `clients/python/generate` writes this file from the folder aio.
"""A client of a cluster. The keys `foo` and `bar` are on different nodes."""

import pytest

from sluice import LockLost, Policy, Rate

from .helpers import LockSession, eventually, is_set, pause, together

KEYS = "bar", "foo"


def test_locks_are_on_the_node_of_their_key(make_for, cluster):
    sluice = make_for(cluster)
    inside, most = 0, 0
    for key in KEYS:

        def work():
            nonlocal inside, most
            with sluice.lock(key, wait=60) as lock:
                inside += 1
                most = max(most, inside)
                lock.check()
                pause()
                inside -= 1

        together(work, 20)
        with sluice.lock_many([f"{{{key}}}:a", f"{{{key}}}:b"]), sluice.semaphore(f"{{{key}}}:s", 1):
            pass
        with sluice.read_lock(key):
            assert sluice.lock(key, wait=0).acquire() is False
    assert most == 1


def test_a_loss_is_reported(make_for, cluster):
    sluice = make_for(cluster)
    for key in KEYS:
        with pytest.raises(LockLost):
            with sluice.lock(key) as lock:
                cluster.delete(key)
                assert is_set(lock.lost)


def test_a_loss_is_reported_while_a_lock_follows_its_slot(make_for, cluster, move_slot, monkeypatch):
    sluice = make_for(cluster)
    with sluice.lock("foo"):
        pass  # the session of the other node is open: a new one would bind the lock itself
    lock = sluice.lock("bar", lease=600)
    lock.acquire()
    call = LockSession.call
    losses = []

    def lose_before_reading(session, *words):
        reply = call(session, *words)
        if words[0] == "LOCK.ACQUIRE" and reply == lock.fence and not losses:
            losses.append(cluster.delete("bar"))
            pause(0.1)  # the session reads the message about the loss before the lock has the reply
        return reply

    monkeypatch.setattr(LockSession, "call", lose_before_reading)
    move_slot("bar")
    assert is_set(lock.lost)
    assert losses == [1]
    with pytest.raises(LockLost):
        lock.release()


def test_commands_find_their_nodes(make_for, cluster):
    sluice = make_for(cluster)

    def work(token):
        return "result"

    def load(key):
        return "value"

    def load_many(keys):
        return {key: "value" for key in keys}

    for key in KEYS:
        sku, other, user, job, queue = (f"{{{key}}}:{name}" for name in ("sku", "other", "user", "job", "queue"))
        sluice.stock.create(sku, 10, replace=True)
        sluice.stock.create(other, 10, replace=True)
        assert (sluice.stock.deduct(sku, order="1")).quantity == 9
        assert sluice.stock.deduct_many({sku: 1, other: 1}, order="2")
        assert sluice.cache.get(user, load) == "value"
        assert sluice.once.run(job, work) == "result"
        assert sluice.limit.many({f"{user}:a": Rate(5, 60, burst=5), f"{user}:b": Rate(5, 60, burst=5)})
        sluice.delay.create(queue, f"{queue}:stream")
        assert sluice.bloom.add(f"{{{key}}}:names", "ann") in (True, False)
    assert sluice.cache.get_many([f"{{{key}}}:user" for key in KEYS], load_many) == {
        f"{{{key}}}:user": "value" for key in KEYS}


def test_a_command_that_is_not_idempotent_is_sent_once(make_for, distant_cluster, nodes):
    sluice = make_for(distant_cluster)
    for key in KEYS:
        for network in nodes.values():
            network.loses = ["RATE.GCRA"]
        with pytest.raises(sluice.library.broken):
            sluice.limit.gcra(f"{{{key}}}:limit", Rate(1, 3600, burst=9))
        for network in nodes.values():
            network.loses = ["BF.ADD"]
        assert (sluice.limit.gcra(f"{{{key}}}:limit", Rate(1, 3600, burst=9), peek=True)).remaining == 9
        assert sluice.bloom.add(f"{{{key}}}:new names", "ann") is False  # the repetition
        assert sum(len(network.loses) for network in nodes.values()) == 1


def test_a_node_without_replies_leaves_no_lease_on_the_other_one(make_for, distant_cluster, nodes, cluster):
    sluice = make_for(distant_cluster)

    def load(keys):
        raise AssertionError("one key has no reply")

    network = nodes[port_of(cluster, "foo")]
    network.meanwhile = lambda: network.loses.append("CACHE.FETCH")
    near = sluice.cache.near()
    for get_many in sluice.cache.get_many, near.get_many:
        network.loses = ["CACHE.FETCH"]
        with pytest.raises(sluice.library.broken):
            get_many(["bar", "foo"], load, Policy(lease=600))
        network.loses = []
        assert cluster.execute_command("CACHE.INFO", "bar") is None


def port_of(cluster, key):
    """Returns the port of the node that has the key."""
    cluster.exists(key)
    return cluster.get_node_from_key(key).port


POLICY = Policy(fresh=600, jitter=0)


def keep(near, keys, database):
    """Reads the keys until the map has all of them."""

    def load(key):
        return database[key]

    for _ in range(1000):
        for key in keys:
            assert near.get(key, load, POLICY) == database[key]
        if len(near._map) == len(keys):
            return
        pause(0.005)
    raise AssertionError("the map does not keep the values")


def test_a_near_cache_hears_of_changes_on_each_node(make_for, cluster):
    sluice = make_for(cluster)
    near = sluice.cache.near()
    database = {f"{{{key}}}:{number}": "old" for key in KEYS for number in range(10)}

    def load_many(keys):
        return {key: database[key] for key in keys}

    keep(near, list(database), database)
    are_hits = False
    while not are_hits:  # after a pause of this process, the map is not trusted
        hits = near.hits
        assert near.get_many(list(database), load_many, POLICY) == database
        are_hits = near.hits == hits + len(database)
    for key in database:
        database[key] = "new"
        sluice.cache.delete(key)
    eventually(lambda: not len(near._map))
    assert near.get_many(list(database), load_many, POLICY) == database
    near.close()


def test_a_lost_connection_empties_the_map_of_its_node(make_for, distant_cluster, nodes):
    near = make_for(distant_cluster).cache.near()
    database = {key: "v" for key in KEYS}
    keep(near, KEYS, database)
    for port, network in nodes.items():
        session = next(one for name, one in near._sessions.items() if name.endswith(f":{port}") or name.endswith(f":{network.port}"))
        network.cut()
        eventually(lambda: not near._map.has(session))
        keep(near, KEYS, database)


def test_a_near_cache_follows_a_hash_slot(make_for, cluster, move_slot):
    sluice = make_for(cluster)
    near = sluice.cache.near()
    database = {key: "old" for key in KEYS}
    for new in "older", "new", "newer":
        keep(near, KEYS, database)
        move_slot("bar")
        keep(near, KEYS, database)
        for key in KEYS:
            database[key] = new
            sluice.cache.delete(key)
        eventually(lambda: not len(near._map))
    keep(near, KEYS, database)


def test_a_near_cache_drops_its_entries_when_the_topology_changes(make_for, cluster, move_slot):
    near = make_for(cluster).cache.near()
    keep(near, KEYS, {key: "v" for key in KEYS})
    move_slot("{another slot}")
    eventually(lambda: not len(near._map))
