"""Where compiled kernels are kept: never where kernels of other sources could be found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from python_backend.engine import native


def cache_dir_with(environment: dict[str, str]) -> Path:
    script = "import python_backend.engine.native; import numba; print(numba.config.CACHE_DIR)"
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return Path(ended.stdout.strip())


def test_a_chosen_kernel_folder_has_one_subfolder_for_each_state_of_the_sources(tmp_path: Path) -> None:
    assert cache_dir_with({"NUMBA_CACHE_DIR": str(tmp_path)}) == tmp_path / native._fingerprint()
