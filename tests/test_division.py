"""A run of all tests by three workers leaves none of them out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.division import LEFT_TO_ALL, OF_STACKS, TESTS, UNHURRIED, Share, in_order_of_worth

FILES = sorted(TESTS.rglob("test_*.py"))


def share(worker: int, workers: int = 3, args: tuple[str, ...] = (str(TESTS),)) -> Share:
    told = {"workerid": f"gw{worker}", "workercount": workers}
    config: Any = SimpleNamespace(args=args, workerinput=told, getoption=lambda name: "cpu")
    return Share(cast("pytest.Config", config))


def test_each_file_is_run_by_the_patient_worker_or_by_the_others_and_some_by_whoever_has_time() -> None:
    first, second, patient = (share(worker) for worker in range(3))
    assert [each.is_patient for each in (first, second, patient)] == [False, False, True]
    for file in FILES:
        place = file.relative_to(TESTS.parent).as_posix()
        assert first.leaves_out(file) == second.leaves_out(file) == place.startswith(UNHURRIED)
        collected = [not each.leaves_out(file) for each in (first, patient)]
        assert any(collected)
        assert all(collected) == (place.startswith(LEFT_TO_ALL) and not place.startswith(UNHURRIED))


@pytest.mark.parametrize("worker", [0, 2])
def test_no_folder_is_left_out_that_has_files_of_the_share(worker: int) -> None:
    mine = share(worker)
    for file in mine.files():
        assert not any(mine.leaves_out(folder) for folder in file.parents)


def test_what_is_in_no_hurry_is_there_and_starts_no_stacks() -> None:
    paths = [path.relative_to(TESTS.parent).as_posix() for path in FILES]
    for each in (*UNHURRIED, *LEFT_TO_ALL):
        assert any(path.startswith(each) for path in paths), each
        assert not each.startswith(OF_STACKS)


def test_a_run_of_some_tests_is_not_divided() -> None:
    assert not any(share(2, args=(str(TESTS / "router"),)).leaves_out(file) for file in FILES)
    assert not any(share(1, workers=2).leaves_out(file) for file in FILES)


def test_what_failed_lately_comes_first_and_then_what_costs_least() -> None:
    turns = in_order_of_worth({"long": 9.0, "short": 1.0, "failed": 5.0}, {"failed": 0.9})
    assert sorted(turns, key=turns.__getitem__) == ["failed", "short", "long"]
