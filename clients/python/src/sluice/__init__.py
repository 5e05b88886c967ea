"""Locks, inventory, cached values, limits, idempotency keys, delay queues and filters of the Sluice module for Redis and Valkey.

`sluice.Sluice` is the client for threads, `sluice.aio.Sluice` the client for asyncio.
"""

from .errors import (
    CommandError, Conflict, Deadlock, FilterError, LoaderFailed, LockLost, LockTimeout, NoSuchQueue, OutcomeUnknown, SluiceError,
    TooManyWaiting, WrongType,
)
from .replies import Begun, Breaker, Decision, Holder, LockInfo, Policy, Rate, Refusal, StockReplies, StockReply, Waiter
from .sync import Lock, LockOptions, NearCache, Sluice

__all__ = [
    "Begun", "Breaker", "CommandError", "Conflict", "Deadlock", "Decision", "FilterError", "Holder", "LoaderFailed", "Lock", "LockInfo",
    "LockLost", "LockOptions", "LockTimeout", "NearCache", "NoSuchQueue", "OutcomeUnknown", "Policy", "Rate", "Refusal", "Sluice",
    "SluiceError", "StockReplies", "StockReply", "TooManyWaiting", "Waiter", "WrongType",
]
