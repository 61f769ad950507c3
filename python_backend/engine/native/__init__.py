"""The engine's own kernels for CPUs, compiled on this machine at the first start and kept.

numba must know where to keep them before the first of its functions is defined, so it is told here. The
folder's name follows from these sources, numba's version and the processor: nothing stale is ever used.
"""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

import numba

from python_backend.engine.host.cache_dir import cache_dir
from python_backend.engine.native.one_module import compile_as_one


def _fingerprint() -> str:
    digest = hashlib.sha256(f"{numba.__version__} {platform.machine()}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


KERNELS = Path(os.environ.get("NUMBA_CACHE_DIR") or cache_dir() / "kernels") / _fingerprint()
numba.config.CACHE_DIR = str(KERNELS)  # type: ignore[attr-defined]
numba.config.CACHE_LOCATOR_CLASSES = "python_backend.engine.native.kernel_cache.BySources"  # type: ignore[attr-defined]
compile_as_one()
