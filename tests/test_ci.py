"""What CI runs: both tiers and the checks, and what it says of a test that passes only sometimes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pace import patience
from tests.second_run import RUNS, judge

ROOT = Path(__file__).parents[1]
# Installed plugins take seconds to import, and none is needed here.
BARE = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "PYTEST", "ARGS"))}
BARE |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
MAKEFILE = """
ARGS ?=
install-dev:
check:
	@echo checked; exit {checks}
audit:
	@echo audited; exit 1
test:
	@{python} -m pytest -q $(subst -n 0,,$(ARGS))
test-thorough:
	@echo thorough $(ARGS)
	@exit {thorough}
"""
TESTS = """
from pathlib import Path

def test_one():
    pass

def test_shaky():
    been_here = Path("been-here")
    if not been_here.exists():
        been_here.touch()
        raise AssertionError("the first time")

def test_wrong():
    assert False

def test_stuck():
    import faulthandler
    faulthandler.dump_traceback()
    assert False
"""


def run(folder: Path, *tests: str, checks: int = 0, thorough: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `.ci/run` of a project with these tests alone."""
    (folder / ".ci").mkdir(exist_ok=True)
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    (folder / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
    python = folder / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (folder / "Makefile").write_text(MAKEFILE.format(python=sys.executable, checks=checks, thorough=thorough))
    kept = [
        part for part in TESTS.split("\ndef ") if part.startswith(("\nfrom", *(f"{each}(" for each in tests)))
    ]
    (folder / "test_it.py").write_text("\ndef ".join(kept))
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = ["bash", str(folder / ".ci" / "run")]
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    commit = ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "--quiet", "--allow-empty", "-m", "one"]
    subprocess.run(["git", "-C", str(folder), *commit], check=True)
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=BARE, check=False, timeout=120
    )


def test_a_run_passes_when_every_test_and_check_does(tmp_path: Path) -> None:
    ran = run(tmp_path, "test_one")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "checked" in ran.stdout
    assert "audited" in ran.stdout, "and fails nothing"
    assert "three times alone" not in ran.stdout


def test_a_failed_check_fails_the_run(tmp_path: Path) -> None:
    assert run(tmp_path, "test_one", checks=3).returncode != 0


def test_each_commit_has_the_next_slice_of_the_thorough_tier_and_that_must_pass(tmp_path: Path) -> None:
    assert "thorough --slice 1 " in run(tmp_path, "test_one").stdout
    ran = run(tmp_path, "test_one", thorough=1)
    assert "thorough --slice 2 " in ran.stdout
    assert ran.returncode != 0


def test_one_flaky_test_is_named_in_the_last_line_and_fails_nothing(tmp_path: Path) -> None:
    ran = run(tmp_path, "test_one", "test_shaky")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    *_, last = ran.stdout.splitlines()
    assert last.startswith("flaky: test_it.py::test_shaky (failed once, then passed 3 times alone)")
    assert "test_one" not in ran.stdout


def test_a_second_flaky_test_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert judge({"one": [True] * RUNS}, last=True) == 0
    assert judge({"one": [True] * RUNS, "two": [True] * RUNS}, last=True) == 1
    *_, named, last = capsys.readouterr().out.splitlines()
    assert named.startswith("flaky: two ")
    assert last == "2 flaky tests are more than the 1 that may pass"


def test_a_test_that_was_not_seen_to_pass_alone_is_not_flaky() -> None:
    assert judge({}, last=False) == 1, "those that failed did not run again"
    assert judge({"one": [True]}, last=False) == 1
    assert judge({"one": [True, False, True]}, last=False) == 1
    assert judge({"one": [True] * RUNS}, last=False) == 0


def test_a_test_that_fails_alone_too_fails_the_run(tmp_path: Path) -> None:
    ran = run(tmp_path, "test_one", "test_shaky", "test_wrong")
    assert ran.returncode != 0
    assert "failed: test_it.py::test_wrong (also alone, 3 of 3 times)" in ran.stdout
    assert "thorough" not in ran.stdout, "nobody waits for more of what is wrong already"


def test_where_a_test_hung_is_told_at_the_end(tmp_path: Path) -> None:
    ran = run(tmp_path, "test_stuck")
    told = ran.stdout.partition("--- what the first run said")[2]
    assert re.search(r"thread 0x.*\n  File \".*test_it.py\", line \d+ in test_stuck", told), ran.stdout


def test_a_worker_that_dies_ends_the_run_and_its_test_is_named(tmp_path: Path) -> None:
    """By the options of `make test`: without them xdist begins another worker, and both wait for ever."""
    dying = "import os\n\ndef test_dies():\n    os._exit(1)\n"
    passing = "def test_one():\n    pass\n\ndef test_two():\n    pass\n"
    for number in range(8):
        (tmp_path / f"test_{number}.py").write_text(dying if number == 4 else passing)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (options,) = re.findall(r"pytest -n \$\(WORKERS\) (.*)", (ROOT / "Makefile").read_text())
    command = [sys.executable, "-m", "pytest", "-p", "xdist.plugin", "-n", "2", *shlex.split(options)]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=BARE, check=False, timeout=patience(60)
    )
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED, ran.stdout + ran.stderr
    assert "crashed while running 'test_4.py::test_dies'" in ran.stdout
