"""Real servers with the module: one server, a cluster of two, and a master with a replica under Sentinel."""

import asyncio
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile

from .proxy import Proxy
from .wire import ErrorReply, Honest

START_SECONDS = 30
MASTER = "conformance"


# Below the ports of outgoing connections, so that nothing takes a port before its server does.
PORTS = list(range(20_000, 30_000))
random.SystemRandom().shuffle(PORTS)


def free_port():
    """Returns a port that no program uses. No port is returned twice."""
    while True:
        port = PORTS.pop()
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


async def eventually(holds, what, seconds=START_SECONDS):
    """Waits until the coroutine function returns a true value, and returns it. `what` is a text, or a function that returns one."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            if value := await holds():
                return value
        except (OSError, ErrorReply):
            pass
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {seconds} s: {what() if callable(what) else what}")
        await asyncio.sleep(0.02)


class Server:
    """A process of a server."""

    def __init__(self, program, module, *options, port=None):
        self.port = port or free_port()
        self.ask = Honest(self.port)
        self.folder = tempfile.mkdtemp(prefix="conformance-")
        words = ["--port", self.port, "--bind", "127.0.0.1", "--dir", self.folder, "--save", "", "--loadmodule", module]
        self._start([program, *words, *options])

    def _start(self, words):
        self._log = open(pathlib.Path(self.folder, "log"), "ab")
        self.process = subprocess.Popen(list(map(str, words)), stdout=self._log, stderr=subprocess.STDOUT)

    async def is_up(self):
        return await self.ask("PING") == "PONG"

    def signal(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def close(self):
        self.signal(signal.SIGKILL)
        self.process.wait()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Sentinel(Server):
    """A process of Sentinel, which watches a master."""

    def __init__(self, program, master):
        self.port = free_port()
        self.ask = Honest(self.port)
        self.folder = tempfile.mkdtemp(prefix="conformance-")
        conf = pathlib.Path(self.folder, "sentinel.conf")
        conf.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\nsentinel monitor {MASTER} 127.0.0.1 {master} 1\n"
            f"sentinel down-after-milliseconds {MASTER} 1000\nsentinel failover-timeout {MASTER} 5000\n")
        self._start([program, conf, "--sentinel"])


class Topology:
    """Servers, and the proxies before them."""

    def __init__(self, program, module):
        self.program, self.module = program, module
        self.servers, self.proxies = [], []

    async def __aenter__(self):
        try:
            await self.start()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_):
        self.close()

    def close(self):
        for one in [*self.proxies, *self.servers]:
            one.close()

    async def up(self, server):
        self.servers.append(server)
        await eventually(server.is_up, "the server answers")
        return server

    async def behind_proxy(self, server):
        self.proxies.append(await Proxy(server.port).start())

    def config(self):
        return {"topology": self.name, "host": "127.0.0.1", "port": self.proxies[0].port}

    async def admin(self, *words):
        """Sends a command directly to the server that has the key."""
        return await self.servers[0].ask(*words)

    async def clear(self):
        for proxy in self.proxies:
            proxy.faults.clear()
            proxy.resume()
        await self.admin("FLUSHALL")

    async def move(self, key, until):
        raise NotImplementedError

    async def failover(self, how):
        raise NotImplementedError


class Alone(Topology):
    name = "server"

    async def start(self):
        await self.behind_proxy(await self.up(Server(self.program, self.module)))


class Cluster(Topology):
    """Two nodes, whose clients reach them only through proxies: the nodes announce the ports of these."""

    name = "cluster"

    async def start(self):
        for _ in range(2):
            port, bus = free_port(), free_port()
            proxy = await Proxy(port).start()
            self.proxies.append(proxy)
            await self.up(Server(
                self.program, self.module, "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-announce-port", proxy.port,
                "--cluster-announce-bus-port", bus, "--cluster-node-timeout", 15000, port=port))
        one, other = self.servers
        await one.ask("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
        await other.ask("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
        await one.ask("CLUSTER", "SET-CONFIG-EPOCH", 1)
        await other.ask("CLUSTER", "SET-CONFIG-EPOCH", 2)
        await other.ask("CLUSTER", "MEET", "127.0.0.1", self.proxies[0].port, await self._bus_of(one))
        for server in self.servers:
            await eventually(lambda ask=server.ask: self._is_ok(ask), "the cluster is ready")

    @staticmethod
    async def _bus_of(server):
        return (await server.ask("CONFIG", "GET", "cluster-port"))[1]

    @staticmethod
    async def _is_ok(ask):
        info = await ask("CLUSTER", "INFO")
        return "cluster_state:ok" in info and "cluster_known_nodes:2" in info and "cluster_slots_assigned:16384" in info

    async def admin(self, *words):
        for server in self.servers:
            try:
                return await server.ask(*words)
            except ErrorReply as error:
                if str(error).startswith("ASK "):
                    other = next(other for other in self.servers if other is not server)
                    return await other.ask(*words, asking=True)
                if not str(error).startswith("MOVED "):
                    raise
        raise AssertionError("no node has the slot")

    async def clear(self):
        for proxy in self.proxies:
            proxy.faults.clear()
            proxy.resume()
        for server in self.servers:
            await server.ask("FLUSHALL")

    async def move(self, key, until):
        """Moves the slot of a key to the other node. `until` is `begun` or `done`; the second call ends what the first began."""
        slot = await self.servers[0].ask("CLUSTER", "KEYSLOT", key)
        ids = [await server.ask("CLUSTER", "MYID") for server in self.servers]
        at = await self._owner_of(slot, ids)
        source, target = self.servers[at], self.servers[1 - at]
        await target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[at])
        await source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1 - at])
        if until == "begun":
            return
        while keys := await source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            await source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        for server in (target, source):
            await server.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[1 - at])

    async def _owner_of(self, slot, ids):
        for first, last, master, *_ in await self.servers[0].ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return ids.index(master[2])
        raise AssertionError(f"no node has slot {slot}")


class Failover(Topology):
    """A master, a replica and a Sentinel. Clients connect to them directly."""

    name = "sentinel"

    async def start(self):
        master = await self.up(Server(self.program, self.module))
        options = ("--replicaof", f"127.0.0.1 {master.port}", "--repl-diskless-sync-delay", 0)
        replica = await self.up(Server(self.program, self.module, *options))
        self.master = master
        await eventually(self._is_replicated, "the replica has all")
        self.sentinel = await self.up(Sentinel(self.program, master.port))

        await self.sentinel.ask("SENTINEL", "DEBUG", "INFO-PERIOD", 200, "PUBLISH-PERIOD", 200)  # by default, 10 s and 2 s

        async def knows_replica():
            return bool(await self.sentinel.ask("SENTINEL", "REPLICAS", MASTER))

        await eventually(knows_replica, "Sentinel has found the replica")
        self._replica = replica

    def config(self):
        return {"topology": self.name, "host": "127.0.0.1", "port": self.sentinel.port, "master": MASTER}

    async def _is_replicated(self):
        info = await self.master.ask("INFO", "replication")
        fields = dict(line.split(":", 1) for line in info.split("\r\n") if ":" in line)
        offset = fields["master_repl_offset"]
        return "state=online" in fields.get("slave0", "") and f"offset={offset}," in fields["slave0"]

    async def admin(self, *words):
        return await self.master.ask(*words)

    async def failover(self, how):
        """Promotes the replica: `crash` kills the master, `planned` asks Sentinel to. The replica has all writes before."""
        await eventually(self._is_replicated, "the replica has all writes")
        if how == "crash":
            self.master.signal(signal.SIGKILL)

        async def is_promoted():
            if (await self._replica.ask("ROLE"))[0] == "master":
                return True
            if how == "planned":  # an error reply if one is in progress; on a slow machine Sentinel can give up
                await self.sentinel.ask("SENTINEL", "FAILOVER", MASTER)
            return False

        await eventually(is_promoted, "the replica is promoted")
        if how == "planned":
            async def is_demoted():
                return (await self.master.ask("ROLE"))[0] == "slave"

            await eventually(is_demoted, "the master is a replica")  # what it accepts until then is lost
        self.master, self._replica = self._replica, self.master


TOPOLOGIES = {kind.name: kind for kind in (Alone, Cluster, Failover)}


def version_of(program):
    """Returns for example `Redis 7.0.15`."""
    words = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()
    number = next(word[2:] for word in words if word.startswith("v="))
    return f"{words[0]} {number}"
