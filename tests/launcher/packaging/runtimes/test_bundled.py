"""vLLM out of a bundle: beside the host's torch, if it was built for that one."""

from __future__ import annotations

import ensurepip
import importlib.metadata
import shutil
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from rich.console import Console

from launcher.bundle import MARK
from launcher.commands.runtime import commands
from launcher.console import StackConsole
from launcher.failure import Unusable
from launcher.packaging.runtimes import environment
from launcher.packaging.runtimes.builds import choose_build
from launcher.packaging.runtimes.bundled import bundled_build, hosts_torch, require_torch
from tests.deploy.bundle.test_bundle import wheel

BUILD = choose_build("vllm", "cuda", None)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels" / "vllm"
    folder.mkdir(parents=True)
    wheel(folder, BUILD.requirement, "py3-none-any", f"torch=={BUILD.torch}", "numpy")
    wheel(folder, "numpy")
    wheel(folder, "msgspec")
    bundled = Path(ensurepip.__file__).parent / "_bundled"  # Debian keeps it elsewhere
    (pip,) = Path(sysconfig.get_config_var("WHEEL_PKG_DIR") or bundled).glob("pip-*.whl")
    shutil.copy(pip, folder)
    return folder


def test_what_came_along_is_installed_and_torch_is_the_hosts(wheels: Path, tmp_path: Path) -> None:
    runtimes = tmp_path / "runtimes"
    found = environment.install(
        replace(BUILD, wheels=wheels), runtimes, None, StackConsole(Console(quiet=True))
    )
    assert (found.package, found.version_text, found.device) == ("vllm", BUILD.version, "cuda")
    assert found.torch == importlib.metadata.version("torch"), "of the Python that this is"
    shown = "import numpy, vllm; print(vllm.__file__); print(numpy.__file__)"
    places = environment.run([found.python, "-c", shown], {}).split()
    assert all(place.startswith(str(runtimes / "vllm")) for place in places), "its own come first"


def test_only_a_torch_that_it_was_built_for_will_do() -> None:
    require_torch(BUILD, "2.11.0+cu130", "13.0")
    for version, cuda, words in (
        ("2.10.0", "13.0", r"the torch of \S+ is 2\.10\.0 for CUDA 13\.0"),
        ("2.11.0", "12.8", r"2\.11\.0 for CUDA 12\.8"),
        ("2.11.0+cpu", "", r"2\.11\.0\+cpu for CPUs"),
        ("", "", "is missing"),
    ):
        with pytest.raises(Unusable, match=f"is built for torch 2.11.0 and CUDA 13; .*{words}"):
            require_torch(BUILD, version, cuda)


def test_the_torch_that_is_asked_is_the_one_of_this_python() -> None:
    assert hosts_torch()[0].startswith(importlib.metadata.version("torch"))


def test_what_a_bundle_does_not_have_is_refused(wheels: Path, tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"this bundle has vllm 0\.26\.0, and not 0\.32\.0"):
        bundled_build("vllm", wheels, "0.32.0", None)
    with pytest.raises(Unusable, match="the vllm of this bundle computes on GPUs; allowed: --device cuda"):
        bundled_build("vllm", wheels, None, "cpu")
    with pytest.raises(Unusable, match="this bundle has no vllm: make bundle ARGS='--with vllm'"):
        bundled_build("vllm", tmp_path / "nothing", None, None)


def test_in_a_bundle_the_command_looks_at_what_came_along(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / MARK).write_text("3.12\n")
    monkeypatch.setattr(commands, "PROJECT_ROOT", tmp_path)
    with pytest.raises(typer.Exit):
        commands.install("vllm", version="0.32.0", data_dir=tmp_path / "data")
    assert "this bundle has vllm 0.26.0" in capsys.readouterr().err
