"""The package itself: generated files, spans, type hints."""

import asyncio
import importlib
import pathlib
import re
import subprocess
import sys
import threading

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import sluice
import sluice.aio
from settings import CLIENT, PORT, classes
from sluice.library import code_of

FOLDER = pathlib.Path(__file__).parents[1]


def test_the_generated_files_are_current():
    subprocess.run([sys.executable, "-B", str(FOLDER / "generate"), "--check"], check=True)


def test_both_clients_have_the_same_methods():
    for name in sluice.aio.__all__:
        one, other = getattr(sluice.aio, name), getattr(sluice.sync, name)
        public = [{attribute for attribute in dir(kind) if not attribute.startswith("_")} for kind in (one, other)]
        assert public[0] == public[1]
        for attribute in public[0]:
            assert getattr(one, attribute).__doc__, f"{name}.{attribute} has no documentation"


def test_each_command_is_a_span(admin):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    with sluice.Sluice(classes()[0](port=PORT)) as client:
        with client.lock("k"):
            client.stock.get("sku")
        with pytest.raises(sluice.CommandError):
            client.stock.create("sku", -1)
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == ["LOCK.ACQUIRE", "STOCK.GET", "LOCK.RELEASE", "STOCK.SET"]
    assert all(span.attributes["db.operation.name"] == span.name for span in spans)
    assert spans[-1].status.status_code is trace.StatusCode.ERROR


def test_a_canceled_task_leaves_nothing_behind(admin):
    """Only tasks can be canceled, so this test is not generated for threads."""

    async def main():
        client = classes(".asyncio")[0](port=PORT)
        async with sluice.aio.Sluice(client) as locks:
            admin.execute_command("LOCK.ACQUIRE", "k", "other", "PX", 600_000)

            async def hold():
                async with locks.lock("k"):
                    raise AssertionError("the lock is busy")

            tasks = [asyncio.create_task(hold()) for _ in range(10)]
            while admin.info("sluice")["sluice_lock_waiting"] != 10:
                await asyncio.sleep(0.005)
            for task in tasks[:5]:
                task.cancel()
            for task in tasks[:5]:
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert admin.info("sluice")["sluice_lock_waiting"] == 5
            for task in tasks[5:]:  # the lock is free while the cancellation runs
                task.cancel()
            admin.execute_command("LOCK.RELEASE", "k", "other")
            await asyncio.gather(*tasks, return_exceptions=True)
            assert not admin.exists("k")
            async with locks.lock("k", wait=0):
                pass
        await client.aclose()

    asyncio.run(main())


def test_a_client_of_the_other_kind_is_an_error():
    with pytest.raises(TypeError, match="sluice.Sluice needs a client for threads.*asyncio.*sluice.aio.Sluice"):
        sluice.Sluice(classes(".asyncio")[0](port=PORT))
    with pytest.raises(TypeError, match="sluice.aio.Sluice needs a client of .*asyncio"):
        sluice.aio.Sluice(classes()[0](port=PORT))


def test_a_server_without_the_module_is_named():
    unknown = importlib.import_module(f"{CLIENT}.exceptions").ResponseError("unknown command 'STOCK.GET', with args beginning with: 'sku' ")
    error = sluice.errors.typed(unknown)
    assert type(error) is sluice.CommandError
    assert str(error) == "unknown command 'STOCK.GET': the server has no Sluice module, or its version is too old for this command (see INFO sluice)"


def test_work_of_the_other_client_is_an_error(admin):
    calls = []

    async def asynchronous(argument):
        calls.append(argument)
        return "result"

    def synchronous(argument):
        calls.append(argument)
        return "result"

    with sluice.Sluice(classes()[0](port=PORT)) as client:
        policy = sluice.Policy(backoff=0)
        for call in (lambda: client.once.run("o", asynchronous, lease=600), lambda: client.cache.get("c", asynchronous, policy),
                     lambda: client.cache.get_many(["c"], asynchronous, policy)):
            with pytest.raises(TypeError, match="coroutine.*sluice.aio"):
                call()
        assert not calls and not admin.exists("o")  # the work has not begun: the key is free

    async def main():
        client = classes(".asyncio")[0](port=PORT)
        async with sluice.aio.Sluice(client) as tasks:
            for call in (lambda: tasks.once.run("p", synchronous, lease=600), lambda: tasks.cache.get("d", synchronous, policy),
                         lambda: tasks.cache.get_many(["d"], synchronous, policy)):
                with pytest.raises(TypeError, match="coroutine function"):
                    await call()
            assert len(calls) == 3
            assert (await tasks.once.begin("p", lease=600)).state == "BUSY"  # the work has been done
        await client.aclose()

    asyncio.run(main())


def test_the_callback_of_a_loss_may_use_locks(admin):
    with sluice.Sluice(classes()[0](port=PORT)) as client:
        done = threading.Event()

        def on_lost():
            with client.lock("other"):
                done.set()

        with pytest.raises(sluice.LockLost):
            with client.lock("k", on_lost=on_lost):
                admin.delete("k")
                assert done.wait(60)


def test_error_replies_have_their_codes():
    exceptions = importlib.import_module(f"{CLIENT}.exceptions")
    assert code_of(exceptions.MovedError("7629 127.0.0.1:6380")) == "MOVED"
    assert code_of(exceptions.AskError("7629 127.0.0.1:6380")) == "ASK"
    assert code_of(exceptions.ReadOnlyError("You can't write against a read only replica.")) == "READONLY"
    assert code_of(exceptions.ResponseError("UNBLOCKED the master is a replica now")) == "UNBLOCKED"


def test_the_readme_has_no_links_to_files_that_the_wheel_lacks():
    targets = re.findall(r"\]\(([^)]*)\)", (FOLDER / "README.md").read_text())
    assert targets and all(target.startswith(("#", "https://")) for target in targets), targets
