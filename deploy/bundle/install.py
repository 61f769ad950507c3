#!/usr/bin/env python3
"""Makes the environment of an unpacked bundle beside it: the packages that came along, the host's torch."""

import compileall
import fcntl
import os
import shutil
import signal
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
ENVIRONMENT = ROOT / ".venv"
# Written last: what an environment was made from. One that is the same need not be made again.
RECEIPT = "inflight-made-from"
# Model repositories must stay as they are: Triton takes any other folder in one for a model.
COMPILED = ("lib", "client", "launcher", "loadtest", "python_backend", "router", "simulator")
COMMAND = """#!/bin/sh
# No folder that happens to be the working directory may stand in for one of ours.
exec "$(dirname -- "$(readlink -f -- "$0")")/python" -c \\
    'import sys; del sys.path[0]; from launcher.cli import main; main()' "$@"
"""


def say(text: str) -> None:
    """Not to where the output of the first command goes, which may be a pipe that wants nothing else."""
    sys.stderr.write(f"{text}\n")


def refuse_this_python() -> None:
    wanted, found = (ROOT / "python-version").read_text().strip(), "{}.{}".format(*sys.version_info[:2])
    if found != wanted:
        sys.exit(
            f"this bundle is for Python {wanted}; python3 is {found} ({sys.executable}). Put a Python "
            f"{wanted} that has torch first in PATH, or make another: make bundle PYTHON_VERSION={found}"
        )


def refuse_this_torch() -> None:
    """A host without a GPU may be one that makes an image for hosts with one: `inflight up` will say so."""
    sys.path.insert(0, str(ROOT))
    from python_backend.engine.host.device import look, missing_packages

    missing = missing_packages(look())
    if missing:
        sys.exit(
            f"{missing} ({sys.executable}). Inflight computes with the torch of the python3 that is first in "
            "PATH: install a build for CUDA there, or activate the environment that has one."
        )


def host_folders() -> "list[str]":
    found = (find_spec(name) for name in ("torch", "triton"))
    return sorted({str(Path(spec.origin).parent.parent) for spec in found if spec and spec.origin})


def made_from() -> str:
    python = getattr(sys, "_base_executable", sys.executable)
    return "\n".join([os.path.realpath(python), *host_folders(), ""])


def is_made() -> bool:
    try:
        return (ENVIRONMENT / "bin" / "python").exists() and (
            ENVIRONMENT / RECEIPT
        ).read_text() == made_from()
    except OSError:
        return False


@contextmanager
def alone() -> "Iterator[None]":
    """Whoever else installs here is waited for."""
    with (ROOT / ".install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make_environment() -> None:
    for left in ROOT.glob(".venv.*"):  # by one that was killed: nobody else is here now
        shutil.rmtree(left, ignore_errors=True)
    partial, replaced = ROOT / f".venv.{os.getpid()}", ROOT / f".venv.{os.getpid()}.replaced"
    try:
        venv.EnvBuilder(system_site_packages=True, symlinks=True).create(partial)
        version = "python{}.{}".format(*sys.version_info[:2])
        packages = partial / "lib" / version / "site-packages"
        # Ours come first: Triton's stub needs a numpy below 2, whatever the host has beside its torch.
        ours = [os.path.relpath(ROOT / name, packages) for name in ("lib", ".")]
        (packages / "inflight.pth").write_text("\n".join([*ours, *host_folders(), ""]))
        command = partial / "bin" / "inflight"
        command.write_text(COMMAND)
        command.chmod(0o755)
        (partial / RECEIPT).write_text(made_from())
        if ENVIRONMENT.exists():
            ENVIRONMENT.rename(replaced)
        partial.rename(ENVIRONMENT)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


def install() -> None:
    with alone():
        if is_made():  # by the one that was waited for
            return
        say(f"Making an environment for {sys.executable} in {ENVIRONMENT} ...")
        # Now, for what runs inside Triton does not write such files and would compile at every start.
        for name in COMPILED:
            compileall.compile_dir(ROOT / name, quiet=2)
        make_environment()


def stop(number: int, frame: object) -> "NoReturn":
    """An exit like any other, after which nothing half made is left."""
    sys.exit(128 + number)


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    refuse_this_python()
    refuse_this_torch()
    try:
        if not is_made():
            install()
    except OSError as error:
        why = error.strerror or str(error)
        sys.exit(
            f"no environment can be made in {ROOT}: {why}. A user with write permission can run "
            f"{ROOT / 'install'} once, for all users; or unpack the bundle elsewhere."
        )
    say(f"Done. To serve: {ROOT / 'bin' / 'inflight'} up --model DIRECTORY_OR_GGUF_FILE")


if __name__ == "__main__":
    main()
