"""A bundle with vLLM: all that it needs but torch, by its lock, as wheels that a host with torch installs."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement

from deploy.bundle.__main__ import PYTHONS
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
