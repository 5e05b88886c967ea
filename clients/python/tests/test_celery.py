"""The decorators for Celery, with an object that has what they use of a task."""

import types

import pytest

import sluice
from settings import PORT, classes
from sluice.celery import once_per_task, one_at_a_time


class Retried(Exception):
    """What `retry` of a task raises."""


def task(id):
    def retry(**options):
        raise Retried(options)

    return types.SimpleNamespace(name="app.work", request=types.SimpleNamespace(id=id), retry=retry)


@pytest.fixture(params=[True, False])
def client(request, admin):
    with sluice.Sluice(classes()[0](port=PORT, decode_responses=request.param)) as client:
        yield client


def test_a_task_that_is_delivered_twice_runs_once(client):
    runs = []

    @once_per_task(client)
    def work(self, number):
        runs.append(number)
        if len(runs) == 1:
            raise KeyError
        return {"number": number}

    with pytest.raises(KeyError):
        work(task("1"), 5)
    assert [work(task("1"), 5) for _ in range(2)] == [{"number": 5}] * 2 and runs == [5, 5]
    assert work(task("2"), 6) == {"number": 6}


def test_one_run_at_a_time(client, admin):
    @one_at_a_time(client)
    def work(self, inner=None):
        return inner and inner(task("2"))

    with pytest.raises(Retried):
        work(task("1"), work)
    assert not admin.exists("celery:app.work") and work(task("3")) is None
