"""What facts of a machine mean for a stack."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.commands.doctor.finding import Finding, Verdict
from launcher.commands.doctor.machine import (
    GIB,
    MIB,
    MachineFacts,
    judge_gpu,
    judge_machine,
    judge_tensorrt_llm,
)
from launcher.commands.doctor.machine_facts import (
    engine_looks,
    existing_parent,
    live_runs,
    machine_facts,
    ports_of_runs,
)
from launcher.stack.runs import open_run

GOOD = MachineFacts(
    python=(3, 11),
    system="linux",
    machine="x86_64",
    glibc="2.36",
    wheel_tags="Tag: py3-none-manylinux_2_35_x86_64",
    cpus=8,
    memory_bytes=16 * GIB,
    disk_free_bytes=100 * GIB,
    shm_bytes=2 * GIB,
    open_files=65536,
    is_clock_kept=True,
)


def odd(facts: MachineFacts) -> list[Finding]:
    return [each for each in judge_machine(facts) if each.verdict is not Verdict.OK]


def test_a_good_machine_has_no_findings() -> None:
    assert odd(GOOD) == []


@pytest.mark.parametrize(
    ("fact", "value", "verdict", "words"),
    [
        ("python", (3, 13), Verdict.FAIL, "needs Python 3.10, 3.11 or 3.12; this is Python 3.13"),
        ("machine", "riscv64", Verdict.FAIL, "riscv64"),
        ("glibc", "2.31", Verdict.FAIL, "built for 2.35 or newer"),
        ("glibc", "", Verdict.SKIPPED, "unknown"),
        ("cpus", 1, Verdict.WARN, "1 core"),
        ("memory_bytes", GIB, Verdict.FAIL, "1.0 GiB available; at least 2.0 GiB"),
        ("memory_bytes", 3 * GIB, Verdict.WARN, "4.0 GiB are better"),
        ("disk_free_bytes", 100 * MIB, Verdict.FAIL, "100 MiB free for the data directory"),
        ("shm_bytes", 64 * MIB, Verdict.FAIL, "64 MiB in all"),
        ("shm_bytes", None, Verdict.FAIL, "there is none"),
        ("open_files", 256, Verdict.FAIL, "256 at most"),
        ("open_files", 1024, Verdict.WARN, "1024 at most"),
        ("is_clock_kept", False, Verdict.WARN, "synchronised"),
        ("is_clock_kept", None, Verdict.SKIPPED, "cannot be determined"),
    ],
)
def test_each_fact_of_a_machine_is_judged_by_itself(
    fact: str, value: object, verdict: Verdict, words: str
) -> None:
    (found,) = odd(replace(GOOD, **{fact: value}))  # type: ignore[arg-type]  # each is of its field's type
    assert found.verdict is verdict
    assert words in found.what
    assert bool(found.advice) is (verdict in (Verdict.WARN, Verdict.FAIL))


def test_a_gpu_that_would_not_be_used_is_reported() -> None:
    missing = "torch is not installed"
    assert judge_gpu({"gpus": [], "missing": "none", "torch": ""}).verdict is Verdict.SKIPPED
    assert judge_gpu({"gpus": ["H200"], "missing": None, "torch": "2.11"}).what == "H200, torch 2.11"
    found = judge_gpu({"gpus": ["H200"], "missing": missing, "torch": ""})
    assert (found.verdict, found.what) == (Verdict.WARN, f"H200 would not be used: {missing}")


@pytest.mark.parametrize(
    ("version", "has_gpu", "verdict"),
    [
        (None, True, Verdict.SKIPPED),
        ("1.3.0", True, Verdict.OK),
        ("1.3.0", False, Verdict.WARN),
        ("0.17.0", True, Verdict.WARN),
    ],
)
def test_tensorrt_llm_is_used_from_a_minimum_version_and_with_a_gpu(
    version: str | None, has_gpu: bool, verdict: Verdict
) -> None:
    assert judge_tensorrt_llm(version, has_gpu).verdict is verdict


def test_the_facts_of_this_machine_can_be_read(tmp_path: Path) -> None:
    facts = machine_facts(tmp_path / "not" / "there")
    assert facts.memory_bytes > 0
    assert facts.disk_free_bytes > 0
    assert "manylinux" in facts.wheel_tags
    assert existing_parent(tmp_path / "not" / "there") == tmp_path
    assert engine_looks().keys() == {"gpus", "missing", "torch"}


def test_running_stacks_are_found(tmp_path: Path) -> None:
    assert live_runs(tmp_path) == []
    with open_run(tmp_path) as run:
        assert live_runs(tmp_path) == [run.stack_id]
        assert ports_of_runs(tmp_path, live_runs(tmp_path)) == frozenset(), "its router is not there yet"
        (run.directory / "router.toml").write_text("port = 9003\ngrpc_port = 8081\n")
        assert ports_of_runs(tmp_path, live_runs(tmp_path)) == {9003, 8081}
    assert live_runs(tmp_path) == []
    assert ports_of_runs(tmp_path, live_runs(tmp_path)) == frozenset()
