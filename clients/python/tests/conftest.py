"""The fixtures of all tests."""

import contextlib

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
def nodes():
    """The masters of the cluster by their ports, each with a network before it. It deletes all keys first."""
    with contextlib.ExitStack() as stack:
        nodes = {}
        client = stack.enter_context(classes()[1](host="127.0.0.1", port=CLUSTER))
        client.flushall(target_nodes=client.PRIMARIES)
        for node in client.get_primaries():
            nodes[node.port] = stack.enter_context(Proxy(node.port))
        yield nodes
