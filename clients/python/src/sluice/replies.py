"""The values that the methods return, and the functions that read them from replies in RESP2 and RESP3."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Generic, Mapping, Sequence, TypeVar, Union

T = TypeVar("T")

#: The name of a key.
Key = Union[str, bytes]
#: The bytes of a value, an item, an owner or an id.
Value = Union[str, bytes]
#: One argument of a command.
Word = Union[str, bytes, int, float]


class Refusal(enum.IntEnum):
    """Why a stock refused a change. Nothing was changed.

    Attributes:
        SOLD_OUT: The available quantity is too small. Not remembered: a repetition can succeed later.
        OVER_USER_LIMIT: The user would have more than `per_user`. Not remembered, either.
        CLOSED: The order is canceled, or its reservation has expired. It stays so.
        UNKNOWN: No such order, or no such stock.
    """

    SOLD_OUT = -1
    OVER_USER_LIMIT = -2
    CLOSED = -3
    UNKNOWN = -4


@dataclass(frozen=True)
class StockReply:
    """The reply of a stock. It is true if the change was made, or had been made before by the same order.

    Attributes:
        quantity: The available quantity after the change. Of `confirm` and `cancel`: the quantity of the order. 0 after a refusal.
        refusal: Why the stock refused, or None.
    """

    quantity: int
    refusal: Refusal | None = None

    def __bool__(self) -> bool:
        return self.refusal is None


class StockReplies(Mapping[T, StockReply], Generic[T]):
    """The replies of several stocks, by key. It is true if the change was made; otherwise no stock was changed."""

    def __init__(self, keys: Sequence[T], reply: Sequence[int]) -> None:
        self._replies = {key: stock_reply(number) for key, number in zip(keys, reply)}

    def __getitem__(self, key: T) -> StockReply:
        return self._replies[key]

    def __iter__(self) -> Any:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)

    def __bool__(self) -> bool:
        return all(self._replies.values())

    def __repr__(self) -> str:
        return f"StockReplies({self._replies!r})"


@dataclass(frozen=True)
class Rate:
    """A rate limit: `count` requests in `period` seconds, evenly. An unused limit allows `burst + 1` requests at once.

    So `Rate(10, 1.0)` allows one request each 0.1 seconds, and never two at once.

    Attributes:
        count: The number of requests in a period.
        period: The length of a period in seconds.
        burst: How many more requests than one are allowed at once, after a quiet time. 0: one at a time.
    """

    count: int
    period: float
    burst: int = 0


@dataclass(frozen=True)
class Decision:
    """The reply of a rate limit. It is true if the request is allowed.

    Attributes:
        allowed: Whether the request may proceed.
        limit: The largest cost at once.
        remaining: The remaining quota.
        retry_after: The wait in seconds before the next attempt, or, with `ahead`, before the work begins. None: no wait is needed,
            or no wait helps because the cost is above the limit.
        reset_after: The seconds until the quota is full.
        index: Which tier or which key binds, counted from 0. None for a single limit.
    """

    allowed: bool
    limit: int
    remaining: int
    retry_after: float | None
    reset_after: float
    index: int | None = None

    def __bool__(self) -> bool:
        return self.allowed


@dataclass(frozen=True)
class Begun:
    """The reply of `once.begin`.

    Attributes:
        state: NEW: do the work. BUSY: another worker does it. DONE: use the result.
        result: The result of DONE, otherwise None.
        token: The fencing token of NEW, otherwise 0.
        seconds: BUSY: until the lease of the worker ends. DONE: for how long the result is remembered. NEW: 0.
    """

    state: str
    result: Any
    token: int
    seconds: float


@dataclass(frozen=True)
class Holder:
    """A holder of a lock or a semaphore.

    Attributes:
        owner: The owner's name.
        count: How often the owner acquired the lock, or the number of its permits.
        fence: The fencing token.
        lease: The seconds until the lease ends.
        watchdog: Whether the server renews the lease.
    """

    owner: Any
    count: int
    fence: int
    lease: float
    watchdog: bool


@dataclass(frozen=True)
class Waiter:
    """A request that waits.

    Attributes:
        owner: The owner's name.
        waiting: For how many seconds it has waited.
        timeout: The seconds until it ends, or None without a limit.
    """

    owner: Any
    waiting: float
    timeout: float | None


@dataclass(frozen=True)
class LockInfo:
    """The state of a lock or a semaphore.

    Attributes:
        mode: `exclusive` or `shared`; `semaphore` for a semaphore.
        holders: The holders.
        waiters: The requests that wait, in the order of their arrival.
        limit: The number of permits of a semaphore, otherwise None.
        used: How many of them are held, otherwise None.
    """

    mode: str
    holders: tuple[Holder, ...]
    waiters: tuple[Waiter, ...]
    limit: int | None = None
    used: int | None = None


@dataclass(frozen=True)
class Breaker:
    """A circuit breaker for what a loader asks.

    Attributes:
        name: What the loader asks, for example the name of a database. It is not a key.
        failures: So many failures in a row open the breaker.
        open: The seconds for which the breaker then stays open.
    """

    name: str
    failures: int
    open: float


@dataclass(frozen=True)
class Policy:
    """How `cache.get` and a near cache treat an entry. All times are in seconds.

    Attributes:
        fresh: For how long a loaded value is fresh.
        stale: For how much longer the value is served while one caller loads it again.
        negative: For how long the answer that no value exists is fresh.
        jitter: Each time becomes up to so many percent longer or shorter, so that entries do not expire together.
        lease: How long a loader may take. After it, another caller may load, and the value of the first is then not stored. Set it to
            more than the longest load.
        backoff: After a failed loader, no caller loads the key for so long. 0: the next caller tries at once.
        early: If less than that is left of the fresh time, one caller loads, and the others get the old value.
        beta: The same at random, by XFetch. 1 is a good value.
        slide: A hit keeps the entry fresh for that long again.
        guard: The key of a Bloom or cuckoo filter of existing keys. A key that it lacks is not loaded.
        breaker: A circuit breaker, which stops all loads of its name.
    """

    fresh: float = 60.0
    stale: float = 0.0
    negative: float = 5.0
    jitter: int = 10
    lease: float = 3.0
    backoff: float = 1.0
    early: float | None = None
    beta: float | None = None
    slide: float | None = None
    guard: Key | None = None
    breaker: Breaker | None = None

    def fetch(self, key: Key, block: float = 0.0) -> list[Word]:
        """Returns the words of CACHE.FETCH."""
        words: list[Word] = ["CACHE.FETCH", key, "LEASE", ms(self.lease)]
        words += option("EARLY", self.early) + option("SLIDE", self.slide)
        if self.beta is not None:
            words += ["BETA", self.beta]
        if self.guard is not None:
            words += ["GUARD", self.guard, key]
        if self.breaker is not None:
            words += ["BREAKER", self.breaker.name, self.breaker.failures, ms(self.breaker.open)]
        return words + (["BLOCK", ms(block)] if block else [])

    def store(self, key: Key, value: Value | None) -> list[Word]:
        """Returns the words of CACHE.SET or CACHE.SETNULL."""
        words: list[Word] = ["CACHE.SETNULL", key, "PX", ms(self.negative)]
        if value is not None:
            words = ["CACHE.SET", key, value, "PX", ms(self.fresh)]
        if self.stale:
            words += ["STALE", ms(self.stale)]
        return words + ["JITTER", self.jitter]


def ms(seconds: float) -> int:
    """Returns milliseconds, at least 1."""
    return max(round(seconds * 1000), 1)


def option(name: str, seconds: float | None) -> list[Word]:
    """Returns the words of an option in milliseconds, none without a value."""
    return [] if seconds is None else [name, ms(seconds)]


def id_of(name: str, value: Any) -> Word:
    """Returns an argument that is an id."""
    if isinstance(value, bool) or not isinstance(value, (str, bytes, int)):
        raise TypeError(f"{name} must be a str or bytes, not {value!r}")
    return value


def integer(name: str, value: Any) -> int:
    """Returns an argument that is an integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {value!r}")
    return value


def duration(name: str, seconds: Any) -> int:
    """Returns the milliseconds of an argument that is a duration in seconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {seconds!r}")
    if not seconds > 0:
        raise ValueError(f"{name} must be greater than 0, not {seconds!r}")
    return ms(seconds)


def text(word: Any) -> Any:
    return word.decode(errors="replace") if isinstance(word, bytes) else word


def same(reply: Any) -> Any:
    return reply


def nothing(reply: Any) -> None:
    return None


def is_set(reply: Any) -> bool:
    return reply is not None


def integer_or_none(reply: Any) -> int | None:
    return None if reply is None else int(reply)


def boolean_or_none(reply: Any) -> bool | None:
    return None if reply is None else bool(reply)


def booleans(reply: Sequence[Any]) -> list[bool]:
    for one in reply:
        if isinstance(one, Exception):
            raise one
    return [bool(one) for one in reply]


def stock_reply(reply: int) -> StockReply:
    return StockReply(0, Refusal(reply)) if reply < 0 else StockReply(reply)


def decision(reply: Sequence[int]) -> Decision:
    limited, limit, remaining, retry, reset = reply[:5]
    return Decision(not limited, limit, remaining, None if retry < 0 else retry / 1000, reset / 1000,
                    reply[5] if len(reply) > 5 else None)


def begun(reply: Sequence[Any]) -> Begun:
    state, result, number = text(reply[0]), reply[1], reply[2]
    is_new = state == "NEW"
    return Begun(state, result, number if is_new else 0, 0.0 if is_new else number / 1000)


def fetched(reply: Sequence[Any]) -> tuple[str, Any, int]:
    return text(reply[0]), reply[1], reply[2]


def fields(reply: Any) -> dict[str, Any] | None:
    """Reads a map of RESP3, or the flat array of RESP2. Maps inside stay as the library returns them."""
    if reply is None:
        return None
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2])
    return {text(name): value for name, value in pairs}


def message(reply: Any) -> tuple[float, dict[Any, Any]] | None:
    if reply is None:
        return None
    left, words = reply
    pairs = words.items() if isinstance(words, dict) else zip(words[::2], words[1::2])
    return left / 1000, dict(pairs)


def message_times(reply: Sequence[Any]) -> list[tuple[Any, float]]:
    return [(id, left / 1000) for id, left in reply]


def lock_info(reply: Any) -> LockInfo | None:
    about = fields(reply)
    if about is None:
        return None
    holders = [fields(one) or {} for one in about["holders"]]
    waiters = [fields(one) or {} for one in about["waiters"]]
    return LockInfo(
        text(about.get("mode", "semaphore")),
        tuple(Holder(one["owner"], one["count"], one["fence"], one["lease_ms"] / 1000, bool(one["watchdog"])) for one in holders),
        tuple(Waiter(one["owner"], one["waiting_ms"] / 1000, one["timeout_ms"] / 1000 if one["timeout_ms"] > 0 else None)
              for one in waiters),
        about.get("limit"), about.get("used"))
