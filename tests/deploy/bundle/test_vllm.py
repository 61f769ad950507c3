"""A bundle with vLLM: all that it needs but torch, by its lock, as wheels that a host with torch installs."""

from __future__ import annotations

import lzma
import os
import re
import subprocess
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement

from deploy.bundle.__main__ import PYTHONS
from deploy.bundle.archive import Member, write_archive
from deploy.bundle.contents import contents
from deploy.bundle.selection import LEFT_OUT_OF_VLLM
from deploy.bundle.wheels import Target, Wheelhouse, pins_of
from deploy.compose_file import ROOT
from launcher.packaging.runtimes.builds import choose_build
from tests.deploy.bundle.test_bundle import wheel

LOCK = ROOT / "requirements-vllm.hashes"
BUILD = choose_build("vllm", "cuda", None)


def test_what_only_torch_needs_is_the_hosts_and_all_else_comes_along(tmp_path: Path) -> None:
    registry, into = tmp_path / "registry", tmp_path / "wheels"
    registry.mkdir()
    into.mkdir()
    wheel(registry, BUILD.requirement, "cp38-abi3-manylinux_2_28_x86_64", "torch==2.11.0", "numba", "shared")
    wheel(registry, "torch==2.11.0", "cp312-cp312-manylinux_2_28_x86_64", "nvidia-cublas", "shared")
    for name in ("nvidia_cublas", "numba", "shared"):
        wheel(registry, name)
    lock = tmp_path / "lock"
    lock.write_text(
        f"{BUILD.requirement} \\\n    --hash=sha256:00\nshared==1.0 ; python_version < '3.13' \\\n"
    )
    options = ["--no-index", f"--find-links={registry}"]
    house = Wheelhouse(Target("3.12"), lock, into, options, left_out=LEFT_OUT_OF_VLLM)
    found = house.gather([Requirement(BUILD.requirement)])
    assert [path.name.partition("-")[0] for path in found] == ["numba", "shared", "vllm"]
    packed = contents(tmp_path, [], "1.0", "3.12", of_vllm=found)
    assert PurePosixPath("inflight-1.0/wheels/vllm") / found[-1].name in packed


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_has_the_version_that_is_installed_elsewhere_and_the_torch_it_goes_with(python: str) -> None:
    target = Target(python)
    pins = {pin.name: str(pin.specifier) for pin in pins_of(LOCK) if target.applies(pin)}
    assert pins["vllm"] == f"=={BUILD.version}"
    assert pins["torch"] == f"=={BUILD.torch}"
    assert pins["nvidia-cuda-runtime"].startswith(f"=={BUILD.cuda}.")
    assert {"pip", "numpy", "msgspec"} <= pins.keys()
    assert all(re.fullmatch(r"==[\w.+]+", version) for version in pins.values())


def test_every_package_of_the_lock_is_known_by_its_bytes() -> None:
    blocks = re.split(r"^(?=\S)", LOCK.read_text(), flags=re.MULTILINE)[1:]
    assert len(blocks) == len(pins_of(LOCK))
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}$", block, re.MULTILINE) for block in blocks)


def test_wheels_are_stored_behind_the_rest_which_is_packed_as_without_them(tmp_path: Path) -> None:
    text, packed = b"the same again and again\n" * 40_000, os.urandom(300_000)
    members = {
        PurePosixPath("bundle/wheels/a.whl"): Member(lambda: packed),
        PurePosixPath("bundle/z.py"): Member(lambda: text, is_executable=True),
    }
    file = tmp_path / "bundle.tar.xz"
    write_archive(file, members)
    assert file.stat().st_size < len(packed) + 20_000
    first = lzma.LZMADecompressor()
    assert b"bundle/z.py" in first.decompress(file.read_bytes())
    assert first.unused_data.startswith(b"\xfd7zXZ"), "wheels are a stream of their own"
    subprocess.run(["tar", "xf", file], check=True, cwd=tmp_path)
    assert (tmp_path / "bundle/wheels/a.whl").read_bytes() == packed
    assert (tmp_path / "bundle/z.py").read_bytes() == text
    assert (tmp_path / "bundle/z.py").stat().st_mode & 0o777 == 0o755
