"""The exceptions of this package.

A refusal, for example a sold-out stock, is a value and never an exception. A broken connection raises the exception of the client
library (`ConnectionError` or `TimeoutError` of redis-py or valkey-py).
"""

from __future__ import annotations

import asyncio
import concurrent.futures


class SluiceError(Exception):
    """The base class of all exceptions of this package."""


class LockTimeout(SluiceError):
    """Another owner held the lock for the whole waiting time."""


class LockLost(SluiceError):
    """The lock, or the lease of work, was lost before its end. Another owner may hold it: roll the work back."""


class OutcomeUnknown(SluiceError):
    """Raise it in the work of `once.run` if the work may have had its effect, for example because a payment provider did not answer.

    The key then stays busy until its lease ends, so no other caller begins meanwhile. `TimeoutError` and a cancellation have the same
    effect. After all other exceptions, the next caller does the work.
    """


class LoaderFailed(SluiceError):
    """The loader failed a moment ago, and no older value exists."""


class CommandError(SluiceError):
    """The server replied with an error. `str()` is its text."""


class Deadlock(CommandError):
    """The server refused to wait, because the wait would never end."""


class TooManyWaiting(CommandError):
    """The server has as many waiting clients as `lock-max-waiters` permits."""


class Conflict(CommandError):
    """An order id or an idempotency key was used before with other arguments."""


class WrongType(CommandError):
    """The key holds a value of another type, or another kind of limit."""


class NoSuchQueue(CommandError):
    """The delay queue does not exist. `delay.create` creates it."""


class FilterError(CommandError):
    """The filter is full, does not exist, or its parameters are not permitted."""


class WrongResult(TypeError):
    """Work or a loader returned a value that cannot be stored. The work has had its effect."""


# In Python 3.10 these are three classes.
_TIMEOUTS = (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError)


def is_outcome_unknown(error: BaseException) -> bool:
    """Returns whether work that raised this can have had its effect. A `BaseException` that is no `Exception`, such as a cancellation, ends
    the task or the process."""
    return isinstance(error, (OutcomeUnknown, WrongResult, *_TIMEOUTS)) or not isinstance(error, Exception)


_KINDS = (
    ("DEADLOCK", Deadlock),
    ("too many waiting clients", TooManyWaiting),
    ("CONFLICT", Conflict),
    ("WRONGTYPE", WrongType),
    ("another kind of limit", WrongType),
    ("no such delay queue", NoSuchQueue),
    ("ilter", FilterError),
    ("item exists", FilterError),
    ("not found", FilterError),
)


def typed(error: Exception) -> CommandError:
    """Returns the exception of this package for an error reply."""
    text = str(error)
    if text.removeprefix("ERR ").startswith("unknown command"):
        command = text.split(", with args")[0]
        return CommandError(f"{command}: the server has no Sluice module, or its version is too old for this command (see INFO sluice)")
    for part, kind in _KINDS:
        if part in text:
            return kind(text)
    return CommandError(text)
