"""The process of a client: it gets requests and writes replies as lines of JSON."""

import asyncio
import contextlib
import json
import os
import signal

SECONDS = 60


class Runner:
    """A running client. `describe` is the first line that it has written: its name, and what it can do."""

    def __init__(self, command, folder, environment):
        self._command, self._folder, self._environment = command, folder, environment
        self._answers = {}
        self._count = 0
        self._process = None

    async def start(self):
        self._process = await asyncio.create_subprocess_exec(
            *self._command, cwd=self._folder, env={**os.environ, **self._environment}, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, limit=1 << 24)
        line = await asyncio.wait_for(self._process.stdout.readline(), SECONDS)
        assert line, f"{self._command} has ended at once"
        self.describe = json.loads(line)
        self._reader = asyncio.create_task(self._read())
        return self

    async def ask(self, do, **words):
        """Sends a request and waits for its reply."""
        self._count += 1
        answer = self._answers[self._count] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps({"id": self._count, "do": do, **words}).encode() + b"\n")
        return await asyncio.wait_for(answer, SECONDS)

    async def _read(self):
        while line := await self._process.stdout.readline():
            reply = json.loads(line)
            answer = self._answers.pop(reply.pop("id"))
            if not answer.done():
                answer.set_result(reply)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result({"error": "the runner has ended"})

    def signal(self, number):
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def close(self):
        if self._process is None:
            return
        self.signal(signal.SIGKILL)
        await self._process.wait()
        self._reader.cancel()
