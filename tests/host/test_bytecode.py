"""Bytecode of what Triton's models import is kept, unless the user wants none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from python_backend.host import bytecode

PROGRAM = """
import subprocess, sys
from python_backend.host import bytecode
import before
bytecode.keep()
import after
subprocess.run([sys.executable, "-c", "import below"], check=True)
"""


@pytest.mark.parametrize(
    ("wanted", "compiled"), [({}, {"after", "below"}), ({"PYTHONDONTWRITEBYTECODE": "1"}, set())]
)
def test_what_is_imported_from_there_on_is_compiled_once_unless_the_user_wants_no_bytecode(
    tmp_path: Path, wanted: dict[str, str], compiled: set[str]
) -> None:
    for name in ("before", "after", "below"):
        (tmp_path / f"{name}.py").touch()
    base = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | wanted
    found = {**base, **bytecode.variables(base), "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    subprocess.run([sys.executable, "-c", PROGRAM], env=found, cwd=tmp_path, check=True)
    kept = (tmp_path / "__pycache__").glob("*.pyc")
    assert {path.name.split(".")[0] for path in kept} == compiled
