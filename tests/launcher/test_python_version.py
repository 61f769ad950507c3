"""Which Pythons are refused, and with what words."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from launcher import python_version
from launcher.python_version import unsupported_python


@pytest.mark.parametrize("version", [(3, 10), (3, 11), (3, 12)])
def test_supported_pythons_pass(version: tuple[int, int]) -> None:
    assert unsupported_python(version) is None


@pytest.mark.parametrize("version", [(3, 9), (3, 13), (3, 14)])
def test_unsupported_pythons_are_told_why_and_what_to_install(version: tuple[int, int]) -> None:
    message = unsupported_python(version)
    assert message is not None
    assert f"this is Python {version[0]}.{version[1]}" in message
    assert "numpy" in message
    assert "make install PYTHON=python3.11" in message


@pytest.mark.parametrize("module", ["__init__", "__main__", "cli", "python_version"])
def test_only_the_standard_library_is_imported_before_the_version_check(module: str) -> None:
    source = (Path(python_version.__file__).parent / f"{module}.py").read_text()
    roots = set()
    for node in ast.parse(source, feature_version=(3, 7)).body:
        if isinstance(node, ast.Import):
            roots |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            roots.add(node.module.split(".")[0])
    assert roots <= {"launcher", *sys.stdlib_module_names}
