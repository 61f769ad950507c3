"""Refuses a Python this project cannot run on; imports nothing that could fail there first."""

import sys

SUPPORTED = ((3, 10), (3, 11), (3, 12))


def unsupported_python(version: "tuple[int, int]") -> "str | None":  # quoted: any Python 3 must get this far
    """The message for a (major, minor) that is not supported, or None."""
    if version in SUPPORTED:
        return None
    return (
        "inflight needs Python 3.10, 3.11 or 3.12; this is Python {}.{}.\n"
        "Triton's Python backend works with numpy below 2 only, and numpy 1.26 has no wheels beyond 3.12.\n"
        "Install one of them (Debian, Ubuntu: apt-get install python3.11 python3.11-venv libpython3.11; "
        "any system: pyenv, uv) and run: make install PYTHON=python3.11"
    ).format(*version)


def refuse_unsupported_python() -> None:
    message = unsupported_python(sys.version_info[:2])
    if message:
        sys.exit(message)
