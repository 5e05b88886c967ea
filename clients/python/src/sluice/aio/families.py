"""Stock, limits, idempotency keys, delay queues and filters. One method is one command, unless it says otherwise."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Mapping, Sequence, TypeVar, overload

from ..errors import CommandError, LockLost, is_outcome_unknown
from ..replies import (
    Begun, Decision, Key, Rate, StockReplies, StockReply, Value, Word, begun, boolean_or_none, booleans, decision, duration, fields, id_of,
    integer, integer_or_none, is_set, message, message_times, ms, nothing, option, stock_reply,
)
from .runtime import result_of, shield, sleep
from .turns import Turns

if TYPE_CHECKING:
    from .client import Sluice

K = TypeVar("K", bound=Key)

POLL_SECONDS = 0.02
WINDOW_KINDS = ("FIXED", "SLIDING", "EXACT")
LEASE_SECONDS = 30.0


class Family:
    """The commands of one family."""

    def __init__(self, sluice: "Sluice") -> None:
        self._run = sluice.run
        self._sluice = sluice


def order_words(order: Value, user: Value | None) -> list[Word]:
    return ["ORDER", id_of("order", order), *([] if user is None else ["USER", id_of("user", user)])]


class Stock(Family):
    """Inventory. A change returns a `StockReply`, which is false after a refusal.

    Each change has an order id. Create the id before the first attempt and store it with the order. A repetition of `deduct` or
    `reserve` with the same id and arguments changes nothing and returns the first reply, as long as the order is reserved or sold. If
    it was canceled, or its reservation has expired, the reply is `CLOSED`. A refusal is not remembered: after `SOLD_OUT`, a repetition
    can succeed. Ids are remembered for `retain` seconds after the order was sold, canceled or expired.
    """

    async def create(self, key: Key, total: int, *, replace: bool = False, per_user: int | None = None,
                     retain: float | None = None, events: Key | None = None, max_events: int | None = None) -> bool:
        """Creates a stock.

        Args:
            key: The key of the stock.
            total: The available quantity.
            replace: Whether an existing stock is replaced, with its orders. Then the command is not repeated: another client can have
                sold meanwhile.
            per_user: The largest quantity of one user. Then each change needs `user`.
            retain: The seconds for which an order is remembered after it was sold, canceled or expired. The default is one day.
            events: The key of a stream, in the same hash slot, which gets each change.
            max_events: The approximate length of that stream. The default is 100000.

        Returns:
            False if the stock exists and `replace` is false. Then nothing is changed, also none of its options.
        """
        return await self._run(is_set, "STOCK.SET", key, integer("total", total), *([] if replace else ["NX"]),
                               *self._settings(per_user, retain, events, max_events), repeat=not replace)

    async def import_counter(self, key: Key, *, per_user: int | None = None, retain: float | None = None,
                             events: Key | None = None, max_events: int | None = None) -> StockReply:
        """Converts a counter, or a hash with `total` and `ordered`, into a stock. The arguments are those of `create`.

        Not repeated: the reply to a repetition is `WrongType`, because the key is a stock already.
        """
        words = self._settings(per_user, retain, events, max_events)
        return await self._run(stock_reply, "STOCK.IMPORT", key, *words, repeat=False)

    @staticmethod
    def _settings(per_user: int | None, retain: float | None, events: Key | None, max_events: int | None) -> list[Word]:
        words: list[Word] = [] if per_user is None else ["PERUSER", per_user]
        words += option("RETAIN", retain)
        if events is not None:
            words += ["EVENTS", events] + ([] if max_events is None else ["MAXLEN", max_events])
        return words

    async def add(self, key: Key, delta: int, *, order: Value) -> StockReply:
        """Adds `delta`, which can be negative, to the available quantity, once for each order id."""
        return await self._run(stock_reply, "STOCK.ADD", key, integer("delta", delta), *order_words(order, None))

    async def deduct(self, key: Key, qty: int = 1, *, order: Value, user: Value | None = None) -> StockReply:
        """Sells, once for each order id. If the order was canceled meanwhile, a repetition returns `CLOSED`.

        Args:
            key: The key of the stock.
            qty: The quantity.
            order: The order id, 1 to 512 bytes. In a service, make it an id of this user: `f"{user}:{id}"`.
            user: The buyer. Needed if the stock has `per_user`.

        Raises:
            Conflict: The order id was used before with other arguments.
        """
        return await self._run(stock_reply, "STOCK.DEDUCT", key, integer("qty", qty), *order_words(order, user))

    async def reserve(self, key: Key, qty: int = 1, *, order: Value, seconds: float, user: Value | None = None) -> StockReply:
        """Reserves for a time, once for each order id. Without `confirm` in time, the server returns the quantity to the stock.

        A repetition neither reserves more nor lengthens the time. If the reservation has expired or was canceled, it returns `CLOSED`.

        Args:
            key: The key of the stock.
            qty: The quantity.
            order: The order id, 1 to 512 bytes. In a service, make it an id of this user: `f"{user}:{id}"`.
            seconds: How long the reservation lasts.
            user: The buyer. Needed if the stock has `per_user`.

        Raises:
            Conflict: The order id was used before with other arguments.
        """
        words = [*order_words(order, user), "PX", duration("seconds", seconds)]
        return await self._run(stock_reply, "STOCK.RESERVE", key, integer("qty", qty), *words)

    async def confirm(self, key: Key, order: Value) -> StockReply:
        """Sells a reservation. `quantity` of the reply is that of the order, also of a repetition.

        Confirm before the charge: an expired reservation returns `CLOSED`, an unknown order `UNKNOWN`. If the charge is declined, `cancel`
        returns the quantity to the stock.
        """
        return await self._run(stock_reply, "STOCK.CONFIRM", key, id_of("order", order))

    async def cancel(self, key: Key, order: Value) -> StockReply:
        """Returns a reservation or a sale to the stock. `quantity` of the reply is that of the order.

        It closes the order id, also an unknown one: a later `deduct` or `reserve` with this id returns `CLOSED`.
        """
        return await self._run(stock_reply, "STOCK.CANCEL", key, id_of("order", order))

    async def deduct_many(self, items: Mapping[K, int], *, order: Value, user: Value | None = None) -> StockReplies[K]:
        """Sells of several stocks of one hash slot: all or none. `items` has the quantity of each key."""
        return await self._many("STOCK.MDEDUCT", items, order_words(order, user))

    async def reserve_many(self, items: Mapping[K, int], *, order: Value, seconds: float,
                           user: Value | None = None) -> StockReplies[K]:
        """Reserves of several stocks of one hash slot: all or none. `items` has the quantity of each key."""
        return await self._many("STOCK.MRESERVE", items, [*order_words(order, user), "PX", duration("seconds", seconds)])

    async def _many(self, command: str, items: Mapping[K, int], words: Sequence[Word]) -> StockReplies[K]:
        pairs: list[Word] = [word for key, qty in items.items() for word in (key, integer("qty", qty))]
        keys = list(items)
        return await self._run(lambda reply: StockReplies(keys, reply), command, len(keys), *pairs, *words)

    async def confirm_many(self, keys: Sequence[K], order: Value) -> StockReplies[K]:
        """Sells the reservation of several stocks: all or none."""
        return await self._run(lambda reply: StockReplies(keys, reply), "STOCK.MCONFIRM", len(keys), *keys, id_of("order", order))

    async def cancel_many(self, keys: Sequence[K], order: Value) -> StockReplies[K]:
        """Returns the order to several stocks: all or none."""
        return await self._run(lambda reply: StockReplies(keys, reply), "STOCK.MCANCEL", len(keys), *keys, id_of("order", order))

    async def get(self, key: Key) -> int | None:
        """Returns the available quantity, or None if the stock does not exist."""
        return await self._run(integer_or_none, "STOCK.GET", key)

    async def get_many(self, keys: Sequence[K]) -> dict[K, int | None]:
        """Returns the available quantity of each key."""
        return await self._run(lambda reply: dict(zip(keys, reply)), "STOCK.MGET", *keys)

    async def order(self, key: Key, order: Value) -> dict[str, Any] | None:
        """Returns state, qty, user, created_ms and expires_ms of an order, or None if it is unknown."""
        return await self._run(fields, "STOCK.ORDER", key, order)

    async def info(self, key: Key) -> dict[str, Any] | None:
        """Returns the fields of `STOCK.INFO`, or None if the stock does not exist."""
        return await self._run(fields, "STOCK.INFO", key)


class Limit(Family):
    """Rate limits. A limit returns a `Decision`, which is false after a refusal.

    The commands are not idempotent: a request whose reply was lost can count twice.
    """

    async def gcra(self, key: Key, rate: Rate, *, cost: int = 1, peek: bool = False, ahead: float = 0.0) -> Decision:
        """Allows `rate.count` requests in `rate.period` seconds, evenly. An unused limit allows `rate.burst + 1` requests at once.

        Args:
            key: The key of the limit.
            rate: The limit.
            cost: What the request consumes.
            peek: Whether nothing is consumed.
            ahead: If the request would be allowed within that many seconds, it is allowed now, and `retry_after` is the wait before
                the work begins.
        """
        return await self._run(decision, "RATE.GCRA", key, *self._words(rate), *self._options(cost, peek, ahead), repeat=peek)

    async def window(self, key: Key, limit: int, seconds: float, *, cost: int = 1, peek: bool = False,
                     kind: str = "FIXED") -> Decision:
        """Allows `limit` requests in a window.

        Args:
            key: The key of the limit.
            limit: The number of requests.
            seconds: The length of the window.
            cost: What the request consumes.
            peek: Whether nothing is consumed.
            kind: FIXED: the window starts at the first request; around its end, up to twice the limit can pass in that length. SLIDING:
                also counts the part of the window before that lies in it. EXACT: no span of that length ever has more requests.
        """
        if str(kind).upper() not in WINDOW_KINDS:
            raise ValueError(f"kind must be FIXED, SLIDING or EXACT, not {kind!r}")
        kinds: list[Word] = [] if kind.upper() == "FIXED" else [kind.upper()]
        return await self._run(decision, "RATE.WINDOW", key, limit, ms(seconds), *kinds, *self._options(cost, peek, 0.0),
                               repeat=peek)

    async def tiers(self, key: Key, rates: Sequence[Rate], *, cost: int = 1, peek: bool = False, ahead: float = 0.0) -> Decision:
        """Applies several limits to one key: all or none. `index` of the reply is the limit that binds."""
        words = [word for one in rates for word in self._words(one)]
        return await self._run(decision, "RATE.TIERS", key, len(rates), *words, *self._options(cost, peek, ahead), repeat=peek)

    async def many(self, rates: Mapping[K, Rate], *, cost: int = 1, peek: bool = False, ahead: float = 0.0) -> Decision:
        """Applies one limit to each of several keys of one hash slot: all or none. `index` of the reply is the key that binds."""
        words = [word for key in rates for word in (key, *self._words(rates[key]))]
        return await self._run(decision, "RATE.MGCRA", len(rates), *words, *self._options(cost, peek, ahead), repeat=peek)

    async def charge(self, key: Key, cost: int) -> bool:
        """Consumes more, whether or not it is there: later requests wait for it. Returns false if the key does not exist."""
        return await self._run(bool, "RATE.CHARGE", key, cost, repeat=False)

    async def refund(self, key: Key, cost: int) -> bool:
        """Returns what was consumed. Returns false if the key does not exist."""
        return await self._run(bool, "RATE.REFUND", key, cost, repeat=False)

    async def first(self, key: Key, seconds: float) -> bool:
        """Returns true to the first caller within the time, false to all others (`RATE.ONCE`)."""
        return await self._run(bool, "RATE.ONCE", key, "PX", ms(seconds), repeat=False)

    @staticmethod
    def _words(rate: Rate) -> tuple[Word, ...]:
        if not isinstance(rate, Rate):
            raise TypeError(f"rate must be a Rate, for example Rate(10, 1.0, burst=20), not a {type(rate).__name__}")
        return (rate.burst, rate.count, ms(rate.period))

    @staticmethod
    def _options(cost: int, peek: bool, ahead: float) -> list[Word]:
        return ["COST", cost, *(["PEEK"] if peek else []), *(option("AHEAD", ahead) if ahead else [])]


class Once(Family):
    """Idempotency keys: work that is done once, and whose result each caller gets."""

    def __init__(self, sluice: "Sluice") -> None:
        super().__init__(sluice)
        self._turns = Turns()

    async def run(self, key: Key, work: Callable[[int], Awaitable[Value]], *, lease: float = LEASE_SECONDS,
                  fingerprint: Value | None = None, remember: float = 86_400.0) -> Any:
        """Does work once. Other callers wait for its result, in this process and in all others.

        While another process does the work, one caller of this process waits with a connection of the pool for each key; the other
        callers wait for this one. The work itself occupies no connection, but its result needs one.

        Args:
            key: The idempotency key.
            work: The work. It gets the fencing token and returns the result: a `str` or `bytes`, for example of `json.dumps`. An `int`
                or a `float` becomes text. If it raises, the key is free, and the next caller does the work. After `OutcomeUnknown`,
                `TimeoutError` or a cancellation, the work may have had its effect: the key is busy until the lease ends. Convert the
                timeouts of other libraries into `OutcomeUnknown`.
            lease: The seconds that the work may take. If it takes longer, another caller may begin. The next worker after an unknown
                outcome finds out first whether the work was done, for example from the payment provider.
            fingerprint: The digest of the request, at most 512 bytes.
            remember: The seconds for which the result is remembered.

        Returns:
            The result, as the client returns values.

        Raises:
            Conflict: The key was used before with another fingerprint.
            LockLost: The lease ended before the work did: roll the work back. Its result is not stored.
            TypeError: The work returned a value that cannot be stored, for example None or a `dict`. The work has been done, so the key
                is busy until the lease ends.
            ConnectionError: The server does not answer. The exception is that of the client library. After the work, the key is busy
                until the lease ends. If all connections of the pool are in use after the work, the method waits for one until then.
        """
        reply = await self.begin(key, lease=lease, fingerprint=fingerprint)
        if reply.state == "BUSY":
            async with self._turns.of(key):
                while reply.state == "BUSY":
                    reply = await self.begin(key, lease=lease, fingerprint=fingerprint, wait=lease)
        if reply.state == "DONE":
            return reply.result
        ends_at = time.monotonic() + lease
        try:
            result = await result_of(work, "work", reply.token)
            self._sluice.check(result, f"the work of once.run for key {key!r} returned")
        except BaseException as error:
            if not is_outcome_unknown(error):
                await shield(self._give_back(key, reply, ends_at))
            raise
        if not await shield(self._done(key, reply.token, result, remember, ends_at)):
            raise LockLost(key)
        return self._sluice.value(result)

    async def begin(self, key: Key, *, lease: float, fingerprint: Value | None = None, wait: float = 0.0) -> Begun:
        """Begins work. `run` is the whole protocol.

        If a task of asyncio is canceled during the call, its key becomes free again. If the reply of the server is lost, no client
        knows the token: the key is free when the lease ends.

        Args:
            key: The idempotency key.
            lease: The seconds that the work may take.
            fingerprint: The digest of the request.
            wait: How long to wait while another worker is busy, in seconds. The wait uses a connection of the pool. If the client
                has only one connection, the method sends the command again and again instead.

        Raises:
            Conflict: The key was used before with another fingerprint.
        """
        words: list[Word] = ["LEASE", ms(lease), *([] if fingerprint is None else ["FINGERPRINT", fingerprint])]
        deadline = time.monotonic() + wait

        async def give_back(reply: Begun) -> None:
            await self._give_back(key, reply, time.monotonic() + lease)

        while True:
            left = deadline - time.monotonic()
            block = min(left, self._sluice.block_seconds)
            request = [*words, *option("BLOCK", block if block > 0 else None)]
            reply = await self._sluice._requests.run(lambda: self._run(begun, "ONCE.BEGIN", key, *request), give_back)
            if reply.state != "BUSY" or left <= 0:
                return reply
            if block <= 0:
                await sleep(min(left, reply.seconds, POLL_SECONDS))

    async def _give_back(self, key: Key, reply: Begun, ends_at: float) -> None:
        """Frees the key of work that is not done. If that fails, the lease ends by itself."""
        if reply.state == "NEW":
            with contextlib.suppress(CommandError, *self._sluice.library.broken):
                await self._fail(key, reply.token, ends_at)

    async def done(self, key: Key, token: int, result: Value, *, remember: float = 86_400.0, lease: float = LEASE_SECONDS) -> bool:
        """Stores the result. The work has been done: do not lose it.

        Args:
            key: The idempotency key.
            token: The token of `begin`.
            result: The result, a `str` or `bytes`. An `int` or a `float` becomes text.
            remember: The seconds for which the result is remembered.
            lease: The remaining seconds of the lease. If all connections of the pool are in use, the method tries again for so long.

        Returns:
            False if another worker has begun since, or the lease ended.

        Raises:
            TypeError: The result cannot be stored, for example None or a `dict`.
        """
        self._sluice.check(result, f"the result of key {key!r} is")
        return await self._done(key, token, result, remember, time.monotonic() + lease)

    async def fail(self, key: Key, token: int, *, lease: float = LEASE_SECONDS) -> bool:
        """Frees the key: the next caller does the work.

        Args:
            key: The idempotency key.
            token: The token of `begin`.
            lease: The remaining seconds of the lease. If all connections of the pool are in use, the method tries again for so long.

        Returns:
            False if another worker has begun since, or the lease ended.
        """
        return await self._fail(key, token, time.monotonic() + lease)

    async def _done(self, key: Key, token: int, result: Value, remember: float, ends_at: float) -> bool:
        return await self._run(bool, "ONCE.DONE", key, token, result, "PX", ms(remember), until=ends_at)

    async def _fail(self, key: Key, token: int, ends_at: float) -> bool:
        return await self._run(bool, "ONCE.FAIL", key, token, until=ends_at)

    async def info(self, key: Key) -> dict[str, Any] | None:
        """Returns the fields of `ONCE.INFO`, or None if the key does not exist."""
        return await self._run(fields, "ONCE.INFO", key)


class Delay(Family):
    """Delay queues: the server appends each message to a stream at its time.

    The package does not repeat the commands that change a queue. The message can be delivered, and another client can cancel or
    replace it, before the repetition. After a broken connection, repeat `add` if the work of the message is idempotent by its id.
    """

    async def create(self, key: Key, stream: Key, *, max_length: int | None = None) -> None:
        """Creates a queue, or gives it another stream. Queue and stream are in one hash slot.

        Args:
            key: The key of the queue.
            stream: The key of the stream, which workers read with `XREADGROUP`.
            max_length: The approximate length to which the stream is trimmed.
        """
        words: list[Word] = [] if max_length is None else ["MAXLEN", max_length]
        return await self._run(nothing, "DELAY.SET", key, "STREAM", stream, *words, repeat=False)

    async def add(self, key: Key, id: Value, values: Mapping[str, Word], *, seconds: float = 0.0, at: float | None = None,
                  only: str | None = None) -> bool | None:
        """Schedules a message.

        Args:
            key: The key of the queue.
            id: The id of the message. A waiting message with this id is replaced.
            values: The fields and values of the stream's entry.
            seconds: When the message is delivered, in seconds from now.
            at: When the message is delivered, in Unix time in seconds, instead of `seconds`.
            only: NX: only a new message. XX: only a replacement.

        Returns:
            True for a new message, false for a replacement, None if `only` forbids it.

        Raises:
            NoSuchQueue: The queue does not exist.
        """
        words: list[Word] = ["PX", round(seconds * 1000)] if at is None else ["PXAT", round(at * 1000)]
        words += [only, "VALUES"] if only else ["VALUES"]
        for field, value in values.items():
            words += [field, value]
        return await self._run(boolean_or_none, "DELAY.ADD", key, id, *words, repeat=False)

    async def cancel(self, key: Key, *ids: Value) -> int:
        """Removes messages that are not delivered yet. Returns their number."""
        return await self._run(int, "DELAY.CANCEL", key, *ids, repeat=False)

    async def get(self, key: Key, id: Value) -> tuple[float, dict[Any, Any]] | None:
        """Returns the remaining seconds and the values of a message, or None."""
        return await self._run(message, "DELAY.GET", key, id)

    async def range(self, key: Key, count: int) -> list[tuple[Any, float]]:
        """Returns the id and the remaining seconds of the next `count` messages."""
        return await self._run(message_times, "DELAY.RANGE", key, count)

    async def info(self, key: Key) -> dict[str, Any] | None:
        """Returns the fields of `DELAY.INFO`, or None if the queue does not exist."""
        return await self._run(fields, "DELAY.INFO", key)


class Bloom(Family):
    """Bloom filters. `exists` has false positives, but no false negatives."""

    @overload
    async def reserve(self, key: Key, error_rate: float, capacity: int, *, expansion: int | None = None) -> None: ...

    @overload
    async def reserve(self, key: Key, *, like: Key) -> None: ...

    async def reserve(self, key: Key, error_rate: float | None = None, capacity: int | None = None, *, expansion: int | None = None,
                      like: Key | None = None) -> None:
        """Creates a filter.

        Args:
            key: The key of the filter.
            error_rate: The largest false positive rate, between 0 and 1.
            capacity: The number of items for which the filter has room.
            expansion: How many times larger each further layer is. 0: the filter does not grow.
            like: The key of another filter of the same hash slot, instead of the other arguments. `merge` can merge the two.

        Raises:
            FilterError: The filter exists, `like` does not exist, or an argument is out of range.
        """
        if like is not None:
            if (error_rate, capacity, expansion) != (None, None, None):
                raise TypeError("a filter is either like another one or has an error rate and a capacity")
            return await self._run(nothing, "BF.RESERVE", key, "LIKE", like, repeat=False)
        if error_rate is None or capacity is None:
            raise TypeError("a filter needs an error rate and a capacity, or another filter that it is like")
        words: list[Word] = [] if expansion is None else ["EXPANSION", expansion]
        return await self._run(nothing, "BF.RESERVE", key, error_rate, capacity, *words, repeat=False)

    async def add(self, key: Key, item: Value) -> bool:
        """Adds an item, and creates the filter if needed. Returns false if the filter may have had it before."""
        return await self._run(bool, "BF.ADD", key, item)

    async def add_many(self, key: Key, items: Sequence[Value]) -> list[bool]:
        """Adds items. Returns for each what `add` returns."""
        return await self._run(booleans, "BF.MADD", key, *items)

    async def exists(self, key: Key, item: Value) -> bool:
        """Returns false if the filter certainly does not have the item."""
        return await self._run(bool, "BF.EXISTS", key, item)

    async def exists_many(self, key: Key, items: Sequence[Value]) -> list[bool]:
        """Returns for each item what `exists` returns."""
        return await self._run(booleans, "BF.MEXISTS", key, *items)

    async def count(self, key: Key) -> int:
        """Returns the number of added items, 0 if the filter does not exist."""
        return await self._run(int, "BF.CARD", key)

    async def merge(self, destination: Key, sources: Sequence[Key]) -> None:
        """Adds filters of the same shape to `destination`. Not idempotent: a repetition counts the items once more.

        Raises:
            FilterError: The filters differ in shape, or a source does not exist.
        """
        return await self._run(nothing, "BF.MERGE", destination, len(sources), *sources, repeat=False)

    async def info(self, key: Key) -> dict[str, Any] | None:
        """Returns the fields of `BF.INFO`.

        Raises:
            FilterError: The filter does not exist.
        """
        return await self._run(fields, "BF.INFO", key)


class Cuckoo(Family):
    """Cuckoo filters: like Bloom filters, but items can be removed."""

    async def reserve(self, key: Key, capacity: int, *, bits: int | None = None, expansion: int | None = None) -> None:
        """Creates a filter.

        Args:
            key: The key of the filter.
            capacity: The number of items for which the filter has room.
            bits: The width of a fingerprint: 8, 16 (default) or 32. More bits make fewer false positives.
            expansion: How many times larger each further layer is. 0: the filter does not grow.

        Raises:
            FilterError: The filter exists, or an argument is out of range.
        """
        words: list[Word] = [] if expansion is None else ["EXPANSION", expansion]
        words += [] if bits is None else ["BITS", bits]
        return await self._run(nothing, "CF.RESERVE", key, capacity, *words, repeat=False)

    async def add(self, key: Key, item: Value) -> bool:
        """Adds an item once more, and creates the filter if needed. Not idempotent."""
        return await self._run(bool, "CF.ADD", key, item, repeat=False)

    async def add_new(self, key: Key, item: Value) -> bool:
        """Adds an item unless the filter may have it. Returns false if it may. Not repeated: another client can delete the item."""
        return await self._run(bool, "CF.ADDNX", key, item, repeat=False)

    async def exists(self, key: Key, item: Value) -> bool:
        """Returns false if the filter certainly does not have the item."""
        return await self._run(bool, "CF.EXISTS", key, item)

    async def exists_many(self, key: Key, items: Sequence[Value]) -> list[bool]:
        """Returns for each item what `exists` returns."""
        return await self._run(booleans, "CF.MEXISTS", key, *items)

    async def delete(self, key: Key, item: Value) -> bool:
        """Removes an item that was added. For an item that was never added, another item can be removed. Not idempotent."""
        return await self._run(bool, "CF.DEL", key, item, repeat=False)

    async def count(self, key: Key, item: Value) -> int:
        """Returns how often the item was added, or more."""
        return await self._run(int, "CF.COUNT", key, item)

    async def info(self, key: Key) -> dict[str, Any] | None:
        """Returns the fields of `CF.INFO`.

        Raises:
            FilterError: The filter does not exist.
        """
        return await self._run(fields, "CF.INFO", key)
