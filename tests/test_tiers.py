"""What is left to the thorough tier is named with what shows the same, and its slices are all of it."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import pace, tiers
from tests.division import work_of
from tests.progress import as_minutes, share_of_time
from tests.recorded_times import PATH, Times, read_times, write_times

ROOT = Path(__file__).parents[1]
WORKS = st.dictionaries(st.text("abcdef", min_size=1), st.floats(0.1, 2000.0))


@pytest.mark.parametrize("file", tiers.FILES)
def test_a_file_of_the_thorough_tier_names_what_make_test_has_instead(file: str) -> None:
    assert (ROOT / file).exists()
    named = re.findall(r"tests/[\w/.]*\w", tiers.FILES[file])
    assert named
    for path in named:
        assert (ROOT / path).exists(), path
        assert path not in tiers.FILES


def test_every_marker_names_what_make_test_has_instead() -> None:
    for path in ROOT.glob("tests/**/*.py"):
        for reason in re.findall(r'^@pytest\.mark\.thorough\("(.*)"\)', path.read_text(), re.MULTILINE):
            named = re.findall(r"tests/[\w/.]*\w", reason)
            assert named, (path, reason)
            assert all((ROOT / each).exists() for each in named), (path, reason)


@given(WORKS)
def test_slices_are_all_that_fits_into_one_each_once(seconds: dict[str, float]) -> None:
    slices = tiers.slices_of(seconds)
    fitting = sorted(work for work, each in seconds.items() if each <= tiers.SLICE_S)
    assert sorted(chain.from_iterable(slices)) == fitting
    assert slices == tiers.slices_of(dict(reversed(seconds.items())))
    for works in slices:
        assert sum(seconds[work] for work in works) <= 2.5 * tiers.SLICE_S


@given(WORKS, st.integers(0, 10_000))
def test_as_many_commits_as_there_are_slices_take_all_of_them(
    seconds: dict[str, float], commits: int
) -> None:
    number = len(tiers.slices_of(seconds))
    taken = [tiers.works_of_slice(seconds, commits + each) for each in range(number)]
    assert sorted(map(sorted, taken)) == sorted(map(sorted, tiers.slices_of(seconds)))


def test_what_runs_in_the_thorough_tier_alone_counts_whole_and_the_rest_by_what_is_more() -> None:
    only = next(iter(tiers.FILES))
    both = "tests/test_both.py"
    seconds = tiers.seconds_of_slices(work_of, {only: Times(9.0, 90.0), both: Times(10.0, 30.0)})
    assert seconds == {work_of(only): 90.0, both: 20.0}


def test_few_values_of_a_parameter_are_kept_the_first_and_the_last_among_them() -> None:
    def kept(*few: object) -> list[object]:
        return [each.values[0] for each in tiers.few(range(10), *few) if not each.marks]  # type: ignore[arg-type]

    assert kept() == [0, 9]
    assert kept(3) == [0, 4, 9]
    assert kept(1) == [0]
    assert kept([7, 8]) == [7, 8]
    assert len(tiers.few(range(10))) == 10


def test_times_are_written_for_one_tier_and_kept_for_the_other(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").touch()
    path = tmp_path / "tests" / "times.txt"
    write_times({"tests/test_a.py": 2.0, "tests/test_gone.py": 1.0}, thorough=False, path=path)
    write_times({"tests/test_a.py": 20.0}, thorough=True, path=path)
    assert read_times(path) == {"tests/test_a.py": Times(2.0, 20.0)}


def test_the_recorded_times_are_of_files_that_are_there() -> None:
    assert read_times()
    gone = [file for file in read_times() if not (ROOT / file).exists()]
    assert not gone, f"{PATH.name} names files that are gone: make test ARGS=--record"


def test_the_time_that_is_left_goes_by_the_pace_so_far() -> None:
    assert share_of_time(passed_s=60, left_s=100, done_s=50) == 120
    assert share_of_time(passed_s=60, left_s=100, done_s=0) == 0
    assert as_minutes(59.4) == "59 s"
    assert as_minutes(190) == "3 min 10 s"


def test_a_limit_is_never_shorter_than_on_an_idle_machine() -> None:
    assert pace.slowdown() >= 1
    assert pace.patience(2.0) == 2.0 * pace.slowdown()
