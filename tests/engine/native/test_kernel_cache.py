"""Where compiled kernels are kept: never where kernels of other sources could be found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from python_backend.engine import native
from tests.pace import patience

SCRIPT = "import python_backend.engine.native.step as step; print(step.run_step.stats.cache_path)"


def cache_path_with(environment: dict[str, str]) -> Path:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=True,
    )
    return Path(ended.stdout.strip())


def test_a_chosen_kernel_folder_has_one_subfolder_for_each_state_of_the_sources(tmp_path: Path) -> None:
    assert cache_path_with({"NUMBA_CACHE_DIR": str(tmp_path)}) == tmp_path / native._fingerprint()


def test_a_copy_of_the_same_sources_finds_the_same_kernels(tmp_path: Path) -> None:
    shutil.copytree(Path(native.__file__).parents[2], tmp_path / "python_backend")
    kernels = tmp_path / "kernels"
    elsewhere = {"NUMBA_CACHE_DIR": str(kernels), "PYTHONPATH": str(tmp_path)}
    assert cache_path_with(elsewhere) == kernels / native._fingerprint()
