"""A bundle of this project's own packages: it can be made today, whichever Python it is for."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
from pathlib import Path, PurePosixPath

import pytest

from client.terminal import Console
from deploy.bundle.__main__ import PYTHONS, gather_own
from deploy.bundle.contents import contents
from deploy.bundle.wheels import BundleError, Target
from deploy.compose_file import ROOT
from tests.debian import cache_dir, give_up
from tests.uv_plans import would_install

ELF, X86_64 = b"\x7fELF", 62
BUNDLE = PurePosixPath("inflight-1.0")
SERVER = BUNDLE / "lib/pytriton/tritonserver"


@pytest.mark.parametrize("python", PYTHONS)
def test_every_package_has_a_wheel_of_a_known_hash(python: str, tmp_path: Path) -> None:
    """Without the files: only that there are some."""
    where = ("--python-platform=x86_64-manylinux_2_35", f"--python-version={python}", f"--target={tmp_path}")
    known = ("--require-hashes", f"--requirement={ROOT}/requirements.hashes")
    assert "nvidia-pytriton==" in would_install(*where, *known)


def kept_wheels() -> Path:
    """Where those of an earlier run are, of the same names and hashes: pip reads long to find them again."""
    digest = hashlib.sha256("".join(importlib.metadata.requires("inflight") or []).encode())
    for lock in ("requirements.lock", "requirements.hashes"):
        digest.update((ROOT / lock).read_bytes())
    return cache_dir("wheels") / digest.hexdigest()


def keep(wheels: list[Path], place: Path) -> None:
    """And nothing of other locks."""
    shutil.rmtree(place.parent, ignore_errors=True)
    partial = place.with_name(f".{place.name}-{os.getpid()}")
    partial.mkdir(parents=True)
    for wheel in wheels:
        shutil.copy(wheel, partial)
    partial.rename(place)


@pytest.mark.thorough("tests/deploy/bundle/test_bundle.py, with packages made for it")
@pytest.mark.timeout(600)
def test_a_bundle_is_made_of_the_packages_that_the_lock_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = PYTHONS[-1]
    if (kept := kept_wheels()).is_dir():
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(kept))
    try:
        wheels = gather_own(Target(python), tmp_path, Console(quiet=True))
    except BundleError as error:
        if "pip could not download" not in str(error):
            raise
        give_up(str(error))
    if not kept.is_dir():
        keep(wheels, kept)
    packed = contents(ROOT, wheels, "1.0", python)
    stub = f"python_backend_stubs/{python}/triton_python_backend_stub"
    for program in (SERVER / "bin/tritonserver", SERVER / stub):
        assert packed[program].is_executable
        header = packed[program].read()[:20]
        assert (header[:4], header[18]) == (ELF, X86_64), f"{program} runs on the hosts that it is for"
    assert {BUNDLE / "bin/inflight", BUNDLE / "install", BUNDLE / "launcher/cli.py"} <= packed.keys()
    built = {path.name for path in packed if path.suffix == ".so" and ".cpython-" in path.name}
    assert built
    assert all(f".cpython-{python.replace('.', '')}-x86_64" in name for name in built)
