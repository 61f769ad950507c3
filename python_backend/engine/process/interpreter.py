"""The engine process in the Python that its runtime needs, and the processes that a runtime starts.

A package such as vLLM has an environment of its own. The process that has chosen it becomes one of that
Python, with the same socket and the same number; what it was told is its second argument.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from multiprocessing import parent_process
from pathlib import Path
from typing import NoReturn

import msgspec

from python_backend.engine.process.messages import Start

_MODULE = "python_backend.engine.process.main"
# This program's folder comes last: a package that both have is the environment's own.
_BEGIN = (
    f"import runpy, sys; sys.path.append(sys.argv.pop(1)); sys.argv[0] = {_MODULE!r}; "
    f"runpy.run_module({_MODULE!r}, run_name='__main__', alter_sys=True)"
)
_PR_SET_PDEATHSIG = 1
_LIBRARIES = "LD_LIBRARY_PATH"


def become(interpreter: str, socket: int, start: Start) -> NoReturn:
    root = str(Path(__file__).resolve().parents[3])
    environment = {
        name: value
        for name, value in os.environ.items()
        # Those of our own environment; and its modules are compiled once for all starts.
        if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME")
    }
    if path := environment.get(_LIBRARIES):
        environment[_LIBRARIES] = os.pathsep.join(
            each for each in path.split(os.pathsep) if not _is_ours(each)
        )
    told = msgspec.json.encode(start).decode()
    os.set_inheritable(socket, True)
    sys.stdout.flush()
    os.execve(interpreter, [interpreter, "-c", _BEGIN, root, str(socket), told], environment)


def _is_ours(folder: str) -> bool:
    """Whether it has our libpython and nothing else, for Triton's stubs: the interpreter has its own."""
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return False
    return bool(names) and all(name.startswith("libpython") for name in names)


def start_given() -> Start | None:
    """What the process was told before it became this one."""
    return msgspec.json.decode(sys.argv[2], type=Start) if len(sys.argv) > 2 else None


def die_with_parent() -> None:
    """A core that outlived the engine process would keep its GPU's memory for ever."""
    with suppress(OSError, AttributeError):  # not on Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = parent_process()
    if parent is not None and parent.pid != os.getppid():
        os._exit(1)  # it died before that


def leave_owner(socket: int) -> None:
    """In a process that was forked: the owner is to see the engine process end, and this one ends with it."""
    with suppress(OSError):
        os.close(socket)
    die_with_parent()
