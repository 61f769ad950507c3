"""The two tiers of the tests, and the slice of the second one that each run of CI takes.

`make test` decides whether a change may be taken. It tries every behaviour once: few examples of each
property, one database where SQL is not the subject, one shape of each kernel, the shortest run that shows the
thing. `make test-thorough` (`pytest --thorough`) runs everything, at its full length.
A test, or a parameter of one, that only the second tier runs has the marker `thorough`, with what the first
tier has instead. Whole files are named in FILES: the first tier does not even import them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import core, settings

from tests.recorded_times import Times

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

ROOT = Path(__file__).resolve().parents[1]
ALL_EXAMPLES = 100  # Hypothesis' own number
FEW_EXAMPLES = 15
# Files that only the thorough tier runs, and what shows the same in the first one.
FILES: dict[str, str] = {
    "tests/deploy/images/test_serving.py": "tests/deploy/images and tests/deploy/compose",
    "tests/stack/test_llm_runtime.py": "tests/engine/runtimes/trtllm",
    "tests/stack/test_loadtest.py": "tests/loadtest/test_locustfile.py and tests/loadtest/users",
    "tests/stack/test_objectives.py": "tests/simulator/test_overload.py and tests/router/admission",
    "tests/stack/test_replay.py": "tests/loadtest/replay",
    "tests/stack/test_replicas.py": "tests/router/routing and tests/launcher/stack/test_stack.py",
    "tests/stack/test_vllm_images.py": "tests/engine/runtimes/vllm",
    "tests/stack/test_vllm_pools.py": "tests/engine/runtimes/vllm",
    "tests/stack/test_vllm_runtime.py": "tests/engine/runtimes/vllm",
    "tests/survival/test_connections.py": "tests/router/http and tests/stack/test_disconnect.py",
    "tests/survival/test_chaos.py": "tests/stack/test_reviving.py and tests/loadtest/chaos",
    "tests/upgrade/test_side_by_side.py": "tests/upgrade/test_recorded.py",
}
# Of one slice, on two workers. CI has 15 minutes for the first tier and a slice.
SLICE_S = 2 * 200.0


def choose_examples(*, thorough: bool, seed: int) -> None:
    """Load the profile of Hypothesis of one of the tiers, before tests are imported.

    The seed comes from the change: two runs of a commit try the same examples, the next commit tries others.
    """
    number = ALL_EXAMPLES if thorough else FEW_EXAMPLES
    settings.register_profile("tier", max_examples=number, deadline=None)
    settings.load_profile("tier")
    if core.global_force_seed is None:  # --hypothesis-seed names another one
        vars(core)["global_force_seed"] = seed


def examples(most: int) -> int:
    """Return this tier's share of so many examples, for a property that names its own number."""
    return max(2, most * settings().max_examples // ALL_EXAMPLES)


def few(values: Iterable[Any], kept: int | Collection[Any] = 2) -> list[ParameterSet]:
    """Keep some values of a parameter in `make test`, and leave the others to the thorough tier.

    `kept` names them, or is their number: then they are spread evenly, the first and the last among them.
    """
    everything = list(values)
    if isinstance(kept, int):
        gaps = max(1, kept - 1)
        kept = [everything[each * (len(everything) - 1) // gaps] for each in range(kept)]
    mark = pytest.mark.thorough("other values of the same parameter")
    return [
        pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=() if each in kept else mark)
        for each in everything
    ]


def is_property(item: pytest.Item) -> bool:
    return bool(getattr(getattr(item, "obj", None), "is_hypothesis_test", False))


def is_longer_when_thorough(item: pytest.Item) -> bool:
    """Return whether the thorough tier does more for this test than `make test` does."""
    if item.get_closest_marker("thorough") or item.nodeid.startswith(tuple(FILES)):
        return True
    return is_property(item) or "thorough" in getattr(item, "fixturenames", ())


def slices_of(seconds: Mapping[str, float]) -> list[set[str]]:
    """Divide work into slices that take about as long as each other, the same for the same times.

    Work that takes longer than a slice may is in none: only whole runs have it.
    """
    seconds = {work: each for work, each in seconds.items() if each <= SLICE_S}
    number = max(1, round(sum(seconds.values()) / SLICE_S))
    slices: list[tuple[float, int, set[str]]] = [(0.0, each, set()) for each in range(number)]
    for work in sorted(seconds, key=lambda each: (-seconds[each], each)):
        taken_s, place, works = heapq.heappop(slices)
        works.add(work)
        heapq.heappush(slices, (taken_s + seconds[work], place, works))
    return [works for _, _, works in sorted(slices, key=lambda each: each[1])]


def works_of_slice(seconds: Mapping[str, float], number: int) -> set[str]:
    """Return the work of the slice that is due, counting slices round and round."""
    slices = slices_of(seconds)
    return slices[number % len(slices)]


def leaves_out(path: Path, config: pytest.Config) -> bool:
    """Return whether this run does not even import a file, because only the thorough tier runs it."""
    place = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    is_named = any(Path(each.partition("::")[0]).resolve() == path for each in config.args)
    return place in FILES and not config.getoption("--thorough") and not is_named


def choose_items(
    config: pytest.Config,
    items: list[pytest.Item],
    work_of: Callable[[str], str],
    times: Mapping[str, Times],
) -> list[pytest.Item]:
    """Keep in `items` what this tier, or this slice of the thorough one, runs, and return the others.

    A file that is named on the command line is run whole.
    """
    number: int | None = config.getoption("--slice")
    if number is not None:
        due = works_of_slice(seconds_of_slices(work_of, times), number)
        chosen = [item for item in items if is_longer_when_thorough(item) and work_of(item.nodeid) in due]
    elif config.getoption("--thorough"):
        return []
    else:
        named = {Path(each.partition("::")[0]).resolve() for each in config.args}
        chosen = [item for item in items if item.path in named or not item.get_closest_marker("thorough")]
    kept = set(chosen)
    left_out = [item for item in items if item not in kept]
    items[:] = chosen
    return left_out


def seconds_of_slices(work_of: Callable[[str], str], times: Mapping[str, Times]) -> dict[str, float]:
    """Return what the thorough tier takes longer than the first one, by work."""
    seconds: dict[str, float] = {}
    for file, each in times.items():
        longer_s = each.thorough_s - (0.0 if file in FILES else each.first_s)
        seconds[work_of(file)] = seconds.get(work_of(file), 0.0) + max(0.1, longer_s)
    return seconds
