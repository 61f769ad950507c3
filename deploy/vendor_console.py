"""Renews what the console has of others: `python -m deploy.vendor_console`, with npm on the PATH.

A new version is a line of `PACKAGES`; its digest is in the message that refuses the old one.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
import tempfile
from base64 import b64encode
from dataclasses import dataclass, field
from hashlib import sha256, sha512
from pathlib import Path

VENDOR = Path(__file__).parents[1] / "router" / "console" / "static" / "vendor"
MANIFEST = "packages.json"
# The names by which the packages import each other, and where they are in a browser.
_IMPORTS = {'from"preact"': 'from"./preact.js"', 'from"htm"': 'from"./htm.js"'}


@dataclass(frozen=True)
class Package:
    """What is taken of one npm package: its file -> ours; `ending` makes a module of what is none."""

    name: str
    version: str
    integrity: str
    files: dict[str, str]
    licence: str
    ending: dict[str, str] = field(default_factory=dict)


PACKAGES = (
    Package(
        "preact",
        "11.2.0",
        "sha512-/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
        {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "hooks.js"},
        "MIT",
    ),
    Package(
        "htm",
        "3.1.1",
        "sha512-983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        {"dist/htm.module.js": "htm.js"},
        "Apache-2.0",
    ),
    Package(
        "uplot",
        "1.6.32",
        "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        {"dist/uPlot.iife.min.js": "uplot.js", "dist/uPlot.min.css": "uplot.css"},
        "MIT",
        {"uplot.js": "\nexport default uPlot;\n"},
    ),
)


def main() -> None:
    written: dict[str, dict[str, object]] = {}
    VENDOR.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        files = {name: sha256(content).hexdigest() for name, content in _fetch(package).items()}
        written[package.name] = {"version": package.version, "licence": package.licence, "sha256": files}
    (VENDOR / MANIFEST).write_text(json.dumps(written, indent=2) + "\n")
    print(f"{VENDOR.name}: {', '.join(f'{each.name} {each.version}' for each in PACKAGES)}")


def _fetch(package: Package) -> dict[str, bytes]:
    """By the names here, written already."""
    with tempfile.TemporaryDirectory() as folder:
        which = f"{package.name}@{package.version}"
        command = ("npm", "pack", "--silent", which)
        made = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        archive = Path(folder, made.stdout.strip().splitlines()[-1])
        integrity = f"sha512-{b64encode(sha512(archive.read_bytes()).digest()).decode()}"
        if integrity != package.integrity:
            raise SystemExit(f"{which} is {integrity}, expected {package.integrity}")
        with tarfile.open(archive) as packed:
            wanted = {**package.files, "LICENSE": f"{package.name}.LICENSE.txt"}
            found = {ours: _read(packed, theirs) for theirs, ours in wanted.items()}
    for name, text in found.items():
        for theirs, ours in _IMPORTS.items():
            text = text.replace(theirs, ours)
        lines = [line for line in text.splitlines() if not line.startswith("//# sourceMappingURL")]
        found[name] = "\n".join(lines) + "\n" + package.ending.get(name, "")
        (VENDOR / name).write_text(found[name], encoding="utf-8")
    return {name: text.encode() for name, text in found.items()}


def _read(packed: tarfile.TarFile, name: str) -> str:
    file = packed.extractfile(f"package/{name}")
    if file is None:
        raise SystemExit(f"the package has no {name}")
    return file.read().decode()


if __name__ == "__main__":
    main()
