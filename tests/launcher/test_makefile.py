"""The Makefile: what it offers, what it refuses, and that a stop reaches what it runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from launcher.paths import PROJECT_ROOT
from tests.pace import patience

if TYPE_CHECKING:
    from pathlib import Path

TARGETS = [
    "help",
    "install",
    "serve",
    "loadtest",
    "test",
    "runtimes",
    "upgrade",
    "check",
    "bench",
    "clients",
    "bundle",
    "images",
    "lock",
    "clean",
]
HANDED_DOWN = ("MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "PYTHON")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """As much of the project as `make` looks at, with nothing installed."""
    for name in ("Makefile", "pyproject.toml", "launcher/__init__.py", "launcher/python_version.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT_ROOT / name, tmp_path / name)
    for name in ("requirements.lock", "requirements.hashes", "requirements-loadtest.hashes"):
        (tmp_path / name).touch()
    return tmp_path


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def make(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "-C", str(directory), *arguments]
    # The tests themselves may run below `make test PYTHON=...`, which hands its variables down.
    environment = {key: value for key, value in os.environ.items() if key not in HANDED_DOWN}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=patience(60), env=environment
    )


def test_help_is_the_default_and_names_every_target() -> None:
    plain, asked = make(PROJECT_ROOT), make(PROJECT_ROOT, "help")
    assert plain.stdout == asked.stdout
    assert re.findall(r"^  make (\w+)", plain.stdout, re.MULTILINE) == TARGETS


def test_install_refuses_another_python_before_it_makes_anything(copy: Path) -> None:
    newer = script(
        copy / "python3.13",
        f"exec {sys.executable} -c \"import sys; sys.version_info = (3, 13, 0, 'final', 0); $2\"",
    )
    refused = make(copy, "install", f"PYTHON={newer}")
    assert refused.returncode != 0
    assert "this is Python 3.13" in refused.stderr
    assert not (copy / ".venv").exists()


def test_a_half_made_environment_is_not_kept(copy: Path) -> None:
    without_venv = script(
        copy / "python3", f'test "$2" = venv && mkdir -p .venv/bin && exit 1\nexec {sys.executable} "$@"'
    )
    script(copy / ".venv" / "bin" / "python", "exit 1")
    assert make(copy, "install", f"PYTHON={without_venv}").returncode != 0
    assert not (copy / ".venv").exists()


def test_a_python_other_than_the_environments_is_refused(copy: Path) -> None:
    script(copy / ".venv" / "bin" / "python", "echo Python 3.10.1")
    (copy / ".venv" / ".installed").touch()
    other = script(copy / "python3.12", "echo Python 3.12.1")
    refused = make(copy, "install", f"PYTHON={other}")
    assert refused.returncode != 0
    assert f".venv has Python 3.10.1, not PYTHON={other}" in refused.stderr
    assert make(copy, "install").returncode == 0
    assert make(copy, "install", f"PYTHON={copy / '.venv' / 'bin' / 'python'}").returncode == 0


def test_install_is_skipped_when_nothing_changed(copy: Path) -> None:
    (copy / ".venv").mkdir()
    (copy / ".venv" / ".installed").touch()
    assert "pip install" not in make(copy, "-n", "install").stdout
    later_s = time.time() + 10
    os.utime(copy / "requirements.lock", (later_s, later_s))
    assert "pip install" in make(copy, "-n", "install").stdout


def test_serving_installs_less_than_testing(copy: Path) -> None:
    assert "[dev]" not in make(copy, "-n", "serve").stdout
    assert "[dev]" in make(copy, "-n", "test").stdout


def test_serving_and_load_tests_install_only_files_that_are_known_byte_for_byte(copy: Path) -> None:
    (copy / ".venv" / "bin").mkdir(parents=True)
    for target, locked in (("install", "requirements.hashes"), ("loadtest", "requirements-loadtest.hashes")):
        installs = re.findall(r"pip install .*", make(copy, "-n", target).stdout)
        assert any(f"--require-hashes --requirement {locked}" in each for each in installs)
        assert all(
            "--require-hashes" in each or "--no-deps --no-build-isolation" in each for each in installs
        )


def test_serve_passes_arguments_and_a_stop_on(copy: Path) -> None:
    script(
        copy / ".venv" / "bin" / "inflight",
        'trap "echo stopped; exit 0" TERM\necho started "$@"\nwhile :; do sleep 0.05; done',
    )
    (copy / ".venv" / ".installed").touch()
    command = ["make", "-C", str(copy), "serve", "ARGS=--port 9000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        output = iter(process.stdout.readline, "")
        assert any(line.strip() == "started up --port 9000" for line in output)
        process.terminate()
        assert any(line.strip() == "stopped" for line in output)


def test_the_ci_script_runs_the_checks_and_the_tests() -> None:
    path = PROJECT_ROOT / ".ci" / "run"
    assert os.access(path, os.X_OK)
    made = re.findall(r"^(?:nice )?make ([\w-]+)", path.read_text(), re.MULTILINE)
    assert made == ["install-dev", "check", "audit", "test"]
