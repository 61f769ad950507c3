"""Where numba keeps compiled kernels: in the folder named by their sources, wherever those lie."""

from __future__ import annotations

from numba.core.caching import UserProvidedCacheLocator


class BySources(UserProvidedCacheLocator):
    """numba's own has a folder for each checkout and each virtual environment, and compiles for each."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        return ""
