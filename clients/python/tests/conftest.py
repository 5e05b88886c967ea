"""The fixtures of all tests."""

import contextlib
import importlib
import time

import pytest

from proxy import Proxy
from settings import CLIENT, CLUSTER, PORT, classes

collect_ignore = [] if CLUSTER else ["aio/test_cluster.py", "sync/test_cluster.py"]
if CLIENT != "redis":
    collect_ignore += ["test_readme.py"]  # the examples of the README use redis-py


@pytest.fixture
def admin():
    """A client that the tested code does not know. It deletes all keys first."""
    client = classes()[0](port=PORT, decode_responses=True, protocol=2, single_connection_client=True)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def proxy():
    """A network between the client and the server, which can lose replies."""
    with Proxy(PORT) as proxy:
        yield proxy


@pytest.fixture
def masters():
    """The ports of the masters of the cluster. It deletes all keys first."""
    with classes()[1](host="127.0.0.1", port=CLUSTER) as client:
        client.flushall(target_nodes=client.PRIMARIES)
        return [node.port for node in client.get_primaries()]


@pytest.fixture
def nodes(masters):
    """The masters of the cluster by their ports, each with a network before it."""
    with contextlib.ExitStack() as stack:
        yield {port: stack.enter_context(Proxy(port)) for port in masters}


@pytest.fixture
def move_slot(masters):
    """Moves the hash slot of a key, with its keys, to the other node. Moves it back after the test."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(classes()[0](port=port, protocol=2, decode_responses=True)) for port in masters]
        moved = []

        def move(key):
            slot = servers[0].execute_command("CLUSTER KEYSLOT", key)
            ids = [server.execute_command("CLUSTER MYID") for server in servers]
            home = next(place for place, server in enumerate(servers) if is_home(server, key))
            source, target = servers[home], servers[1 - home]
            target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[home])
            source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[1 - home])
            while names := source.execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
                source.execute_command("MIGRATE", "127.0.0.1", masters[1 - home], "", 0, 60_000, "KEYS", *names)
            for server in target, source:
                server.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[1 - home])
            deadline = time.monotonic() + 60
            while view(source) != view(target):  # otherwise both can claim the slot after the next move
                assert time.monotonic() < deadline
                time.sleep(0.01)

        def move_and_remember(key):
            move(key)
            moved.append(key)

        yield move_and_remember
        for key in moved:
            move(key)


def view(server):
    """Returns what a server knows about the slots and epochs of the cluster."""
    return sorted((node["node_id"], node["epoch"], str(node["slots"])) for node in server.cluster("NODES").values())


def is_home(server, key):
    """Returns whether a server has the hash slot of a key."""
    try:
        server.exists(key)
    except importlib.import_module(f"{CLIENT}.exceptions").ResponseError:
        return False
    return True
