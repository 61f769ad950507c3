from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from functools import partial

import pytest

from router.tenants.worker import Chore, Worker
from tests.pace import patience
from tests.waiting import wait_until


def test_calls_run_in_order_and_return_a_value_or_an_error() -> None:
    done: list[int] = []

    def call(number: int) -> int:
        done.append(number)
        return number

    worker = Worker([])
    worker.start()
    futures = [worker.submit(partial(call, number)) for number in range(20)]
    failed: Future[float] = worker.submit(lambda: 1 / 0)
    worker.stop(5)
    assert [future.result() for future in futures] == done == list(range(20))
    with pytest.raises(ZeroDivisionError):
        failed.result()


def test_submitting_a_call_never_waits_for_the_one_before() -> None:
    worker, go_on = Worker([]), threading.Event()
    worker.start()
    first = worker.submit(go_on.wait)
    second = worker.submit(lambda: 2)
    assert not first.done()
    second_cancelled = worker.submit(lambda: 3)
    assert second_cancelled.cancel()
    go_on.set()
    assert (first.result(patience(30)), second.result(patience(30))) == (True, 2)
    worker.stop(5)


def test_a_chore_that_fails_is_logged_once_retried_later_and_visible_outside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    works, runs = threading.Event(), list[float]()

    def chore() -> None:
        runs.append(time.monotonic())
        if not works.is_set():
            raise ConnectionError("away")

    worker = Worker([Chore("knocking", 0.01, chore)])
    worker.start()
    wait_until(lambda: len(runs) >= 3)
    assert not worker.is_well
    works.set()
    wait_until(lambda: worker.is_well)
    worker.stop(5)
    texts = [record.getMessage() for record in caplog.records]
    assert texts[0] == "knocking failed and will be retried: away"
    assert len(texts) == 2
    assert texts[1].startswith("knocking works again after")
