"""Locks and semaphores."""

import pytest

from sluice import Deadlock, LockLost, LockTimeout

from .helpers import TASKS, Event, eventually, finish, is_set, pause, start, together

LONG = 600_000


def waiting(admin):
    return admin.info("sluice")["sluice_lock_waiting"]


def take(admin, key="k"):
    return admin.execute_command("LOCK.ACQUIRE", key, "other", "PX", LONG)


def kill(admin, kind):
    admin.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


async def test_many_callers_share_one_connection_and_one_subscription(sluice, admin):
    inside, most, fences = 0, 0, []

    async def work():
        nonlocal inside, most
        async with sluice.lock("k", wait=500) as lock:
            inside += 1
            most = max(most, inside)
            fences.append(lock.fence)
            await pause()
            inside -= 1

    await together(work, TASKS)
    assert most == 1
    assert fences == sorted(set(fences)) and len(fences) == TASKS
    assert len(admin.client_list()) == 3  # commands, messages, and this test
    assert not admin.exists("k") and waiting(admin) == 0


async def test_a_busy_lock_times_out_and_leaves_no_request(sluice, admin):
    take(admin)
    for wait in 0, 0.02:
        with pytest.raises(LockTimeout):
            async with sluice.lock("k", wait=wait):
                pytest.fail("the lock is busy")
        lock = sluice.lock("k", wait=wait)
        assert await lock.acquire() is False and lock.fence == 0
    assert waiting(admin) == 0


async def test_a_wait_without_limit_ends_with_the_lock(sluice, admin):
    take(admin)

    async def hold():
        async with sluice.lock("k", wait=None) as lock:
            return lock.fence

    handle = start(hold)
    await eventually(lambda: waiting(admin) == 1)
    admin.execute_command("LOCK.RELEASE", "k", "other")
    assert await finish(handle) > 0


async def test_a_lock_object_acquires_again_after_its_release(sluice, admin):
    lock = sluice.lock("k")
    assert await lock.acquire()
    first = lock.fence
    await lock.release()
    with pytest.raises(RuntimeError):
        await lock.release()
    assert await lock.acquire() and lock.fence > first
    await lock.release()


async def test_readers_share_a_lock_and_exclude_a_writer(sluice, admin):
    async with sluice.read_lock("k"):
        async with sluice.read_lock("k", wait=0):
            assert await sluice.lock("k", wait=0).acquire() is False
    async with sluice.lock("k", wait=0):
        assert await sluice.read_lock("k", wait=0).acquire() is False


async def test_a_semaphore_has_a_limit(sluice, admin):
    async with sluice.semaphore("s", 3, permits=2) as two:
        await two.check()
        async with sluice.semaphore("s", 3) as one:
            assert one.fence > two.fence
            assert await sluice.semaphore("s", 3, wait=0).acquire() is False
    async with sluice.semaphore_many({"s": 1, "t": 2}, wait=0) as both:
        assert len(both.fences) == 2
        await both.check()
        assert await sluice.semaphore_many({"t": 2, "s": 1}, wait=0).acquire() is False
        assert await sluice.semaphore("t", 2, wait=0).acquire() is True
    assert not admin.exists("s")


async def test_several_keys_are_locked_at_once(sluice, admin):
    async with sluice.lock_many(["a", "b"], wait=0) as lock:
        assert len(lock.fences) == 2
        await lock.check()
        assert await sluice.lock_many(["b", "c"], wait=0).acquire() is False

        async def wait():
            async with sluice.lock_many(["b", "c"]) as other:
                return other.fences

        handle = start(wait)
        await eventually(lambda: waiting(admin) == 1)
    assert min(await finish(handle)) > max(lock.fences or (0,))
    assert not admin.exists("a", "b", "c")


async def test_a_loss_sets_the_event_and_calls_the_callback_once(sluice, admin):
    calls, called = [], Event()

    def on_lost():
        calls.append(1)
        called.set()

    with pytest.raises(LockLost):
        async with sluice.lock("k", on_lost=on_lost) as lock:
            await lock.check()
            admin.delete("k")
            assert await is_set(lock.lost)
            assert await is_set(called)
            with pytest.raises(LockLost):
                await lock.check()
    assert calls == [1]


async def test_the_loss_of_one_of_several_keys_is_a_loss(sluice, admin):
    with pytest.raises(LockLost):
        async with sluice.lock_many(["a", "b"]) as lock:
            admin.delete("b")
            assert await is_set(lock.lost)
    assert not admin.exists("a")


async def test_an_exception_of_the_block_is_not_replaced(sluice, admin):
    for is_lost in False, True:
        with pytest.raises(ZeroDivisionError):
            async with sluice.lock("k"):
                if is_lost:
                    admin.delete("k")
                1 / 0
        assert not admin.exists("k")


async def test_a_wait_that_never_ends_is_refused(sluice, admin):
    async with sluice.lock("k", owner="me"):
        admin.execute_command("LOCK.ACQUIRE", "other", "other", "PX", LONG)
        admin.execute_command("LOCK.ACQUIRE", "k", "other", "BLOCK", LONG, "ID", "1", "NOTIFY", "channel")
        with pytest.raises(Deadlock):
            await sluice.lock("other", owner="me").acquire()


async def test_a_lock_survives_its_killed_connections(sluice, admin):
    lock = sluice.lock("k")
    assert await lock.acquire()
    for kind in ("normal", "pubsub", "normal"):
        kill(admin, kind)
        assert await sluice.lock("k", wait=0).acquire() is False
        await lock.check()
    await eventually(lambda: admin.info("sluice")["sluice_lock_watchdog_holds"] == 1)
    await eventually(lambda: len(admin.pubsub_channels("sluice:*")) == 1)
    assert not lock.lost.is_set()
    admin.delete("k")
    assert await is_set(lock.lost)
    with pytest.raises(LockLost):
        await lock.release()


async def test_a_lock_that_does_not_linger_is_lost_with_its_connection(sluice, admin):
    with pytest.raises(LockLost):
        async with sluice.lock("k", linger=False) as lock:
            kill(admin, "normal")
            assert await is_set(lock.lost)


async def test_a_waiting_caller_survives_killed_connections(sluice, admin):
    take(admin)

    async def hold():
        async with sluice.lock("k", wait=60) as lock:
            return lock.fence

    handles = [start(hold) for _ in range(3)]
    await eventually(lambda: waiting(admin) == 3)
    kill(admin, "normal")
    await eventually(lambda: waiting(admin) == 3)
    kill(admin, "pubsub")
    admin.execute_command("LOCK.RELEASE", "k", "other")
    assert len({await finish(handle) for handle in handles}) == 3
    assert waiting(admin) == 0 and not admin.exists("k")


async def test_lost_replies_cost_nothing(make, admin, proxy):
    proxy.loses = ["LOCK.ACQUIRE", "LOCK.RELEASE", "LOCK.HELD"]
    sluice = make(proxy.port)
    async with sluice.lock("k", wait=60) as lock:
        await lock.check()
        info = admin.execute_command("LOCK.INFO", "k")
        assert str(info).count(lock.owner) == 1 and "'count', 1" in str(info)
    assert not admin.exists("k")


async def test_a_silent_server_is_not_trusted_after_half_of_the_lease(sluice, admin):
    lock = sluice.lock("k", lease=12)
    assert await lock.acquire()
    admin.execute_command("CLIENT", "PAUSE", 11_000, "WRITE")  # the commands of the lock; ALL would also delay UNPAUSE
    assert await is_set(lock.lost)
    admin.execute_command("CLIENT", "UNPAUSE")
    with pytest.raises(LockLost):
        await lock.release()


async def test_a_lock_is_lost_before_a_silent_server_answers_again(sluice, admin):
    lock = sluice.lock("k", lease=1)
    assert await lock.acquire()
    admin.execute_command("CLIENT", "PAUSE", 6000, "ALL")
    await sluice.client.exists("k")  # the reply arrives when the pause ends
    assert lock.lost.is_set()


async def test_a_failed_first_connection_leaves_nothing_open(make, admin, proxy):
    sluice = make(proxy.port)
    proxy.refuses = 3
    async with sluice.lock("k", wait=60):
        assert len(admin.client_list()) == 3
    proxy.refuses = 1000
    proxy.cut()
    with pytest.raises(sluice.library.broken):
        await sluice.lock("k", wait=0.2).acquire()
    proxy.refuses = 0


async def test_a_hold_has_an_end(sluice, admin):
    with pytest.raises(LockLost):
        async with sluice.lock("k", lease=0.1, max_hold=0.3) as lock:
            assert await is_set(lock.lost)


async def test_closing_releases_all_locks(sluice, admin):
    await sluice.lock("a").acquire()
    await sluice.semaphore("b", 2).acquire()
    await sluice.close()
    assert not admin.exists("a", "b")
    await eventually(lambda: len(admin.client_list()) == 1)
    with pytest.raises(RuntimeError):
        await sluice.lock("a").acquire()


async def test_a_guard_refuses_an_old_fence(sluice, admin):
    assert await sluice.guard("g", 5) and await sluice.guard("g", 5, seconds=60)
    assert not await sluice.guard("g", 4)


async def test_a_task_acquires_its_lock_again(sluice, admin):
    for lock in sluice.lock("k"), sluice.semaphore("s", 1), sluice.lock_many(["a", "b"]):
        async with lock:
            fence = lock.fence
            async with lock:
                assert lock.fence == fence
            assert admin.exists(*lock.keys) and lock.fence == fence

            async def other():
                with pytest.raises(RuntimeError):
                    await lock.acquire()

            await finish(start(other))
        assert not admin.exists(*lock.keys)
        with pytest.raises(RuntimeError):
            await lock.release()


async def test_a_lost_lock_is_not_acquired_again(sluice, admin):
    lock = sluice.lock("k")
    assert await lock.acquire() and await lock.acquire()
    admin.delete("k")
    assert await is_set(lock.lost)
    with pytest.raises(LockLost):
        await lock.acquire()
    for _ in range(2):
        with pytest.raises(LockLost):
            await lock.release()


async def test_a_lock_that_is_acquired_twice_is_released_when_the_client_closes(sluice, admin):
    lock = sluice.lock("k")
    assert await lock.acquire() and await lock.acquire()
    await sluice.close()
    assert not admin.exists("k")


async def test_a_shared_lock_becomes_exclusive_and_shared_again(sluice, admin):
    async with sluice.read_lock("k") as lock:
        first = lock.fence
        assert await lock.upgrade() and lock.fence > first and (await lock.info()).mode == "exclusive"
        assert await lock.upgrade(0)  # it is exclusive already
        await lock.check()
        assert await sluice.read_lock("k", wait=0).acquire() is False
        kill(admin, "normal")  # the lock survives, with its new fence
        await lock.check()
        second = lock.fence
        await lock.downgrade()
        await lock.downgrade()
        assert lock.fence == second and (await lock.info()).mode == "shared"
        async with sluice.read_lock("k", wait=0) as other:
            assert await lock.upgrade(0) is False and await lock.upgrade(0.02) is False
            await lock.check()
            assert await other.upgrade(0) is False
            await other.check()
    assert not admin.exists("k")


async def test_an_upgrade_waits_before_all_others(make, sluice, admin):
    for sluice in sluice, make(single_connection_client=True):
        async with sluice.read_lock("k") as lock:
            other = sluice.read_lock("k")
            assert await other.acquire()
            writer = start(sluice.lock("k", wait=60).acquire)
            await eventually(lambda: waiting(admin) == 1)

            if sluice.block_seconds:
                sluice.library.block = 30  # at the end of a round, the request leaves the queue for a moment

            async def upgrade():
                return await lock.upgrade(60 if sluice.block_seconds else None)

            handle = start(upgrade)
            if sluice.block_seconds:
                await eventually(lambda: waiting(admin) == 2)
                with pytest.raises(Deadlock):
                    await other.upgrade(60)
                await other.check()
            await other.release()
            assert await finish(handle) and (await lock.info()).mode == "exclusive"
        assert await finish(writer)
        admin.delete("k")


async def test_an_upgrade_whose_reply_is_lost_is_repeated(make, admin, proxy):
    sluice = make(proxy.port)
    async with sluice.read_lock("k", owner="me") as lock:
        for wait in 0, 60:
            proxy.loses = ["LOCK.UPGRADE"]
            assert await lock.upgrade(wait) and not proxy.loses
            assert lock.fence == admin.execute_command("LOCK.HELD", "k", "me")
            proxy.loses = ["LOCK.DOWNGRADE"]
            await lock.downgrade()
            assert not proxy.loses and (await lock.info()).mode == "shared"
    assert not admin.exists("k")


async def test_a_lost_lock_is_neither_upgraded_nor_downgraded(sluice, admin):
    for change in "upgrade", "downgrade", "renew":
        lock = sluice.read_lock("k")
        assert await lock.acquire()
        admin.delete("k")
        with pytest.raises(LockLost):
            await getattr(lock, change)()
        with pytest.raises(LockLost):
            await lock.release()
    for lock in sluice.semaphore("s", 1), sluice.lock_many(["a", "b"]):
        async with lock:
            with pytest.raises(TypeError):
                await lock.upgrade()
            with pytest.raises(TypeError):
                await lock.downgrade()
    with pytest.raises(RuntimeError):
        await sluice.lock("k").downgrade()


async def test_information_about_locks(sluice, admin):
    assert await sluice.lock("k").info() is None
    async with sluice.read_lock("k", owner="me", lease=60) as lock:
        writer = start(sluice.lock("k", wait=60, owner="other").acquire)
        await eventually(lambda: waiting(admin) == 1)
        info = await sluice.lock("k").info()
        (holder,), (waiter,) = info.holders, info.waiters
        assert info.mode == "shared" and holder.owner == "me" and holder.count == 1 and holder.fence == lock.fence
        assert 0 < holder.lease <= 60 and holder.watchdog and waiter.owner == "other" and 0 < waiter.timeout <= 60 and waiter.waiting >= 0
    assert await finish(writer)
    async with sluice.semaphore("s", 3, permits=2, watchdog=False, owner="me") as permits:
        info = await permits.info()
        assert (info.mode, info.limit, info.used) == ("semaphore", 3, 2)
        assert info.holders[0].count == 2 and not info.holders[0].watchdog and info.waiters == ()
    async with sluice.lock_many(["a", "b"]) as several:
        assert (await several.info("b")).holders[0].fence == several.fences[1]


async def test_a_lock_without_a_watchdog_ends_with_its_lease(sluice, admin):
    for lock in (
        sluice.lock("k", watchdog=False, lease=0.2), sluice.semaphore("s", 1, watchdog=False, lease=0.2),
        sluice.lock_many(["a", "b"], watchdog=False, lease=0.2),
    ):
        assert await lock.acquire()
        assert admin.info("sluice")["sluice_lock_watchdog_holds"] == 0
        assert await is_set(lock.lost)
        await eventually(lambda: not admin.exists(*lock.keys))
        with pytest.raises(LockLost):
            await lock.renew()
        with pytest.raises(LockLost):
            await lock.release()


async def test_a_lock_without_a_watchdog_is_renewed_by_hand(sluice, admin):
    for lock in (
        sluice.lock("k", watchdog=False, lease=60), sluice.semaphore("s", 1, watchdog=False, lease=60),
        sluice.lock_many(["a", "b"], watchdog=False, lease=60),
    ):
        async with lock:
            await lock.renew(600)
            await lock.check()
            assert min(admin.pttl(key) for key in lock.keys) > 500_000
            kill(admin, "normal")
            kill(admin, "pubsub")
            await lock.check()
            assert not lock.lost.is_set() and min(admin.pttl(key) for key in lock.keys) > 500_000
            await lock.renew()
            assert max(admin.pttl(key) for key in lock.keys) <= 60_000
        assert not admin.exists(*lock.keys)


async def test_a_lease_that_began_during_a_wait_is_renewed(sluice, admin):
    take(admin)

    async def hold():
        async with sluice.lock("k", watchdog=False, wait=60, lease=60) as lock:
            await lock.check()
            return lock._ends_at

    handle = start(hold)
    await eventually(lambda: waiting(admin) == 1)
    admin.execute_command("LOCK.RELEASE", "k", "other")
    assert await finish(handle) > 0


async def test_a_lock_without_a_watchdog_hears_of_its_loss(sluice, admin):
    with pytest.raises(LockLost):
        async with sluice.lock("k", watchdog=False, lease=600) as lock:
            admin.delete("k")
            assert await is_set(lock.lost)


async def test_the_end_of_a_short_lease_is_noticed_between_two_heartbeats(sluice, admin, monkeypatch):
    for module in "session", "locks":
        monkeypatch.setattr(type(sluice).__module__.replace("client", f"{module}.HEARTBEAT_SECONDS"), 600)
    async with sluice.lock("long", lease=10_000):
        await pause(0.05)  # the session sleeps until the next heartbeat
        lock = sluice.lock("short", watchdog=False, lease=0.2)
        assert await lock.acquire()
        admin.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")  # no message says that the lock is lost
        assert await is_set(lock.lost)
        admin.execute_command("CLIENT", "UNPAUSE")
