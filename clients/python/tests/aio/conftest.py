"""The fixtures of asyncio tests, and the event loop that runs a test and closes its clients."""

import asyncio
import importlib
import inspect

import pytest

from settings import CLIENT, CLUSTER, PORT, PROTOCOL, classes
from sluice.aio import Lock, Sluice


@pytest.fixture(autouse=True)
def short_heartbeats(monkeypatch):
    monkeypatch.setattr("sluice.aio.session.HEARTBEAT_SECONDS", 0.2)


@pytest.fixture(autouse=True)
def long_times(monkeypatch):
    """A machine that stands still for many seconds loses no lock, and ends no wait, except where a test names a time."""
    defaults = Lock.__init__.__kwdefaults__
    for name in "wait", "lease":
        monkeypatch.setitem(defaults, name, 60.0)


@pytest.fixture
def opened():
    """The objects that are closed after the test, in this order."""
    return []


@pytest.fixture
def connect(opened):
    """Opens a client of the library, by default for the server of the tests."""

    def connect(port=PORT, **options):
        client = classes(".asyncio")[0](
            port=port, **{"protocol": PROTOCOL, "decode_responses": True, "socket_timeout": 60, **options})
        opened.append(client)
        return client

    return connect


@pytest.fixture
def make_for(opened):
    """Creates a `Sluice` object for a client."""

    def make_for(client):
        sluice = Sluice(client)
        opened.insert(0, sluice)
        return sluice

    return make_for


@pytest.fixture
def make(make_for, connect):
    """Creates a `Sluice` object and its client."""
    return lambda port=PORT, **options: make_for(connect(port, **options))


@pytest.fixture
def make_small(make_for, opened):
    """Creates a `Sluice` object whose client has one connection, in a pool that raises (`at once`) or that waits before (`later`)."""

    def make_small(raises, port=PORT):
        options = {"port": port, "protocol": PROTOCOL, "decode_responses": True, "socket_timeout": 60, "max_connections": 1}
        kind = classes(".asyncio")[0]
        if raises == "at once":
            client = kind(**options)
        else:
            module = importlib.import_module(CLIENT + ".asyncio")
            client = kind.from_pool(module.BlockingConnectionPool(timeout=0.01, **options))  # closes the pool with the client
        opened.append(client)
        return make_for(client)

    return make_small


@pytest.fixture
def cluster(opened, masters):
    """A client of the cluster."""
    client = classes(".asyncio")[1](host="127.0.0.1", port=CLUSTER, decode_responses=True)
    opened.append(client)
    return client


@pytest.fixture
def distant_cluster(opened, nodes):
    """A client of the cluster behind networks that can lose replies."""
    client = classes(".asyncio")[1](
        host="127.0.0.1", port=CLUSTER, decode_responses=True, address_remap=lambda address: (address[0], nodes[address[1]].port))
    opened.append(client)
    return client


@pytest.fixture
def sluice(make, admin):
    return make()


async def close(one):
    if isinstance(one, Sluice):
        await one.close()
    else:
        await one.aclose()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def main():
        try:
            await asyncio.wait_for(pyfuncitem.obj(**arguments), 600)
        finally:
            for one in pyfuncitem.funcargs.get("opened", []):
                await close(one)

    asyncio.run(main())
    return True
