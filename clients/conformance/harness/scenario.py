"""Reads scenarios and runs them. README.md describes their form."""

import asyncio
import shlex
import signal

from .proxy import Fault
from .servers import eventually
from .toml import tomllib

# How long a program repeats a request whose connection broke, where a scenario permits it.
PATIENCE_SECONDS = 40
PAUSE_SECONDS = 0.1

RESERVED = {"do", "client", "start", "ok", "refused", "error", "save", "soon", "patient", "may_break", "may_lose"}


def load(folder):
    """Returns all scenarios, in the order of the files."""
    scenarios = []
    for file in sorted(folder.glob("*.toml")):
        with open(file, "rb") as opened:
            read = tomllib.load(opened)
        for one in read["scenario"]:
            scenarios.append({"group": read["group"], "topology": read.get("topology", "server"), **one})
    assert len({one["name"] for one in scenarios}) == len(scenarios), "two scenarios have the same name"
    return scenarios


def operations(scenario):
    """The operations that a client must have to run the scenario."""
    operations = {step["do"] for step in scenario["steps"] if "do" in step}
    return operations | set(scenario.get("needs", []))


def at(value, path):
    """Returns a part of a reply, for example `holders.0.count`. A map is a flat array in RESP2."""
    for name in path.split("."):
        value = value[int(name)] if name.isdigit() else dict(zip(value[::2], value[1::2]))[name]
    return value


def agrees(value, expected):
    """Whether a value is as expected. Of an object, only the expected members are compared."""
    if isinstance(expected, dict):
        return all(agrees(value.get(name), one) for name, one in expected.items())
    return value == expected


class Play:
    """One run of a scenario at one point of its fault. `lease`: the value of `"$lease"` (ms)."""

    def __init__(self, scenario, topology, clients, point, lease=None):
        self._scenario, self._topology, self._clients, self._point = scenario, topology, clients, point
        self._saved = {"lease": lease}
        self._started = {}
        self.faults = []

    async def run(self):
        try:
            for number, step in enumerate(self._scenario["steps"], 1):
                try:
                    await self._step(step)
                except Exception as error:
                    raise AssertionError(f"step {number}, {step}: {error or type(error).__name__}") from error
        finally:
            for task, _ in self._started.values():
                task.cancel()

    def has_lost_reply(self):
        """Whether a reply did not reach the client. Then the client waits until the lease of this reply ends."""
        return any(fault.fired.is_set() and fault.side == "reply" and not fault.is_readable for fault in self.faults)

    async def _step(self, step):
        if "do" in step:
            await self._do(step)
        elif "join" in step:
            task, started = self._started.pop(step["join"])
            self._check_answer({**started, **step}, await task)
        elif "admin" in step:
            await self._admin(step)
        elif "break" in step:
            side, offset = step.get("point") or self._point
            for proxy in self._topology.proxies:
                fault = Fault(step["break"], side, offset, step.get("reset", False))
                proxy.faults.append(fault)
                self.faults.append(fault)
        elif "cut" in step:
            for proxy in self._topology.proxies:
                proxy.cut()
        elif "pause" in step or "resume" in step:
            self._pause(step.get("pause") or step["resume"], "pause" in step)
        elif "kill" in step:
            self._clients[step["kill"]].signal(signal.SIGKILL)
        elif "sleep_ms" in step:
            await asyncio.sleep(step["sleep_ms"] / 1000)
        elif "move" in step:
            await self._topology.move(step["move"], step.get("until", "done"))
        elif "failover" in step:
            await self._topology.failover(step["failover"])
        else:
            raise ValueError("the step has no known action")

    def _pause(self, what, is_pause):
        if what == "server":
            for server in self._topology.servers:
                server.signal(signal.SIGSTOP if is_pause else signal.SIGCONT)
        else:
            for proxy in self._topology.proxies:
                proxy.pause() if is_pause else proxy.resume()

    async def _do(self, step):
        if "start" in step:
            self._started[step["start"]] = asyncio.create_task(self._ask(step)), step
            return
        if step.get("soon"):
            async def holds():
                try:
                    self._check_answer(step, await self._ask(step))
                except AssertionError:
                    return False
                return True
            await eventually(holds, "the expected answer")
            return
        self._check_answer(step, await self._ask(step))

    async def _ask(self, step):
        """Returns the answer. A client that does not repeat by itself is asked again, as its program would."""
        words = {name: self._value(value) for name, value in step.items() if name not in RESERVED}
        client = self._clients[step.get("client", "a")]
        is_repeated = step.get("patient") or not client.describe.get("repeats") and step.get("error") != "connection"
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while True:
            answer = await client.ask(step["do"], **words)
            is_broken = answer.get("error") == "connection"
            is_final = not is_broken or not is_repeated or step.get("may_break")
            if is_final or asyncio.get_running_loop().time() > deadline:
                return answer
            await asyncio.sleep(PAUSE_SECONDS)

    def _check_answer(self, step, answer):
        if answer.get("error") == "connection" and (step.get("may_break") or step.get("error") == "connection"):
            return
        if answer.get("refused") == "lost" and step.get("may_lose"):
            return
        if "error" in step and "ok" in answer and any(fault.is_readable for fault in self.faults):
            return
        expected = next((name for name in ("refused", "error") if name in step), "ok")
        assert expected in answer, f"got {answer}"
        if expected in step:
            assert agrees(answer[expected], self._value(step[expected])), f"got {answer}"
        if "save" in step:
            self._saved[step["save"]] = answer["ok"]

    async def _admin(self, step):
        words = [self._value(word) for word in shlex.split(step["admin"])]
        seen = []

        async def holds():
            value = await self._topology.admin(*words)
            seen[:] = [at(value, step["at"]) if "at" in step and value is not None else value]
            return self._holds(step, seen[0])

        if step.get("soon"):
            await eventually(holds, lambda: f"got {seen}")
        else:
            assert await holds(), f"got {seen[0]}"
        if "save" in step:
            self._saved[step["save"]] = seen[0]

    def _holds(self, step, value):
        if step.get("none"):
            return value is None
        if "length" in step:
            return len(value or []) == step["length"]
        if "is" in step:
            return value == self._value(step["is"])
        if "in" in step:
            return value in step["in"]
        if "above" in step:
            return value is not None and value > self._value(step["above"])
        return True

    def _value(self, word):
        if isinstance(word, str) and word.startswith("$"):
            return self._saved[word[1:]]
        return word


def points(scenario, are_few):
    """Yields the points at which the scenario's fault fires, until `is_behind` of the fault says that the reply has ended."""
    if scenario.get("points") != "all":
        yield None
        return
    yield "request", 0
    yield "request", 20
    yield "reply", 0
    offset = 1
    while True:
        yield "reply", offset
        offset = offset * 4 if are_few else offset + 1


async def run(scenario, topology, clients, are_few):
    """Runs a scenario at all points of its fault. Returns the number of points."""
    count = 0
    for point in points(scenario, are_few):
        try:
            faults = await run_with_growing_leases(point, scenario, topology, clients)
        except Exception as error:
            raise AssertionError(f"{scenario['name']}, at {point}: {error}") from error
        count += 1
        if point and any(fault.is_behind for fault in faults):
            break
    return count


async def run_with_growing_leases(point, scenario, topology, clients):
    """Runs a scenario at one point of its fault. Repeats it with the next lease if a lease may have ended too early. Returns its faults."""
    clock = asyncio.get_running_loop().time
    *shorter, longest = scenario.get("leases", [None])
    for lease in shorter:
        play = Play(scenario, topology, clients, point, lease)
        begun = clock()
        try:
            await run_at(point, play, scenario, topology, clients)
            return play.faults
        except Exception as error:
            milliseconds = (clock() - begun) * 1000
            if milliseconds < lease * (2 if play.has_lost_reply() else 1):
                raise
            print(f"{scenario['name']}, at {point}: failed after {milliseconds:.0f} ms with a lease of {lease} ms: {error}", flush=True)
    play = Play(scenario, topology, clients, point, longest)
    await run_at(point, play, scenario, topology, clients)
    return play.faults


async def run_at(point, play, scenario, topology, clients):
    """Runs a scenario at one point of its fault."""
    await topology.clear()
    for name in scenario.get("clients", ["a"]):
        answer = await clients[name].ask("connect", **topology.config())
        assert "ok" in answer, f"connect: {answer}"
    try:
        await play.run()
    finally:
        for name in scenario.get("clients", ["a"]):
            clients[name].signal(signal.SIGCONT)
        for server in topology.servers:
            server.signal(signal.SIGCONT)
    if point:
        assert any(fault.is_behind or fault.fired.is_set() for fault in play.faults), "the client never sent the command"
