"""The servers and the library of the tests.

PORT is the port of a server with Sluice, CLUSTER that of a node of a cluster (without it, no test of clusters is collected). CLIENT is
`redis` or `valkey`, PROTOCOL is 2 or 3. The tests delete all keys.
"""

import importlib
import os

PORT = int(os.environ["PORT"])
CLUSTER = int(os.environ.get("CLUSTER", "0"))
CLIENT = os.environ.get("CLIENT", "redis")
PROTOCOL = int(os.environ.get("PROTOCOL", "2"))

NAMES = {"redis": ("Redis", "RedisCluster"), "valkey": ("Valkey", "ValkeyCluster")}


def classes(submodule=""):
    """Returns the classes of clients of a server and of a cluster."""
    module = importlib.import_module(CLIENT + submodule)
    return [getattr(module, name) for name in NAMES[CLIENT]]
