"""Decorators for the tasks of Celery. They go below `@app.task(bind=True)`."""

from __future__ import annotations

import contextlib
import functools
import pickle
from typing import Any, Callable

from .replies import text
from .sync import Sluice


def once_per_task(sluice: Sluice, *, lease: float = 300.0, remember: float = 86_400.0) -> Callable[[Callable[..., Any]], Any]:
    """Returns a decorator: a task that the broker delivers twice runs once, and both deliveries get its result.

    If the worker dies, another delivery runs the task when the lease ends. The same holds if the task raises `OutcomeUnknown` or
    `TimeoutError`. If the task raises another exception, `Retry` included, the next delivery runs it again. `SoftTimeLimitExceeded` of
    Celery is such an exception: if the task may have had its effect, catch it and raise `OutcomeUnknown`.

    Args:
        sluice: The client of the package.
        lease: The seconds that the task may take.
        remember: The seconds for which the result is remembered.
    """

    def decorate(task: Callable[..., Any]) -> Any:
        @functools.wraps(task)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            def work(token: int) -> str:
                return pickle.dumps(task(self, *args, **kwargs)).hex()

            result = sluice.once.run(f"celery:{self.name}:{self.request.id}", work, lease=lease, remember=remember)
            return pickle.loads(bytes.fromhex(text(result)))

        return wrapper

    return decorate


def one_at_a_time(sluice: Sluice, *, key: str | None = None, wait: float = 0.0, retry: float = 10.0,
                  lease: float = 30.0) -> Callable[[Callable[..., Any]], Any]:
    """Returns a decorator: at most one run of the task at a time, across all workers.

    Args:
        sluice: The client of the package.
        key: The name of the lock. The default is the name of the task.
        wait: The longest wait for the lock in seconds. The wait occupies the worker.
        retry: If the lock is not free in time, the task is retried after so many seconds.
        lease: The seconds of the lease, which the server renews while the worker lives.
    """

    def decorate(task: Callable[..., Any]) -> Any:
        @functools.wraps(task)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            lock = sluice.lock(key or f"celery:{self.name}", wait=wait, lease=lease)
            if not lock.acquire():
                raise self.retry(countdown=retry, max_retries=None)
            with contextlib.ExitStack() as stack:
                stack.push(lock)  # releases it
                return task(self, *args, **kwargs)

        return wrapper

    return decorate
