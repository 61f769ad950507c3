"""Who of `pytest -n` runs what next: xdist's scheduling, for workers that have not all collected the same.

Work is handed out whole: a stack, or what a file prepares, is there once. Each worker takes the first work in
the order of its own collection that nobody has begun, and none waits for another to have collected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# A worker begins a test when it knows of the next one.
_KNOWN_AHEAD = 2


class Scheduling:
    def __init__(self, workers: int, work_of: Callable[[str], str], told: Callable[[int], None]) -> None:
        """Of so many workers; `told` learns how many tests are known."""
        self._workers = workers
        self._work_of = work_of
        self._told = told
        self._tests: dict[str, list[str]] = {}  # of each work
        self._waiting: dict[str, list[str]] = {}
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

    def add_node(self, node: Any) -> None:
        self._begun[node] = {}

    def remove_node(self, node: Any) -> str | None:
        """The test that it died in; what it had not begun is done by others."""
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
        self._told(sum(map(len, self._tests.values())))
        for node in self._numbers:
            self._give(node)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        del self._begun[node][item_index]
        self._give(node)

    def _give(self, node: Any) -> None:
        begun, numbers = self._begun[node], self._numbers[node]
        while len(begun) <= _KNOWN_AHEAD and not node.shutting_down:
            if (work := next((each for each in self._order[node] if each in self._waiting), None)) is None:
                node.shutdown()  # when it has run what it has
                return
            given = {numbers[test]: test for test in self._waiting.pop(work)}
            begun |= given
            node.send_runtest_some(list(given))
