"""The package `tensorrt_llm`: whether it is there, which version, and its import."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from math import prod
from typing import Any

from python_backend.engine.host.visible_devices import visible_devices
from python_backend.wire.parameters import EngineParameters

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


def find_package() -> str | None:
    """Its version, without importing it, which takes many seconds; None where it is not, or does not say."""
    _look_in_the_folder()
    if find_spec(NAME) is None:
        return None
    for name in (NAME, "tensorrt-llm"):
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def import_package(parameters: EngineParameters) -> Any:
    """`tensorrt_llm.llmapi`, in a process that sees the model's GPUs alone."""
    _look_in_the_folder()
    if (visible := visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"), parameters)) is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
    os.environ.setdefault("TRTLLM_NO_USAGE_STATS", "1")  # it tells NVIDIA of its use otherwise
    if prod(parameters.parallel_sizes.values()) == 1:
        # Else it computes in a process of its own, which MPI starts, and which may outlive this one.
        os.environ.setdefault("TLLM_WORKER_USE_SINGLE_PROCESS", "1")
    for name in [name for name in os.environ if name.startswith(_RANK_VARIABLES)]:
        del os.environ[name]
    return importlib.import_module(f"{NAME}.llmapi")


def _look_in_the_folder() -> None:
    folder = os.environ.get(PATH_VARIABLE)
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
