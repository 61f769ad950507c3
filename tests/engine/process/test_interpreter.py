"""The engine process becomes one of another Python, and brings nothing of its own that would break that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

BECOME = """
import sys
from python_backend.engine.process.interpreter import become
from python_backend.engine.process.messages import Start
from python_backend.wire.parameters import EngineParameters
become(sys.argv[1], 0, Start(EngineParameters("inflight_fused_batching", "/model")))
"""
OTHER = """#!/bin/sh
exec {python} -c 'import json, os; print(json.dumps(dict(os.environ)))'
"""


def environment_of_the_other(tmp_path: Path, **variables: str) -> dict[str, str]:
    other = tmp_path / "other"
    other.write_text(OTHER.format(python=sys.executable))
    other.chmod(0o755)
    command = [sys.executable, "-c", BECOME, str(other)]
    ran = subprocess.run(command, env={**os.environ, **variables}, check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(ran.stdout)
    return found


def test_another_python_finds_its_own_library_and_not_the_one_for_tritons_stubs(tmp_path: Path) -> None:
    for_stubs, of_the_user = tmp_path / "lib", tmp_path / "libraries of the user"
    for folder in (for_stubs, of_the_user):  # of a Python that is not this one, which would fall for it
        folder.mkdir()
        (folder / "libpython3.1.so").touch()
    (of_the_user / "libother.so").touch()
    path = f"{for_stubs}:{of_the_user}:/nowhere"
    found = environment_of_the_other(tmp_path, LD_LIBRARY_PATH=path)
    assert found["LD_LIBRARY_PATH"] == f"{of_the_user}:/nowhere"


def test_another_python_gets_no_settings_of_this_one(tmp_path: Path) -> None:
    ours = {"PYTHONDONTWRITEBYTECODE": "1", "INFLIGHT_OTHER": "1"}
    found = environment_of_the_other(tmp_path, **ours)
    assert found.keys() & ours.keys() == {"INFLIGHT_OTHER"}
