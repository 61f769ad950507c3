"""Who of `pytest -n` runs what next: xdist's scheduling, for workers that have not all collected the same.

Work is handed out whole: a stack, or what a file prepares, is there once. A worker begins what comes first in
the order of its own collection (what failed lately, then what costs least), so that most of what is wrong is
told early. The longest work is begun as soon as it would otherwise end after everything else, by the recorded
times. No worker waits for another to have collected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

# A worker begins a test when it knows of the next one.
_KNOWN_AHEAD = 2
# Recorded times are of another day: long work begins a little before it must.
_EARLIER = 1.3


def choose_work(order: Sequence[str], waiting: Mapping[str, float], workers: int) -> str | None:
    """Return the work to begin next: the first in order, or the longest if it is due.

    `waiting` has the seconds of all work that nobody has begun, `order` what this worker may run of it.
    """
    mine = [work for work in order if work in waiting]
    if not mine:
        return None
    longest = max(mine, key=lambda work: waiting[work])
    is_due = _EARLIER * waiting[longest] >= sum(waiting.values()) / workers
    return longest if is_due else mine[0]


class Scheduling:
    def __init__(
        self,
        workers: int,
        work_of: Callable[[str], str],
        told: Callable[[int], None],
        seconds_of: Callable[[str, Sequence[str]], float] = lambda work, tests: 0.0,
    ) -> None:
        """For so many workers; `told` learns how many tests are known, `seconds_of` knows recorded times."""
        self._workers = workers
        self._work_of = work_of
        self._told = told
        self._seconds_of = seconds_of
        self._tests: dict[str, list[str]] = {}  # of each work
        self._waiting: dict[str, list[str]] = {}
        self._seconds: dict[str, float] = {}
        # Of each worker: the numbers of tests, its works in order, and what it was given and has not ended.
        self._numbers: dict[Any, dict[str, int]] = {}
        self._order: dict[Any, list[str]] = {}
        self._begun: dict[Any, dict[int, str]] = {}

    @property
    def nodes(self) -> list[Any]:
        return list(self._begun)

    @property
    def collection_is_completed(self) -> bool:
        return bool(self._numbers)

    @property
    def has_pending(self) -> bool:
        return bool(self._waiting) or any(self._begun.values())

    @property
    def tests_finished(self) -> bool:
        if len(self._numbers) < self._workers or self._waiting:
            return False
        return all(len(begun) < _KNOWN_AHEAD for begun in self._begun.values())

    @property
    def tests(self) -> int:
        return sum(map(len, self._tests.values()))

    def seconds_left(self) -> float:
        """Return the recorded seconds of all tests that have not ended."""
        begun = (test for tests in self._begun.values() for test in tests.values())
        works = [self._work_of(test) for test in begun]
        return sum(self._seconds[work] for work in self._waiting) + sum(
            self._seconds[work] / len(self._tests[work]) for work in works
        )

    def add_node(self, node: Any) -> None:
        self._begun[node] = {}

    def remove_node(self, node: Any) -> str | None:
        """Return the test that it died in; what it had not begun is done by others."""
        self._workers -= self._numbers.pop(node, None) is not None
        left = list(self._begun.pop(node).values())
        crashed = left.pop(0) if left else None
        self._waiting = self._works_of(left) | self._waiting
        self.schedule()
        return crashed

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        works = self._works_of(collection)
        for work, tests in works.items():
            if work not in self._tests:
                self._tests[work] = self._waiting[work] = tests
                self._seconds[work] = self._seconds_of(work, tests)
            elif differing := set(tests) ^ set(self._tests[work]):
                raise ValueError(f"not all workers have collected {min(differing)}")
        self._order[node] = list(works)
        self._numbers[node] = {test: number for number, test in enumerate(collection)}

    def _works_of(self, tests: Sequence[str]) -> dict[str, list[str]]:
        works: dict[str, list[str]] = {}
        for test in tests:
            works.setdefault(self._work_of(test), []).append(test)
        return works

    def schedule(self) -> None:
        self._told(self.tests)
        for node in self._numbers:
            self._give(node)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        del self._begun[node][item_index]
        self._give(node)

    def _give(self, node: Any) -> None:
        begun, numbers = self._begun[node], self._numbers[node]
        while len(begun) <= _KNOWN_AHEAD and not node.shutting_down:
            waiting = {work: self._seconds[work] for work in self._waiting}
            if (work := choose_work(self._order[node], waiting, self._workers)) is None:
                node.shutdown()  # when it has run what it has
                return
            given = {numbers[test]: test for test in self._waiting.pop(work)}
            begun |= given
            node.send_runtest_some(list(given))
