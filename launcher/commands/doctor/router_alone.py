"""Where a router runs alone, as in its container, what only Triton needs is not judged."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

from launcher.commands.deployment.model_facts import facts_path
from launcher.commands.doctor.finding import Finding, skipped
from launcher.packaging.triton_runtime import HOME_VARIABLE
from launcher.settings import state_dir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.settings import Settings

OF_TRITON = frozenset(
    {"memory", "/dev/shm", "GPU", "TensorRT-LLM", "Triton", "libpython", "data directory", "model"}
)


def is_router_alone(settings: Settings) -> bool:
    """No Triton is installed here, and one that runs elsewhere has told what it serves."""
    has_triton = bool(os.environ.get(HOME_VARIABLE)) or importlib.util.find_spec("pytriton") is not None
    return not has_triton and facts_path(state_dir(settings)).is_file()


def without_tritons(found: Sequence[Finding]) -> list[Finding]:
    return [
        skipped(each.check, "for Triton, which runs elsewhere") if each.check in OF_TRITON else each
        for each in found
    ]
