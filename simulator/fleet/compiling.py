"""How functions of the fleet simulator are compiled, and where the results are kept.

numba notices a change of a function's own file alone. The folder's name follows from all sources here, and
from the numbers that come from elsewhere, so nothing stale is ever used, and every checkout of the same
sources uses the same.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numba
from numba.core.caching import UserProvidedCacheLocator

from simulator.fleet import rules


class BySources(UserProvidedCacheLocator):
    """numba's own has a folder for each checkout and each virtual environment, and compiles for each."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        return ""


def _fingerprint() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    digest.update(repr([each for each in vars(rules).items() if each[0].isupper()]).encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


_caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
_kept_in = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(_caches) / "inflight" / "fleet")
numba.config.CACHE_DIR = str(_kept_in / _fingerprint())  # type: ignore[attr-defined]
numba.config.CACHE_LOCATOR_CLASSES = f"{__name__}.{BySources.__name__}"  # type: ignore[attr-defined]

# Nothing is allocated by them: counting references to the arrays would take most of the time.
compiled = numba.njit(cache=True, nogil=True, _nrt=False, error_model="numpy")  # type: ignore[call-overload]
