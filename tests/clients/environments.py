"""An environment for each client, outside the tree: uv's for Python, a folder with node_modules for Node."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from tests.clients.catalogue import FOLDER, Client

ROOT = FOLDER.parents[1]


def command_of(client: Client) -> tuple[list[str], Path]:
    """How its file is run, and where; what it needs is installed first, if it is not there yet."""
    if client.is_node:
        place = _node_modules(client)
        return ["node", client.path.name], place
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") or "uv"
    wanted = ["--python-platform", f"{platform.machine()}-manylinux_{client.glibc}"] if client.glibc else []
    return [uv, "run", "--quiet", *wanted, "--python", sys.executable, "--script", str(client.path)], ROOT


def _node_modules(client: Client) -> Path:
    """Modules are looked for beside a file, so the file goes where they are."""
    digest = hashlib.sha256(" ".join(client.packages).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "inflight" / "clients"
    place = cache / f"{client.name}-{digest}"
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "node_modules").is_dir():
        install = ["npm", "install", "--prefix", str(place), "--no-save", *client.packages]
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
    for path in (client.path, FOLDER / "uses.mjs"):
        shutil.copy(path, place)
    return place
