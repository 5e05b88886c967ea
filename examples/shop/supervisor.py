"""Starts programs, starts them again when they die, and ends all of them. Each has a log file in the state folder."""

import asyncio
import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import time

AWAY_S = 0.5  # after an unexpected death
RECHECK_S = 0.2  # while a program is down, the supervisor checks this often whether its start time has changed
PATIENCE_S = 120
STOP_S = 3
PR_SET_PDEATHSIG = 1


class Failed(Exception):
    """A program does not start. The text has the end of its log."""


@dataclasses.dataclass
class Service:
    name: str
    command: list
    is_ready: object  # an async function, or None
    process: asyncio.subprocess.Process = None
    back_at: float = 0.0  # when it starts again
    restarts: int = 0
    state: str = "starts"  # or runs, away
    keeper: asyncio.Task = None


def die_with_parent():
    """Runs in the child: the kernel kills it when the supervisor dies, however that happens."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Supervisor:
    def __init__(self, state, environment):
        self.state = state
        self.environment = os.environ | environment | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
        self.services = {}

    async def start(self, name, command, is_ready=None):
        """Returns when the program is ready."""
        service = self.services[name] = Service(name, [str(word) for word in command], is_ready)
        service.keeper = asyncio.create_task(self._keep(service))
        deadline = time.monotonic() + PATIENCE_S
        while service.state != "runs":
            if service.keeper.done() or service.restarts or time.monotonic() > deadline:
                raise Failed(f"{name} does not start:\n{self._log_of(name)}")
            await asyncio.sleep(0.05)

    async def _keep(self, service):
        while True:
            service.state = "starts"
            with open(self.state / f"{service.name}.log", "ab") as log:
                # Its own session: Ctrl-C reaches the supervisor only, which ends the others in order.
                service.process = await asyncio.create_subprocess_exec(
                    *service.command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment,
                    start_new_session=True, preexec_fn=die_with_parent)
            ended = asyncio.create_task(service.process.wait())
            while not ended.done() and service.state != "runs":
                if service.is_ready is None or await service.is_ready():
                    service.state = "runs"
                else:
                    await asyncio.wait([ended], timeout=0.05)
            await ended
            service.state = "away"
            service.restarts += 1
            service.back_at = max(service.back_at, time.monotonic() + AWAY_S)
            while (left := service.back_at - time.monotonic()) > 0:
                await asyncio.sleep(min(left, RECHECK_S))

    async def kill(self, name, down_s):
        """Kills a program, and starts it again after `down_s` seconds. If it is already down, changes only its start time."""
        service = self.services[name]
        service.back_at = time.monotonic() + down_s
        if service.state != "away":
            service.process.kill()
            await service.process.wait()

    async def stop(self):
        """SIGTERM, and SIGKILL for programs that take too long: nobody needs the files afterwards."""
        for service in self.services.values():
            service.keeper.cancel()
        running = [service.process for service in self.services.values() if service.process]
        for end in (asyncio.subprocess.Process.terminate, asyncio.subprocess.Process.kill):
            running = [process for process in running if process.returncode is None]
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    end(process)
            if running:
                await asyncio.wait([asyncio.create_task(process.wait()) for process in running], timeout=STOP_S)

    def status(self):
        now = time.monotonic()
        return {service.name: {"state": service.state, "restarts": service.restarts,
                               "back_s": max(0, round(service.back_at - now, 1)) if service.state == "away" else 0}
                for service in self.services.values()}

    @contextlib.asynccontextmanager
    async def control(self):
        """A socket for the buttons of the board: one line of JSON each way."""

        async def serve(reader, writer):
            with contextlib.suppress(OSError, ValueError, KeyError):
                request = json.loads(await reader.readline())
                if request["what"] == "kill":
                    await self.kill(request["name"], request["down_s"])
                writer.write(json.dumps(self.status()).encode() + b"\n")
                await writer.drain()
            writer.close()

        server = await asyncio.start_unix_server(serve, self.state / "control.sock")
        try:
            yield
        finally:
            server.close()

    def _log_of(self, name):
        with contextlib.suppress(OSError):
            return "\n".join((self.state / f"{name}.log").read_text(errors="replace").splitlines()[-15:])
        return ""
