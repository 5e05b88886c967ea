"""The runner of the Python package: argv[1] is `redis` or `valkey`, argv[2] is `threads` or `asyncio`, argv[3] the protocol."""

import asyncio
import importlib
import inspect
import json
import sys
import threading
import time

LIBRARY, FLAVOR, PROTOCOL = sys.argv[1], sys.argv[2], int(sys.argv[3])
IS_ASYNC = FLAVOR == "asyncio"
INNER = ".asyncio" if IS_ASYNC else ""
TIMEOUT_SECONDS = 2.0

base = importlib.import_module(LIBRARY)
library = importlib.import_module(LIBRARY + INNER)
sluice = importlib.import_module("sluice.aio" if IS_ASYNC else "sluice")
errors = importlib.import_module("sluice.errors")
replies = importlib.import_module("sluice.replies")
BROKEN = (base.exceptions.ConnectionError, base.exceptions.TimeoutError, OSError)


class Refused(Exception):
    """A refusal: a reply that is no success."""


async def settled(value):
    """Returns the result of a coroutine of the asyncio client, or what the client for threads has returned."""
    return await value if inspect.isawaitable(value) else value


def changed(reply):
    if not reply:
        raise Refused(reply.refusal.name)
    return reply.quantity


def all_changed(reply):
    return [changed(one) for one in reply.values()]


class Client:
    """What the requests do. The methods are named after the operations, `lock.acquire` is `lock_acquire`."""

    def __init__(self):
        self.sluice = None

    async def connect(self, topology, host, port, master=None):
        if self.sluice:
            await settled(self.sluice.close())
            await settled((self.client.aclose if IS_ASYNC and hasattr(self.client, "aclose") else self.client.close)())
        self.locks = {}
        self.client = self.open(topology, host, port, master)
        self.sluice = sluice.Sluice(self.client)

    def open(self, topology, host, port, master):
        retry = importlib.import_module(f"{LIBRARY}{INNER}.retry").Retry
        backoff = importlib.import_module(f"{LIBRARY}.backoff").NoBackoff
        options = {"protocol": PROTOCOL, "decode_responses": True, "socket_timeout": TIMEOUT_SECONDS}
        if topology == "cluster":
            module = importlib.import_module(f"{LIBRARY}{INNER}.cluster")
            kind = getattr(module, "RedisCluster", None) or module.ValkeyCluster
            return kind(host=host, port=port, **options)
        options["retry"] = retry(backoff(), 0)  # a limit that is sent twice would count twice
        if topology == "sentinel":
            module = importlib.import_module(f"{LIBRARY}{INNER}.sentinel")
            watcher = {**options, "protocol": 2}  # valkey-py 6 cannot read the replies of Sentinel in RESP3
            return module.Sentinel([(host, port)], sentinel_kwargs=watcher, **options).master_for(master)
        kind = getattr(library, "Redis", None) or library.Valkey
        return kind(host=host, port=port, **options)

    # Locks

    async def _acquire(self, name, lock):
        if not await settled(lock.acquire()):
            raise Refused("timeout")
        self.locks[name] = lock
        return lock.fence

    async def lock_acquire(self, key, name="lock", **options):
        return await self._acquire(name, self.sluice.lock(key, **lock_options(**options)))

    async def lock_acquire_many(self, keys, name="lock", **options):
        await self._acquire(name, self.sluice.lock_many(keys, **lock_options(**options)))
        return list(self.locks[name].fences)

    async def semaphore_acquire(self, key, limit, permits=1, name="lock", **options):
        return await self._acquire(name, self.sluice.semaphore(key, limit, permits=permits, **lock_options(**options)))

    async def lock_release(self, name="lock"):
        await settled(self.locks[name].release())
        return True

    async def lock_check(self, name="lock"):
        await settled(self.locks[name].check())
        return True

    async def lock_lost(self, name="lock"):
        return self.locks[name].lost.is_set()

    # Stock

    async def stock_deduct(self, key, qty, order, user=None):
        return changed(await settled(self.sluice.stock.deduct(key, qty, order=order, user=user)))

    async def stock_deduct_many(self, items, order):
        return all_changed(await settled(self.sluice.stock.deduct_many(items, order=order)))

    async def stock_reserve(self, key, qty, order, ms, user=None):
        return changed(await settled(self.sluice.stock.reserve(key, qty, order=order, seconds=ms / 1000, user=user)))

    async def stock_confirm(self, key, order):
        return changed(await settled(self.sluice.stock.confirm(key, order)))

    async def stock_cancel(self, key, order):
        return changed(await settled(self.sluice.stock.cancel(key, order)))

    async def stock_add(self, key, delta, order):
        return changed(await settled(self.sluice.stock.add(key, delta, order=order)))

    # Work, values, messages, limits, filters

    async def once_run(self, key, result, lease=30_000, takes=0, fingerprint=None):
        runs = []
        work = self._callback(runs, result, takes)
        value = await settled(self.sluice.once.run(key, work, lease=lease / 1000, fingerprint=fingerprint))
        return {"result": value, "runs": len(runs)}

    async def cache_get(self, key, value, lease=30_000, takes=0):
        runs = []
        policy = replies.Policy(fresh=600.0, lease=lease / 1000)
        value = await settled(self.sluice.cache.get(key, self._callback(runs, value, takes), policy))
        return {"value": value, "runs": len(runs)}

    async def cache_delete(self, key):
        await settled(self.sluice.cache.delete(key))

    def _callback(self, runs, result, takes):
        def call(_):
            runs.append(1)
            time.sleep(takes / 1000)
            return result

        async def call_async(_):
            runs.append(1)
            await asyncio.sleep(takes / 1000)
            return result

        return call_async if IS_ASYNC else call

    async def delay_add(self, key, message, ms):
        return await settled(self.sluice.delay.add(key, message, {"text": message}, seconds=ms / 1000))

    async def delay_cancel(self, key, message):
        return await settled(self.sluice.delay.cancel(key, message))

    async def limit_gcra(self, key, burst, count, period):
        return bool(await settled(self.sluice.limit.gcra(key, replies.Rate(count, period / 1000, burst))))

    async def limit_first(self, key, ms):
        return await settled(self.sluice.limit.first(key, ms / 1000))

    async def bloom_add(self, key, item):
        return await settled(self.sluice.bloom.add(key, item))

    async def bloom_exists(self, key, item):
        return await settled(self.sluice.bloom.exists(key, item))


def lock_options(wait=0, lease=10_000, linger=True, max_hold=None):
    return {"wait": wait / 1000, "lease": lease / 1000, "linger": linger, "max_hold": max_hold and max_hold / 1000}


async def answer(client, do, words):
    try:
        return {"ok": await getattr(client, do.replace(".", "_"))(**words)}
    except Refused as refusal:
        return {"refused": str(refusal)}
    except errors.LockLost:
        return {"refused": "lost"}
    except BROKEN:
        return {"error": "connection"}
    except errors.SluiceError as error:
        return {"error": type(error).__name__, "text": str(error)}
    except Exception as error:
        return {"error": "another", "text": repr(error)}


def write(reply):
    with writes:
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def read():
    for line in sys.stdin:
        request = json.loads(line)
        yield request.pop("id"), request.pop("do"), request


def serve_threads(client):
    def run(number, do, words):
        step = answer(client, do, words)
        try:
            step.send(None)  # no operation of this client suspends
        except StopIteration as stop:
            write({"id": number, **stop.value})

    for request in read():
        threading.Thread(target=run, args=request, daemon=True).start()


async def serve_asyncio(client):
    async def run(number, do, words):
        write({"id": number, **await answer(client, do, words)})

    loop, tasks, end = asyncio.get_running_loop(), set(), asyncio.Event()

    def start(request):
        task = loop.create_task(run(*request))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def feed():
        for request in read():
            loop.call_soon_threadsafe(start, request)
        loop.call_soon_threadsafe(end.set)

    threading.Thread(target=feed, daemon=True).start()
    await end.wait()


writes = threading.Lock()
operations = sorted(
    name.replace("_", ".", 1) for name, method in vars(Client).items() if inspect.iscoroutinefunction(method) and name[0] != "_")
# valkey-py 6 does not recognize MOVED and ASK in RESP3.
topologies = ["server", "sentinel"] if (LIBRARY, PROTOCOL) == ("valkey", 3) else ["server", "cluster", "sentinel"]
title = f"{'redis-py' if LIBRARY == 'redis' else 'valkey-py'} {base.__version__}"
write({"client": title, "runtime": f"Python {sys.version.split()[0]}", "repeats": True, "topologies": topologies, "operations": [*operations, "bound", "linger", "local-loss", "notify", "follow"]})
if IS_ASYNC:
    asyncio.run(serve_asyncio(Client()))
else:
    serve_threads(Client())
