"""The examples for redis-py on a cluster of two nodes: python cluster.py <a node>. Run by tests/clients.rs."""

import pathlib
import sys

import redis

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples/clients/python"))
sys.dont_write_bytecode = True
from lock import lock, node_of, renewed_lock  # noqa: E402
from shop import cached, retry_after, sell  # noqa: E402

client = redis.RedisCluster("127.0.0.1", port=int(sys.argv[1]))
KEYS = "bar", "foo"  # one on each node


def keys_are_found_in_all_commands():
    for key in KEYS:
        client.execute_command("STOCK.SET", f"{{{key}}}:sku", 10)
        assert sell(client, f"{{{key}}}:sku", 1, "order", "ann") == 9
        assert cached(client, f"{{{key}}}:user", lambda _: b"Ann") == b"Ann"
        assert cached(client, f"{{{key}}}:user", lambda _: 1 / 0) == b"Ann"
        assert retry_after(client, f"{{{key}}}") == 0
        two = f"{{{key}}}:a", f"{{{key}}}:b"
        assert len(client.execute_command("LOCK.MACQUIRE", 2, *two, "me")) == 2
        assert client.execute_command("LOCK.MRELEASE", 2, *two, "me") == [0, 0]


def locks_are_taken_on_the_node_of_their_key():
    assert len({node_of(client, key).connection_pool.connection_kwargs["port"] for key in KEYS}) == 2
    for key in KEYS:
        with lock(client, key) as held:
            held.check()
            assert client.exists(key)
        with renewed_lock(client, key) as held:
            held.check()
            assert client.exists(key)
        assert not client.exists(key)


TESTS = [
    keys_are_found_in_all_commands,
    locks_are_taken_on_the_node_of_their_key,
]

for test in TESTS:
    test()
    print(test.__name__)
