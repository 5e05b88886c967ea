# `clients/python/generate` writes this file from the folder aio.
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


def test_many_callers_share_one_connection_and_one_subscription(sluice, admin):
    inside, most, fences = 0, 0, []

    def work():
        nonlocal inside, most
        with sluice.lock("k", wait=500) as lock:
            inside += 1
            most = max(most, inside)
            fences.append(lock.fence)
            pause()
            inside -= 1

    together(work, TASKS)
    assert most == 1
    assert fences == sorted(set(fences)) and len(fences) == TASKS
    assert len(admin.client_list()) == 3  # commands, messages, and this test
    assert not admin.exists("k") and waiting(admin) == 0


def test_a_busy_lock_times_out_and_leaves_no_request(sluice, admin):
    take(admin)
    for wait in 0, 0.02:
        with pytest.raises(LockTimeout):
            with sluice.lock("k", wait=wait):
                pytest.fail("the lock is busy")
        lock = sluice.lock("k", wait=wait)
        assert lock.acquire() is False and lock.fence == 0
    assert waiting(admin) == 0


def test_a_wait_without_limit_ends_with_the_lock(sluice, admin):
    take(admin)

    def hold():
        with sluice.lock("k", wait=None) as lock:
            return lock.fence

    handle = start(hold)
    eventually(lambda: waiting(admin) == 1)
    admin.execute_command("LOCK.RELEASE", "k", "other")
    assert finish(handle) > 0


def test_a_lock_object_acquires_again_after_its_release(sluice, admin):
    lock = sluice.lock("k")
    assert lock.acquire()
    first = lock.fence
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()
    assert lock.acquire() and lock.fence > first
    lock.release()


def test_readers_share_a_lock_and_exclude_a_writer(sluice, admin):
    with sluice.read_lock("k"):
        with sluice.read_lock("k", wait=0):
            assert sluice.lock("k", wait=0).acquire() is False
    with sluice.lock("k", wait=0):
        assert sluice.read_lock("k", wait=0).acquire() is False


def test_a_semaphore_has_a_limit(sluice, admin):
    with sluice.semaphore("s", 3, permits=2) as two:
        two.check()
        with sluice.semaphore("s", 3) as one:
            assert one.fence > two.fence
            assert sluice.semaphore("s", 3, wait=0).acquire() is False
    with sluice.semaphore_many({"s": 1, "t": 2}, wait=0) as both:
        assert len(both.fences) == 2
        both.check()
        assert sluice.semaphore_many({"t": 2, "s": 1}, wait=0).acquire() is False
        assert sluice.semaphore("t", 2, wait=0).acquire() is True
    assert not admin.exists("s")


def test_several_keys_are_locked_at_once(sluice, admin):
    with sluice.lock_many(["a", "b"], wait=0) as lock:
        assert len(lock.fences) == 2
        lock.check()
        assert sluice.lock_many(["b", "c"], wait=0).acquire() is False

        def wait():
            with sluice.lock_many(["b", "c"]) as other:
                return other.fences

        handle = start(wait)
        eventually(lambda: waiting(admin) == 1)
    assert min(finish(handle)) > max(lock.fences or (0,))
    assert not admin.exists("a", "b", "c")


def test_a_loss_sets_the_event_and_calls_the_callback_once(sluice, admin):
    calls, called = [], Event()

    def on_lost():
        calls.append(1)
        called.set()

    with pytest.raises(LockLost):
        with sluice.lock("k", on_lost=on_lost) as lock:
            lock.check()
            admin.delete("k")
            assert is_set(lock.lost)
            assert is_set(called)
            with pytest.raises(LockLost):
                lock.check()
    assert calls == [1]


def test_the_loss_of_one_of_several_keys_is_a_loss(sluice, admin):
    with pytest.raises(LockLost):
        with sluice.lock_many(["a", "b"]) as lock:
            admin.delete("b")
            assert is_set(lock.lost)
    assert not admin.exists("a")


def test_an_exception_of_the_block_is_not_replaced(sluice, admin):
    for is_lost in False, True:
        with pytest.raises(ZeroDivisionError):
            with sluice.lock("k"):
                if is_lost:
                    admin.delete("k")
                1 / 0
        assert not admin.exists("k")


def test_a_wait_that_never_ends_is_refused(sluice, admin):
    with sluice.lock("k", owner="me"):
        admin.execute_command("LOCK.ACQUIRE", "other", "other", "PX", LONG)
        admin.execute_command("LOCK.ACQUIRE", "k", "other", "BLOCK", LONG, "ID", "1", "NOTIFY", "channel")
        with pytest.raises(Deadlock):
            sluice.lock("other", owner="me").acquire()


def test_a_lock_survives_its_killed_connections(sluice, admin):
    lock = sluice.lock("k")
    assert lock.acquire()
    for kind in ("normal", "pubsub", "normal"):
        kill(admin, kind)
        assert sluice.lock("k", wait=0).acquire() is False
        lock.check()
    eventually(lambda: admin.info("sluice")["sluice_lock_watchdog_holds"] == 1)
    eventually(lambda: len(admin.pubsub_channels("sluice:*")) == 1)
    assert not lock.lost.is_set()
    admin.delete("k")
    assert is_set(lock.lost)
    with pytest.raises(LockLost):
        lock.release()


def test_a_lock_that_does_not_linger_is_lost_with_its_connection(sluice, admin):
    with pytest.raises(LockLost):
        with sluice.lock("k", linger=False) as lock:
            kill(admin, "normal")
            assert is_set(lock.lost)


def test_a_waiting_caller_survives_killed_connections(sluice, admin):
    take(admin)

    def hold():
        with sluice.lock("k", wait=60) as lock:
            return lock.fence

    handles = [start(hold) for _ in range(3)]
    eventually(lambda: waiting(admin) == 3)
    kill(admin, "normal")
    eventually(lambda: waiting(admin) == 3)
    kill(admin, "pubsub")
    admin.execute_command("LOCK.RELEASE", "k", "other")
    assert len({finish(handle) for handle in handles}) == 3
    assert waiting(admin) == 0 and not admin.exists("k")


def test_lost_replies_cost_nothing(make, admin, proxy):
    proxy.loses = ["LOCK.ACQUIRE", "LOCK.RELEASE", "LOCK.HELD"]
    sluice = make(proxy.port)
    with sluice.lock("k", wait=60) as lock:
        lock.check()
        info = admin.execute_command("LOCK.INFO", "k")
        assert str(info).count(lock.owner) == 1 and "'count', 1" in str(info)
    assert not admin.exists("k")


def test_a_silent_server_is_not_trusted_after_half_of_the_lease(sluice, admin):
    lock = sluice.lock("k", lease=12)
    assert lock.acquire()
    admin.execute_command("CLIENT", "PAUSE", 11_000, "WRITE")  # the commands of the lock; ALL would also delay UNPAUSE
    assert is_set(lock.lost)
    admin.execute_command("CLIENT", "UNPAUSE")
    with pytest.raises(LockLost):
        lock.release()


def test_a_lock_is_lost_before_a_silent_server_answers_again(sluice, admin):
    lock = sluice.lock("k", lease=1)
    assert lock.acquire()
    admin.execute_command("CLIENT", "PAUSE", 6000, "ALL")
    sluice.client.exists("k")  # the reply arrives when the pause ends
    assert lock.lost.is_set()


def test_a_failed_first_connection_leaves_nothing_open(make, admin, proxy):
    sluice = make(proxy.port)
    proxy.refuses = 3
    with sluice.lock("k", wait=60):
        assert len(admin.client_list()) == 3
    proxy.refuses = 1000
    proxy.cut()
    with pytest.raises(sluice.library.broken):
        sluice.lock("k", wait=0.2).acquire()
    proxy.refuses = 0


def test_a_hold_has_an_end(sluice, admin):
    with pytest.raises(LockLost):
        with sluice.lock("k", lease=0.1, max_hold=0.3) as lock:
            assert is_set(lock.lost)


def test_closing_releases_all_locks(sluice, admin):
    sluice.lock("a").acquire()
    sluice.semaphore("b", 2).acquire()
    sluice.close()
    assert not admin.exists("a", "b")
    eventually(lambda: len(admin.client_list()) == 1)
    with pytest.raises(RuntimeError):
        sluice.lock("a").acquire()


def test_a_guard_refuses_an_old_fence(sluice, admin):
    assert sluice.guard("g", 5) and sluice.guard("g", 5, seconds=60)
    assert not sluice.guard("g", 4)


def test_a_task_acquires_its_lock_again(sluice, admin):
    for lock in sluice.lock("k"), sluice.semaphore("s", 1), sluice.lock_many(["a", "b"]):
        with lock:
            fence = lock.fence
            with lock:
                assert lock.fence == fence
            assert admin.exists(*lock.keys) and lock.fence == fence

            def other():
                with pytest.raises(RuntimeError):
                    lock.acquire()

            finish(start(other))
        assert not admin.exists(*lock.keys)
        with pytest.raises(RuntimeError):
            lock.release()


def test_a_lost_lock_is_not_acquired_again(sluice, admin):
    lock = sluice.lock("k")
    assert lock.acquire() and lock.acquire()
    admin.delete("k")
    assert is_set(lock.lost)
    with pytest.raises(LockLost):
        lock.acquire()
    for _ in range(2):
        with pytest.raises(LockLost):
            lock.release()


def test_a_lock_that_is_acquired_twice_is_released_when_the_client_closes(sluice, admin):
    lock = sluice.lock("k")
    assert lock.acquire() and lock.acquire()
    sluice.close()
    assert not admin.exists("k")


def test_a_shared_lock_becomes_exclusive_and_shared_again(sluice, admin):
    with sluice.read_lock("k") as lock:
        first = lock.fence
        assert lock.upgrade() and lock.fence > first and (lock.info()).mode == "exclusive"
        assert lock.upgrade(0)  # it is exclusive already
        lock.check()
        assert sluice.read_lock("k", wait=0).acquire() is False
        kill(admin, "normal")  # the lock survives, with its new fence
        lock.check()
        second = lock.fence
        lock.downgrade()
        lock.downgrade()
        assert lock.fence == second and (lock.info()).mode == "shared"
        with sluice.read_lock("k", wait=0) as other:
            assert lock.upgrade(0) is False and lock.upgrade(0.02) is False
            lock.check()
            assert other.upgrade(0) is False
            other.check()
    assert not admin.exists("k")


def test_an_upgrade_waits_before_all_others(make, sluice, admin):
    for sluice in sluice, make(single_connection_client=True):
        with sluice.read_lock("k") as lock:
            other = sluice.read_lock("k")
            assert other.acquire()
            writer = start(sluice.lock("k", wait=60).acquire)
            eventually(lambda: waiting(admin) == 1)

            if sluice.block_seconds:
                sluice.library.block = 30  # at the end of a round, the request leaves the queue for a moment

            def upgrade():
                return lock.upgrade(60 if sluice.block_seconds else None)

            handle = start(upgrade)
            if sluice.block_seconds:
                eventually(lambda: waiting(admin) == 2)
                with pytest.raises(Deadlock):
                    other.upgrade(60)
                other.check()
            other.release()
            assert finish(handle) and (lock.info()).mode == "exclusive"
        assert finish(writer)
        admin.delete("k")


def test_an_upgrade_whose_reply_is_lost_is_repeated(make, admin, proxy):
    sluice = make(proxy.port)
    with sluice.read_lock("k", owner="me") as lock:
        for wait in 0, 60:
            proxy.loses = ["LOCK.UPGRADE"]
            assert lock.upgrade(wait) and not proxy.loses
            assert lock.fence == admin.execute_command("LOCK.HELD", "k", "me")
            proxy.loses = ["LOCK.DOWNGRADE"]
            lock.downgrade()
            assert not proxy.loses and (lock.info()).mode == "shared"
    assert not admin.exists("k")


def test_a_lost_lock_is_neither_upgraded_nor_downgraded(sluice, admin):
    for change in "upgrade", "downgrade", "renew":
        lock = sluice.read_lock("k")
        assert lock.acquire()
        admin.delete("k")
        with pytest.raises(LockLost):
            getattr(lock, change)()
        with pytest.raises(LockLost):
            lock.release()
    for lock in sluice.semaphore("s", 1), sluice.lock_many(["a", "b"]):
        with lock:
            with pytest.raises(TypeError):
                lock.upgrade()
            with pytest.raises(TypeError):
                lock.downgrade()
    with pytest.raises(RuntimeError):
        sluice.lock("k").downgrade()


def test_information_about_locks(sluice, admin):
    assert sluice.lock("k").info() is None
    with sluice.read_lock("k", owner="me", lease=60) as lock:
        writer = start(sluice.lock("k", wait=60, owner="other").acquire)
        eventually(lambda: waiting(admin) == 1)
        info = sluice.lock("k").info()
        (holder,), (waiter,) = info.holders, info.waiters
        assert info.mode == "shared" and holder.owner == "me" and holder.count == 1 and holder.fence == lock.fence
        assert 0 < holder.lease <= 60 and holder.watchdog and waiter.owner == "other" and 0 < waiter.timeout <= 60 and waiter.waiting >= 0
    assert finish(writer)
    with sluice.semaphore("s", 3, permits=2, watchdog=False, owner="me") as permits:
        info = permits.info()
        assert (info.mode, info.limit, info.used) == ("semaphore", 3, 2)
        assert info.holders[0].count == 2 and not info.holders[0].watchdog and info.waiters == ()
    with sluice.lock_many(["a", "b"]) as several:
        assert (several.info("b")).holders[0].fence == several.fences[1]


def test_a_lock_without_a_watchdog_ends_with_its_lease(sluice, admin):
    for lock in (
        sluice.lock("k", watchdog=False, lease=0.2), sluice.semaphore("s", 1, watchdog=False, lease=0.2),
        sluice.lock_many(["a", "b"], watchdog=False, lease=0.2),
    ):
        assert lock.acquire()
        assert admin.info("sluice")["sluice_lock_watchdog_holds"] == 0
        assert is_set(lock.lost)
        eventually(lambda: not admin.exists(*lock.keys))
        with pytest.raises(LockLost):
            lock.renew()
        with pytest.raises(LockLost):
            lock.release()


def test_a_lock_without_a_watchdog_is_renewed_by_hand(sluice, admin):
    for lock in (
        sluice.lock("k", watchdog=False, lease=60), sluice.semaphore("s", 1, watchdog=False, lease=60),
        sluice.lock_many(["a", "b"], watchdog=False, lease=60),
    ):
        with lock:
            lock.renew(600)
            lock.check()
            assert min(admin.pttl(key) for key in lock.keys) > 500_000
            kill(admin, "normal")
            kill(admin, "pubsub")
            lock.check()
            assert not lock.lost.is_set() and min(admin.pttl(key) for key in lock.keys) > 500_000
            lock.renew()
            assert max(admin.pttl(key) for key in lock.keys) <= 60_000
        assert not admin.exists(*lock.keys)


def test_a_lease_that_began_during_a_wait_is_renewed(sluice, admin):
    take(admin)

    def hold():
        with sluice.lock("k", watchdog=False, wait=60, lease=60) as lock:
            lock.check()
            return lock._ends_at

    handle = start(hold)
    eventually(lambda: waiting(admin) == 1)
    admin.execute_command("LOCK.RELEASE", "k", "other")
    assert finish(handle) > 0


def test_a_lock_without_a_watchdog_hears_of_its_loss(sluice, admin):
    with pytest.raises(LockLost):
        with sluice.lock("k", watchdog=False, lease=600) as lock:
            admin.delete("k")
            assert is_set(lock.lost)


def test_the_end_of_a_short_lease_is_noticed_between_two_heartbeats(sluice, admin, monkeypatch):
    for module in "session", "locks":
        monkeypatch.setattr(type(sluice).__module__.replace("client", f"{module}.HEARTBEAT_SECONDS"), 600)
    with sluice.lock("long", lease=10_000):
        pause(0.05)  # the session sleeps until the next heartbeat
        lock = sluice.lock("short", watchdog=False, lease=0.2)
        assert lock.acquire()
        admin.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")  # no message says that the lock is lost
        assert is_set(lock.lost)
        admin.execute_command("CLIENT", "UNPAUSE")
