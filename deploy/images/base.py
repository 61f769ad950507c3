"""Stand-ins for what images are built on: Python's official image, and NVIDIA's with Triton.

The first is Debian's packages and a CPython 3.12, both of this machine; the second that one with Triton's
server of the PyPI wheel at its place, numpy, and a torch of which there is only the name and the version: as
much as an image can be built on. It computes on no GPU.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.images.system import write_system

if TYPE_CHECKING:
    from deploy.images.buildah import Buildah

LIBRARIES = (
    *("ca-certificates", "libssl3", "libffi8", "libsqlite3-0", "zlib1g", "libbz2-1.0", "liblzma5"),
    *("libreadline8", "libncursesw6", "libuuid1", "libexpat1", "libstdc++6", "netbase", "passwd", "tzdata"),
)
# What packages do when they are installed, as far as it is missed. And folders are opened for others: they
# were made by a process that may keep to itself what it makes.
SETTLED = """for each in passwd group; do cp /usr/share/base-passwd/$each.master /etc/$each; done
ldconfig
chmod 755 /usr /usr/local
"""
# What NVIDIA's images have, as their own packages; without torch's libraries for a GPU, which are gigabytes.
LAID_OUT = """
set -eu
pip install --quiet --no-cache-dir --no-deps numpy==1.26.4 nvidia-pytriton==0.7.0 packaging
packages=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
torch=$packages/torch-2.11.0.dist-info
mkdir -p "$packages/torch" "$torch"
printf 'Metadata-Version: 2.1\\nName: torch\\nVersion: 2.11.0\\n' > "$torch/METADATA"
echo stand-in > "$torch/INSTALLER"
server=$packages/pytriton
mkdir -p /opt/tritonserver/backends
cp -r "$server/tritonserver/bin" /opt/tritonserver/bin
cp -r "$server/tritonserver/backends/python" /opt/tritonserver/backends/python
cp "$server"/tritonserver/python_backend_stubs/3.12/* /opt/tritonserver/backends/python/
# Its programs find the libraries that they came with by the way from where they lay.
cp -r "$packages/nvidia_pytriton.libs" /
pip uninstall --quiet --yes nvidia-pytriton
"""
OF_PYTHON = ("test", "idlelib", "tkinter", "turtledemo")


def stand_in(name: str, *recipe: object) -> str:
    """A name that says how it is made: one that was made in another way is not used."""
    return f"localhost/{name}:stand-in-{hashlib.sha256(repr(recipe).encode()).hexdigest()[:8]}"


NAME = stand_in("python", LIBRARIES, SETTLED, OF_PYTHON)
GPU_NAME = stand_in("tritonserver", NAME, LAID_OUT)


def make_stand_in(buildah: Buildah, prefix: Path | None) -> str:
    """Once: one that is there is used again."""
    if buildah.has(NAME):
        return NAME
    prefix = prefix or find_python()
    with tempfile.TemporaryDirectory(prefix="inflight-base-") as folder:
        system, python = Path(folder, "system.tar"), Path(folder, "python")
        write_system(LIBRARIES, system)
        ignored = shutil.ignore_patterns("__pycache__", "*.a", "config-3*", *OF_PYTHON)
        for part in ("bin", "lib"):
            shutil.copytree(prefix / part, python / "usr/local" / part, symlinks=True, ignore=ignored)
        move_scripts(python / "usr/local/bin")
        with buildah.changed("scratch", NAME) as container:
            buildah.ask("add", "--quiet", container, system, "/")
            buildah.ask("copy", "--quiet", container, f"{python}/", "/")
            buildah.ask("run", "--isolation=chroot", container, "--", "sh", "-c", SETTLED)
            path = "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
            buildah.ask("config", "--env", path, "--cmd", "python3", container)
    return NAME


def move_scripts(folder: Path) -> None:
    """pip and its like name their interpreter by the place that they were installed in."""
    for script in folder.iterdir():
        if script.is_file() and not script.is_symlink() and script.read_bytes()[:2] == b"#!":
            _, _, rest = script.read_bytes().partition(b"\n")
            script.write_bytes(b"#!/usr/local/bin/python3\n" + rest)


def make_gpu_base(buildah: Buildah, python_image: str) -> str:
    if not buildah.has(GPU_NAME):
        with buildah.changed(python_image, GPU_NAME) as container, buildah.authorities() as trusted:
            buildah.ask("run", "--isolation=chroot", *trusted, container, "--", "sh", "-c", LAID_OUT)
    return GPU_NAME


def find_python() -> Path:
    found = shutil.which("python3.12")
    places = [Path(found).resolve().parents[1]] if found else []
    places += sorted(Path.home().glob(".pyenv/versions/3.12*"))
    if not places:
        raise SystemExit("no CPython 3.12 was found on this machine: name its prefix with --python")
    return places[-1]
