"""Run directories: one for each stack, cleaned up whoever ended it."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from pathlib import Path

from launcher.stack.processes import STACK_ID_VARIABLE
from launcher.stack.runs import KEPT_LOGS, OWNER_LOCK, SHARED_MEMORY_DIR, SHARED_MEMORY_PREFIX, open_run
from tests.pace import patience


def region(stack_id: str) -> Path:
    path = SHARED_MEMORY_DIR / f"{SHARED_MEMORY_PREFIX}{stack_id}_0000"
    path.write_bytes(b"x")
    return path


def dead_run(data_dir: Path, stack_id: str) -> Path:
    """What a launcher leaves behind that was killed with SIGKILL."""
    directory = data_dir / "run" / stack_id
    (directory / "model_repository").mkdir(parents=True)
    for name in (OWNER_LOCK, "triton.log", "router.toml"):
        (directory / name).write_text(name)
    return directory


def test_a_run_keeps_its_logs_and_nothing_else(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        (run.directory / "triton.log").write_text("text")
        (run.directory / "router.toml").write_text("text")
        (run.directory / "backends").mkdir()
        shared = region(run.stack_id)
        assert run.directory.stat().st_mode & 0o077 == 0
    assert [path.name for path in run.directory.iterdir()] == ["triton.log"]
    assert not shared.exists()


def test_a_run_without_logs_leaves_no_directory(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        pass
    assert not run.directory.exists()


def test_two_runs_of_one_data_directory_do_not_affect_each_other(tmp_path: Path) -> None:
    with open_run(tmp_path) as first:
        shared = region(first.stack_id)
        (first.directory / "router.toml").write_text("text")
        with open_run(tmp_path) as second:
            assert second.stack_id != first.stack_id
        assert shared.exists()
        assert (first.directory / "router.toml").exists()


def test_the_next_run_cleans_up_after_a_killed_launcher(tmp_path: Path) -> None:
    dead_id, other_id = secrets.token_hex(4), secrets.token_hex(4)
    directory = dead_run(tmp_path, dead_id)
    shared, other = region(dead_id), region(other_id)
    environment = {STACK_ID_VARIABLE: dead_id, "PATH": os.environ["PATH"]}
    survivor = subprocess.Popen(["sleep", "100"], env=environment)
    try:
        with open_run(tmp_path):
            assert [path.name for path in directory.iterdir()] == ["triton.log"]
            assert not shared.exists()
            assert other.exists()
            assert survivor.wait(timeout=patience(30)) is not None
    finally:
        other.unlink()
        survivor.kill()


def test_only_the_logs_of_the_latest_runs_are_kept(tmp_path: Path) -> None:
    for number in range(KEPT_LOGS + 3):
        directory = dead_run(tmp_path, f"{number:08x}")
        moment_s = time.time() - 1000 + number
        os.utime(directory, (moment_s, moment_s))
    with open_run(tmp_path) as run:
        kept = {path.name for path in (tmp_path / "run").iterdir() if path.is_dir()} - {run.stack_id}
    assert kept == {f"{number:08x}" for number in range(3, KEPT_LOGS + 3)}


def test_the_shared_memory_of_one_triton_server_is_removed_without_the_others(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        own, others = (Path(SHARED_MEMORY_DIR / f"{run.shared_memory_prefix(number)}0") for number in (1, 11))
        for path in (own, others):
            path.write_bytes(b"x")
        run.remove_shared_memory(1)
        assert (own.exists(), others.exists()) == (False, True)
    assert not others.exists()
