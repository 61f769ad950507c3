from __future__ import annotations

import os
from pathlib import Path

import pytest

from python_backend.host import cores
from python_backend.host.cores import available_cores, cores_in_quota


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("200000 100000\n", 2),
        ("250000 100000", 3),
        ("1000 100000", 1),
        ("max 100000\n", None),
        ("-1 100000", None),
        ("0 100000", None),
        ("100000 0", None),
        ("", None),
        ("100000", None),
        ("what is this", None),
    ],
)
def test_a_quota_is_rounded_up_to_whole_cores(text: str, expected: int | None) -> None:
    assert cores_in_quota(text) == expected


def test_without_a_quota_the_cores_are_those_the_process_may_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "_CGROUPS", tmp_path)
    assert available_cores() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    "files",
    [
        {"cpu.max": "50000 100000\n"},
        {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"},
    ],
    ids=["version 2", "version 1"],
)
def test_a_quota_below_the_cores_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> None:
    monkeypatch.setattr(cores, "_CGROUPS", tmp_path)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_cores() == 1


@pytest.mark.parametrize(("servers", "each"), [(1, 8), (2, 4), (3, 2), (20, 1)])
def test_servers_on_one_machine_have_a_part_of_its_cores_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: int, each: int
) -> None:
    monkeypatch.setattr(cores, "_CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setenv(cores.SERVERS_HERE, str(servers))
    assert available_cores() == each


def test_a_quota_above_the_cores_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_CGROUPS", tmp_path)
    (tmp_path / "cpu.max").write_text("99900000 100000\n")
    assert available_cores() == len(os.sched_getaffinity(0))
