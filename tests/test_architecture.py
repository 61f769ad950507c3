"""The import table of the design, held against the code: who may know whom."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"python_backend", "router", "client", "loadtest", "launcher", "benchmarks", "tests"}

# Folder -> the packages of this project that it may import.
ALLOWED = {
    "model_repository": {"python_backend"},
    "ensembles": set(),
    "python_backend": {"python_backend"},
    "python_backend/wire": {"python_backend.wire"},
    "python_backend/gguf": {"python_backend.gguf", "python_backend.wire"},
    "python_backend/engine": {"python_backend.engine", "python_backend.gguf", "python_backend.wire"},
    "python_backend/text": {"python_backend.text"},
    "python_backend/triton_adapter": {"python_backend"},
    "router": {"router", "python_backend.wire"},
    "client": {"client"},
    "loadtest": {"loadtest", "client"},
    "launcher": {"launcher", "client", "python_backend.gguf", "python_backend.wire"},
    "benchmarks": {"benchmarks", "client", "loadtest", "launcher", "python_backend"},
}
# Folders that decide: values in, value out. Beside themselves they may import the standard library alone.
DECISIONS = ("python_backend/engine/scheduling",)
PURE = ("python_backend/wire", *DECISIONS)
NO_EFFECTS = {"time", "threading", "socket", "asyncio", "subprocess", "multiprocessing", "os", "random"}


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Full dotted names of everything a file imports, relative imports resolved."""
    package = list(path.relative_to(ROOT).with_suffix("").parts[:-1])
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names} if module in OURS else {module}
    return found


def is_within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_only_what_the_design_allows(folder: str) -> None:
    for path in python_files(folder):
        ours = {name for name in imports(path) if name.split(".")[0] in OURS}
        strangers = {name for name in ours if not is_within(name, ALLOWED[folder])}
        assert not strangers, f"{path.relative_to(ROOT)} imports {sorted(strangers)}"


def test_the_table_covers_every_folder_with_code() -> None:
    folders = {path.relative_to(ROOT).parts[0] for path in ROOT.glob("*/**/*.py")}
    folders -= {name for name in folders if name.startswith(".")} | {"tests", "deploy", "docs"}
    assert folders <= set(ALLOWED), f"not in the table: {sorted(folders - set(ALLOWED))}"


@pytest.mark.parametrize("folder", PURE)
def test_contract_and_decisions_need_the_standard_library_alone(folder: str) -> None:
    for path in python_files(folder):
        foreign = {
            name.split(".")[0]
            for name in imports(path)
            if name.split(".")[0] not in sys.stdlib_module_names and name.split(".")[0] not in OURS
        }
        assert not foreign, f"{path.relative_to(ROOT)} imports {sorted(foreign)}"


@pytest.mark.parametrize("folder", DECISIONS)
def test_decisions_have_no_clock_thread_socket_or_chance(folder: str) -> None:
    assert python_files(folder)
    for path in python_files(folder):
        effects = {name.split(".")[0] for name in imports(path)} & NO_EFFECTS
        assert not effects, f"{path.relative_to(ROOT)} imports {sorted(effects)}"


@pytest.mark.parametrize("folder", ["python_backend/engine", "python_backend/text", "python_backend/wire"])
def test_only_the_adapter_knows_triton(folder: str) -> None:
    for path in python_files(folder):
        assert not {name for name in imports(path) if "triton" in name.lower()}, path
