"""What CI runs: one chance for each test, and a name for those that would have passed with a second one."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def run(folder: Path, *tests: str, checks: int = 0) -> subprocess.CompletedProcess[str]:
    """`.ci/run` of a project with these tests alone."""
    (folder / ".ci").mkdir(exist_ok=True)
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    makefile = MAKEFILE.format(python=sys.executable, checks=checks)
    (folder / "Makefile").write_text(makefile)
    kept = [part for part in TESTS.split("\ndef ") if part.startswith(("\nfrom", *tests))]
    (folder / "test_it.py").write_text("\ndef ".join(kept))
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = ["bash", str(folder / ".ci" / "run")]
    return subprocess.run(command, capture_output=True, text=True, env=BARE, check=False, timeout=60)


def test_a_run_passes_when_every_test_and_check_does(tmp_path: Path) -> None:
    ran = run(tmp_path, "test_one")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "checked" in ran.stdout
    assert "audited" in ran.stdout, "and fails nothing"
    assert "second run" not in ran.stdout


def test_a_failed_check_fails_the_run(tmp_path: Path) -> None:
    assert run(tmp_path, "test_one", checks=3).returncode != 0


def test_no_second_chance_and_flaky_is_told_from_failed(tmp_path: Path) -> None:
    ran = run(tmp_path, "test_one", "test_shaky")
    assert ran.returncode != 0
    assert "flaky: test_it.py::test_shaky (failed, then passed alone)" in ran.stdout
    assert "0 failed twice, 1 flaky" in ran.stdout
    assert "test_one" not in ran.stdout
    (tmp_path / "been-here").unlink()
    ran = run(tmp_path, "test_one", "test_shaky", "test_wrong")
    assert ran.returncode != 0
    assert "failed: test_it.py::test_wrong (twice)" in ran.stdout
    assert "1 failed twice, 1 flaky" in ran.stdout


def test_where_a_test_hung_is_told_at_the_end(tmp_path: Path) -> None:
    ran = run(tmp_path, "test_stuck")
    told = ran.stdout.partition("--- what the first run said")[2]
    assert re.search(r"thread 0x.*\n  File \".*test_it.py\", line \d+ in test_stuck", told), ran.stdout


def test_a_second_run_on_its_own_never_passes(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_one(): pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.second_run", "--rootdir", str(tmp_path)]
    ended = subprocess.run([*command, str(tmp_path)], capture_output=True, env=BARE, check=False, timeout=60)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED


def test_a_worker_that_dies_ends_the_run_and_its_test_is_named(tmp_path: Path) -> None:
    """By the options of `make test`: without them xdist begins another worker, and both wait for ever."""
    dying = "import os\n\ndef test_dies():\n    os._exit(1)\n"
    passing = "def test_one():\n    pass\n\ndef test_two():\n    pass\n"
    for number in range(8):
        (tmp_path / f"test_{number}.py").write_text(dying if number == 4 else passing)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (options,) = re.findall(r"pytest -n \$\(WORKERS\) (.*) \$\(ARGS\)", (ROOT / "Makefile").read_text())
    command = [sys.executable, "-m", "pytest", "-p", "xdist.plugin", "-n", "2", *shlex.split(options)]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=BARE, check=False, timeout=60
    )
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED, ran.stdout + ran.stderr
    assert "crashed while running 'test_4.py::test_dies'" in ran.stdout
