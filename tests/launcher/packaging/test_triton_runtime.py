"""Finding Triton and libpython, and what is said when one is missing."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from launcher.packaging import triton_runtime as runtime
from launcher.packaging.triton_runtime import (
    PYTHON,
    RuntimeMissing,
    build_runtime,
    check_architecture,
    find_libpython,
)
from tests.launcher.stand_ins.project import write_project


def test_the_backend_directory_holds_this_pythons_stub_and_the_drop_in(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project")
    built = build_runtime(project, tmp_path / "run")
    assert built.server.is_file()
    stub = built.backend_dir / "python" / "triton_python_backend_stub"
    assert stub.resolve().parent.name == PYTHON
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        assert not (built.backend_dir / "python" / name).is_symlink(), "Triton refuses a link that leads out"
    assert (built.backend_dir / "tensorrtllm" / "model.py").read_text() == (
        project / "python_backend" / "backends" / "tensorrtllm" / "model.py"
    ).read_text()
    assert built.library_dir is not None
    assert [path.name for path in built.library_dir.iterdir()] == [f"libpython{PYTHON}.so.1.0"]


def test_triton_sees_the_virtual_environment_first_and_no_foreign_python_paths(tmp_path: Path) -> None:
    built = build_runtime(write_project(tmp_path / "project"), tmp_path / "run")
    base = {
        "PATH": "/bin",
        "PYTHONPATH": "/x",
        "PYTHONHOME": "/y",
        "LD_LIBRARY_PATH": "/cuda",
        "HOME": "/root",
    }
    environment = built.environment(base)
    assert environment["PATH"] == f"{Path(sys.executable).parent}:/bin"
    assert environment["LD_LIBRARY_PATH"] == f"{built.library_dir}:/cuda"
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"
    assert environment.keys().isdisjoint({"PYTHONPATH", "PYTHONHOME"})
    assert environment["OPENBLAS_NUM_THREADS"] == "1", "instances must not fight over the cores"
    assert built.environment({"OPENBLAS_NUM_THREADS": "3"})["OPENBLAS_NUM_THREADS"] == "3"


def test_libpython_of_this_interpreter_is_found() -> None:
    assert find_libpython().name.startswith(f"libpython{PYTHON}.so")


def test_a_missing_libpython_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "library_directories", lambda: iter([Path("/nowhere")]))
    with pytest.raises(RuntimeMissing, match=rf"libpython{PYTHON}\.so\.1\.0 is missing"):
        find_libpython()


@pytest.mark.parametrize(
    ("family", "prefix", "command"),
    [
        ("debian ", "/usr", f"apt-get install libpython{PYTHON}"),
        ("ubuntu debian", "/usr", f"apt-get install libpython{PYTHON}"),
        ("fedora ", "/usr", "dnf install python3-libs"),
        ("rocky rhel centos fedora", "/usr", "dnf install python3-libs"),
        (
            "debian ",
            "/root/.pyenv/versions/x",
            f"--enable-shared pyenv install --force {platform.python_version()}",
        ),
    ],
)
def test_the_advice_for_libpython_fits_the_system(family: str, prefix: str, command: str) -> None:
    advice = runtime.libpython_advice(family, prefix)
    assert command in advice
    assert len(advice.splitlines()) == 3


def test_on_an_unknown_system_the_advice_names_all_ways() -> None:
    advice = runtime.libpython_advice("", "/opt/python")
    assert all(word in advice for word in ("apt-get", "dnf", "pyenv"))


def test_an_unsupported_architecture_is_refused() -> None:
    with pytest.raises(RuntimeMissing, match="x86_64 and aarch64; this is linux on riscv64"):
        check_architecture("riscv64")
