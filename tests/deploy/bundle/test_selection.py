"""What goes into a bundle and what stays out."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

import pytest

from deploy.bundle.contents import project_files
from deploy.bundle.selection import LEFT_OUT, is_package_file_wanted

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("pytriton/__init__.py", True),
        ("pytriton/tritonserver/bin/tritonserver", True),
        ("pytriton/tritonserver/backends/python/libtriton_python.so", True),
        ("pytriton/tritonserver/backends/python/triton_python_backend_utils.py", True),
        ("pytriton/tritonserver/python_backend_stubs/3.12/triton_python_backend_stub", True),
        ("pytriton/tritonserver/python_backend_stubs/3.11/triton_python_backend_stub", False),
        ("pytriton/tritonserver/caches/local/libtritoncache_local.so", False),
        ("pytriton/client/client.py", False),
        ("nvidia_pytriton.libs/libtritonserver-7171.so", True),
        ("nvidia_pytriton.libs/libpython3-419a.13.so.1.0", False),
        ("numpy/core/_multiarray_umath.cpython-312-x86_64-linux-gnu.so", True),
        ("numpy/core/_simd.cpython-312-x86_64-linux-gnu.so", False),
        ("numpy/core/tests/test_multiarray.py", False),
        ("numpy/testing/__init__.py", True),
        ("numpy/f2py/__init__.py", False),
        ("uvloop/loop.pyx", False),
        ("pygments/lexers/__init__.py", True),
        ("pygments/lexers/python.py", True),
        ("pygments/lexers/haskell.py", False),
        ("sqlalchemy/testing/suite/test_types.py", False),
        ("sqlalchemy/engine/base.py", True),
        ("grpc/_cython/_credentials/roots.pem", True),
        ("rich-15.0.0.dist-info/METADATA", True),
        ("rich-15.0.0.dist-info/licenses/LICENSE", True),
        ("rich-15.0.0.dist-info/RECORD", False),
    ],
)
def test_only_the_package_files_that_serving_needs_are_bundled(path: str, wanted: bool) -> None:
    assert is_package_file_wanted(PurePosixPath(path), "3.12") is wanted


def test_torch_and_numba_are_the_hosts_own() -> None:
    assert {"torch", "numba"} <= LEFT_OUT


def test_exactly_the_project_files_that_run_are_bundled() -> None:
    paths = {str(path) for path in project_files(ROOT)}
    assert {"LICENSE", "launcher/cli.py", "model_repository/tensorrt_llm/config.pbtxt"} <= paths
    assert "python_backend/backends/tensorrtllm/model.py" in paths
    assert not any(path.startswith(("tests/", "benchmarks/", "deploy/", ".")) for path in paths)
    assert not any("__pycache__" in path or path.endswith(".pyc") for path in paths)


def test_only_files_tracked_by_git_are_bundled_from_a_checkout(tmp_path: Path) -> None:
    for name in ("LICENSE", "launcher/cli.py", "launcher/notes.txt", "launcher/gone.py", "tests/test_cli.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert "launcher/notes.txt" in {str(path) for path in project_files(tmp_path)}
    for command in (["init", "--quiet"], ["add", "LICENSE", "launcher/cli.py", "launcher/gone.py", "tests"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    (tmp_path / "launcher" / "gone.py").unlink()
    assert [str(path) for path in project_files(tmp_path)] == ["LICENSE", "launcher/cli.py"]
