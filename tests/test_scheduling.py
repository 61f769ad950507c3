"""Which worker runs which tests, and that each is run once."""

from __future__ import annotations

import random
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scheduling import Scheduling, choose_work


class Worker:
    def __init__(self, collection: list[str]) -> None:
        self.collection = collection
        self.to_run: list[int] = []
        self.ran: list[str] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.to_run += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def can_run(self) -> bool:
        return len(self.to_run) > 1 or bool(self.to_run and self.shutting_down)

    def run_one(self, scheduling: Scheduling) -> None:
        number = self.to_run.pop(0)
        self.ran.append(self.collection[number])
        scheduling.mark_test_complete(self, number)


def file_of(test: str) -> str:
    return test.partition("::")[0]


def scheduled(*workers: Worker) -> Scheduling:
    scheduling = Scheduling(len(workers), file_of, lambda _: None)
    for worker in workers:
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, worker.collection)
        scheduling.schedule()
    return scheduling


def items_of(name: str, number: int) -> list[str]:
    return [f"{name}::{each}" for each in range(number)]


FILES = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 5), min_size=1)


@given(FILES, st.lists(st.sets(st.sampled_from("abcdefgh")), min_size=1, max_size=3), st.randoms())
def test_every_test_is_run_once_and_a_file_by_one_worker(
    files: dict[str, int], collecting: list[set[str]], chance: random.Random
) -> None:
    orders = [chance.sample(sorted(files), len(files)) for _ in collecting]
    workers = [
        Worker([test for name in order if name in mine for test in items_of(name, files[name])])
        for order, mine in zip(orders, collecting, strict=True)
    ]
    scheduling = scheduled(*workers)
    while able := [worker for worker in workers if worker.can_run()]:
        chance.choice(able).run_one(scheduling)
    collected = set(chain.from_iterable(worker.collection for worker in workers))
    assert sorted(chain.from_iterable(worker.ran for worker in workers)) == sorted(collected)
    for one, other in ((one, other) for one in workers for other in workers if one is not other):
        assert not {*map(file_of, one.ran)} & {*map(file_of, other.ran)}
    assert scheduling.tests_finished
    assert all(worker.shutting_down for worker in workers)


def test_a_worker_begins_with_the_first_of_its_own_and_does_not_wait_for_others_to_collect() -> None:
    one, other = (
        Worker([*items_of("a", 3), *items_of("b", 3)]),
        Worker([*items_of("b", 3), *items_of("a", 3)]),
    )
    scheduling = Scheduling(2, file_of, lambda _: None)
    for worker in (one, other):
        scheduling.add_node(worker)
    scheduling.add_node_collection(other, other.collection)
    scheduling.schedule()
    assert other.to_run == [0, 1, 2]
    assert not scheduling.tests_finished
    scheduling.add_node_collection(one, one.collection)
    scheduling.schedule()
    assert one.to_run == [0, 1, 2]


def test_what_a_worker_that_died_had_not_begun_is_left_to_the_others() -> None:
    died, other = Worker(items_of("a", 4)), Worker([*items_of("b", 4), *items_of("a", 4)])
    scheduling = scheduled(died, other)
    died.run_one(scheduling)
    assert scheduling.remove_node(died) == "a::1"
    while other.can_run():
        other.run_one(scheduling)
    assert other.ran == [*items_of("b", 4), "a::2", "a::3"]


def test_workers_that_have_collected_different_tests_of_a_file_are_refused() -> None:
    with pytest.raises(ValueError, match="not all workers have collected a::2"):
        scheduled(Worker(items_of("a", 2)), Worker(items_of("a", 3)))


WAITING = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.1, 100.0), min_size=1)


@given(WAITING, st.integers(1, 4))
def test_work_is_begun_in_order_unless_the_longest_would_end_last(
    waiting: dict[str, float], workers: int
) -> None:
    order = sorted(waiting, key=lambda work: waiting[work])
    chosen = choose_work(order, waiting, workers)
    longest = max(waiting.values())
    if 1.3 * longest >= sum(waiting.values()) / workers:
        assert chosen is not None
        assert waiting[chosen] == longest
    else:
        assert chosen == order[0]


def test_a_worker_without_work_of_its_own_has_none() -> None:
    assert choose_work(["a"], {"b": 1.0}, 2) is None


def test_the_time_that_is_left_is_that_of_tests_that_have_not_ended() -> None:
    worker = Worker([*items_of("a", 4), *items_of("b", 2)])
    scheduling = Scheduling(1, file_of, lambda _: None, lambda work, tests: {"a": 8.0, "b": 3.0}[work])
    scheduling.add_node(worker)
    scheduling.add_node_collection(worker, worker.collection)
    assert scheduling.seconds_left() == 11.0
    scheduling.schedule()
    worker.run_one(scheduling)
    assert scheduling.seconds_left() == 9.0
