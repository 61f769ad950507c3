"""A stand-in for the official Python image: Debian's packages, and a CPython 3.12 of this machine."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deploy.images.buildah import Buildah

NAME = "localhost/python:3.12-stand-in"
LIBRARIES = (
    *("ca-certificates", "libssl3", "libffi8", "libsqlite3-0", "zlib1g", "libbz2-1.0", "liblzma5"),
    *("libreadline8", "libncursesw6", "libuuid1", "libexpat1", "netbase", "tzdata"),
)
LEFT_OUT = ("doc", "man", "locale", "info")
OF_PYTHON = ("test", "idlelib", "tkinter", "turtledemo")


def make_stand_in(buildah: Buildah, prefix: Path | None) -> str:
    """Once: one that is there is used again."""
    if NAME in buildah.ask("images", "--format", "{{.Name}}:{{.Tag}}").split():
        return NAME
    prefix = prefix or find_python()
    with tempfile.TemporaryDirectory(prefix="inflight-base-") as folder:
        system, python = Path(folder, "system.tar"), Path(folder, "python")
        without = [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in LEFT_OUT]
        packages = f"--include={','.join(LIBRARIES)}"
        command = ["mmdebstrap", "--quiet", "--variant=minbase", packages, *without, "bookworm", str(system)]
        subprocess.run(command, check=True)
        ignored = shutil.ignore_patterns("__pycache__", "*.a", "config-3*", *OF_PYTHON)
        for part in ("bin", "lib"):
            shutil.copytree(prefix / part, python / "usr/local" / part, symlinks=True, ignore=ignored)
        container = buildah.ask("from", "scratch")
        try:
            buildah.ask("add", "--quiet", container, system, "/")
            buildah.ask("copy", "--quiet", container, f"{python}/", "/")
            buildah.ask("run", "--isolation=chroot", container, "--", "ldconfig")
            path = "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
            buildah.ask("config", "--env", path, "--cmd", "python3", container)
            buildah.ask("commit", "--quiet", container, NAME)
        finally:
            buildah.ask("rm", container)
    return NAME


def find_python() -> Path:
    found = shutil.which("python3.12")
    places = [Path(found).resolve().parents[1]] if found else []
    places += sorted(Path.home().glob(".pyenv/versions/3.12*"))
    if not places:
        raise SystemExit("no CPython 3.12 is found on this machine: --python names its prefix")
    return places[-1]
