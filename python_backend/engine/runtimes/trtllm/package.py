"""The package `tensorrt_llm`: whether it is there, which version, and its import."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

NAME = "tensorrt_llm"
# A folder to look for the package in first. Triton's environment has no PYTHONPATH; this is passed on.
PATH_VARIABLE = "INFLIGHT_TENSORRT_LLM_PATH"

# What tells a process that it is a rank of an MPI job. Where mpirun started Triton, that is Triton's to be.
_RANK_VARIABLES = (
    "OMPI_COMM_WORLD_",
    "PMIX_RANK",
    "PMIX_NAMESPACE",
    "PMIX_SERVER_URI",
    "PMI_RANK",
    "PMI_SIZE",
)


@dataclass(frozen=True, slots=True)
class LlmPackage:
    version: tuple[int, int]
    version_text: str


def find_package() -> LlmPackage | None:
    """Without importing it, which takes many seconds; None where it is not, or does not say its version."""
    _look_in_the_folder()
    if find_spec(NAME) is None:
        return None
    for name in (NAME, "tensorrt-llm"):
        with suppress(importlib.metadata.PackageNotFoundError):
            text = importlib.metadata.version(name)
            numbers = re.match(r"(\d+)\.(\d+)", text)
            return LlmPackage((int(numbers[1]), int(numbers[2])), text) if numbers else None
    return None


def import_package(gpu: int) -> Any:
    """`tensorrt_llm.llmapi`, in a process that sees one GPU alone; CUDA looks when it is first used."""
    _look_in_the_folder()
    os.environ["CUDA_VISIBLE_DEVICES"] = visible_device(os.environ.get("CUDA_VISIBLE_DEVICES"), gpu)
    # Else it computes in a process of its own, which MPI starts, and which may outlive this one.
    os.environ.setdefault("TLLM_WORKER_USE_SINGLE_PROCESS", "1")
    for name in [name for name in os.environ if name.startswith(_RANK_VARIABLES)]:
        del os.environ[name]
    return importlib.import_module(f"{NAME}.llmapi")


def visible_device(visible: str | None, number: int) -> str:
    """What names the GPU that is `number` among those visible so far; nothing, where there is none."""
    if visible is None:
        return str(number)
    names = [name.strip() for name in visible.split(",")]
    return names[number] if number < len(names) else ""


def _look_in_the_folder() -> None:
    folder = os.environ.get(PATH_VARIABLE)
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
