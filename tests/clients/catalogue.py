"""The clients of this folder: each file names itself, the packages it needs, and their versions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
_PYTHON_TITLE = re.compile(r'\A"""(.+?)\.(?:"""|\n)')
_PYTHON_PACKAGE = re.compile(r'^# dependencies = \[\s*(?:#\s*)?"([^"]+)==([^"]+)"', re.MULTILINE)
_GLIBC = re.compile(r'^# glibc = "([0-9_]+)"$', re.MULTILINE)
_NODE_TITLE = re.compile(r"\A// (.+)\.\n")
_NODE_PACKAGES = re.compile(r"^// dependencies: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Client:
    """`packages` are npm's, with versions; those of a Python file are in the file, as PEP 723 has it.

    `glibc` is the version that its wheels want, where the machine's may be older.
    """

    path: Path
    title: str
    package: str
    version: str
    packages: tuple[str, ...] = ()
    glibc: str = ""

    @property
    def name(self) -> str:
        """As it is chosen on the command line."""
        return self.path.name.replace("_client", "").removesuffix(".py").replace(".mjs", "-node")

    @property
    def is_node(self) -> bool:
        return self.path.suffix == ".mjs"


def clients() -> list[Client]:
    paths = [*FOLDER.glob("*_client.py"), *FOLDER.glob("*_client.mjs")]
    return sorted((read(path) for path in paths), key=lambda client: client.name)


def read(path: Path) -> Client:
    """Raises ValueError for a file that does not say what it needs."""
    text = path.read_text()
    if path.suffix == ".mjs":
        title, named = _NODE_TITLE.search(text), _NODE_PACKAGES.search(text)
        if title is None or named is None:
            raise ValueError(f"{path.name} begins with a title and its dependencies")
        packages = tuple(named[1].split())
        package, _, version = packages[0].rpartition("@")
        return Client(path, title[1], package, version, packages)
    title, first = _PYTHON_TITLE.search(text), _PYTHON_PACKAGE.search(text)
    if title is None or first is None:
        raise ValueError(f"{path.name} begins with a title and its dependencies, pinned")
    glibc = _GLIBC.search(text)
    package = first[1].partition("[")[0]
    return Client(path, title[1], package, first[2], glibc=glibc[1] if glibc else "")
