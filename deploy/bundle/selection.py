"""What goes into a bundle: which packages, which of their files, and which parts of this project."""

from __future__ import annotations

from pathlib import PurePosixPath

# torch is the host's own. numba computes on CPUs; tokenizers would download with huggingface-hub.
LEFT_OUT = frozenset({"torch", "numba", "huggingface-hub"})
# What vLLM was built for, and is there: with all that only torch needs, CUDA's libraries among it.
LEFT_OUT_OF_VLLM = frozenset({"torch", "triton"})
# Of nvidia-pytriton only the server inside is used: nothing of what its Python code needs.
WITHOUT_DEPENDENCIES = frozenset({"nvidia-pytriton"})

PROJECT_FOLDERS = (
    "client",
    "ensembles",
    "launcher",
    "loadtest",
    "model_repository",
    "python_backend",
    "router",
    "simulator",
)
PROJECT_FILES = ("LICENSE", "README.md")

_TRITON = PurePosixPath("pytriton/tritonserver")
_TRITON_FILES = (
    "bin/tritonserver",
    "backends/python/libtriton_python.so",
    "backends/python/triton_python_backend_utils.py",
    "python_backend_stubs/{python}/triton_python_backend_stub",
)
# For building against a package, or for testing it.
_DEVELOPMENT_SUFFIXES = frozenset({".a", ".c", ".f", ".f90", ".h", ".pxd", ".pxi", ".pyi", ".pyx"})
_DEVELOPMENT_FOLDERS = frozenset({"tests", "__pycache__"})
# Package -> folders of it that only its own tests and builds use.
_UNUSED = {"alembic": ("testing",), "numpy": ("distutils", "f2py"), "sqlalchemy": ("testing",)}
# rich colours tracebacks; nobody here shows other languages.
_LEXERS = frozenset({"__init__.py", "_mapping.py", "python.py", "special.py"})


def is_package_file_wanted(path: PurePosixPath, python: str) -> bool:
    """`path` is where a wheel puts a file below site-packages, `python` the version it is to serve."""
    top = path.parts[0]
    if top == "pytriton":
        kept = {_TRITON / name.format(python=python) for name in _TRITON_FILES}
        return path in kept or path == PurePosixPath("pytriton/__init__.py")
    if top == "nvidia_pytriton.libs":
        return not path.name.startswith("libpython")  # for a stub of another Python
    if top.endswith(".dist-info"):
        return _is_metadata_wanted(path)
    if path.parts[1:2] and path.parts[1] in _UNUSED.get(top, ()):
        return False
    if path.parts[:2] == ("pygments", "lexers"):
        return path.name in _LEXERS
    if top == "numpy" and path.name.startswith("_simd."):
        return False
    return path.suffix not in _DEVELOPMENT_SUFFIXES and not _DEVELOPMENT_FOLDERS & set(path.parts[:-1])


def _is_metadata_wanted(path: PurePosixPath) -> bool:
    """Versions and licences."""
    licences = ("licen", "copying", "notice", "authors")
    return path.name in ("METADATA", "entry_points.txt") or path.name.lower().startswith(licences)


def is_project_file_wanted(path: PurePosixPath) -> bool:
    """`path` is below the project's root."""
    if len(path.parts) == 1:
        return path.name in PROJECT_FILES
    return path.parts[0] in PROJECT_FOLDERS and "__pycache__" not in path.parts
