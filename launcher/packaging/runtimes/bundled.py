"""A runtime that came along in a bundle, without torch: it uses the host's, if it was built for that one."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.failure import ProcessFailed, Unusable
from launcher.packaging.runtimes.builds import Build, choose_build
from launcher.packaging.runtimes.environment import run

if TYPE_CHECKING:
    from pathlib import Path

_ASKED = "import torch; print(torch.__version__, torch.version.cuda or '')"


def bundled_build(runtime: str, wheels: Path, version: str | None, device: str | None) -> Build:
    """The one in the folder. Refuses what is not there, and a torch that it was not built for."""
    found = next(wheels.glob(f"{runtime}-*.whl"), None)
    if found is None:
        raise Unusable(
            f"this bundle has no {runtime}: make bundle ARGS='--with vllm' makes one that has vllm, "
            "and --offline names a folder of wheels"
        )
    there = found.name.split("-")[1]
    if version not in (None, there):
        raise Unusable(f"this bundle has {runtime} {there}, and not {version}")
    if device == "cpu":
        raise Unusable(f"the {runtime} of this bundle computes on GPUs; allowed: --device cuda")
    build = choose_build(runtime, "cuda", there)
    require_torch(build, *hosts_torch())
    return replace(build, wheels=wheels)


def hosts_torch() -> tuple[str, str]:
    """Its version and the CUDA that it was built for, by its own word."""
    try:
        told = run([sys.executable, "-c", _ASKED], {}).split()
    except ProcessFailed:
        return "", ""
    return told[0], "".join(told[1:])


def require_torch(build: Build, version: str, cuda: str) -> None:
    if (version.partition("+")[0], cuda.partition(".")[0]) != (build.torch, build.cuda):
        found = f"{version} for {f'CUDA {cuda}' if cuda else 'CPUs'}" if version else "missing"
        raise Unusable(
            f"{build.requirement} is built for torch {build.torch} and CUDA {build.cuda}; the torch of "
            f"{sys.executable} is {found}. Put a python3 that has such a torch first in PATH"
        )
