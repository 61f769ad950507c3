"""Run where an image is built: which packages pip is to install, and in which versions.

Those that the project names, less what the image does without, in the versions of requirements.lock. What the
base image has already stays as it is, as long as the project can use that version: its torch and TensorRT-LLM
were built with it. What is too old for the project comes from the lock, not in whichever version is newest.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# What pip builds the project itself with.
BUILDING = ("editables==0.5", "hatchling==1.27.0")


def name_of(requirement: str) -> str:
    """As package indexes compare names."""
    found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement.strip())
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def wanted(project: dict[str, object], extras: Collection[str], without: Collection[str]) -> list[str]:
    optional = project["optional-dependencies"]
    assert isinstance(optional, dict)
    if unknown := sorted(set(extras) - optional.keys()):
        raise SystemExit(f"there is no extra {', '.join(unknown)}; there are {', '.join(sorted(optional))}")
    groups = [project["dependencies"], *(optional[extra] for extra in extras)]
    every = [str(each) for group in groups if isinstance(group, list) for each in group]
    return [each for each in every if name_of(each) not in without]


def usable(requirements: Iterable[str], there: Mapping[str, str]) -> set[str]:
    """The names of what is there, less those that a requirement finds in a version it cannot use."""
    requirement_of: Any = packaging("requirements").Requirement
    read = [(name_of(each), requirement_of(each)) for each in requirements]
    refused = {
        name
        for name, each in read
        if name in there and not each.specifier.contains(there[name], prereleases=True)
    }
    return set(there) - refused


def installed() -> dict[str, str]:
    """Of two with one name Python imports the one that it finds first. Large images have broken ones, too."""
    there: dict[str, str] = {}
    for each in importlib.metadata.distributions():
        if "Name" in each.metadata and "Version" in each.metadata:
            there.setdefault(name_of(each.metadata["Name"]), each.version)
    return there


def packaging(module: str) -> Any:
    """pip has a copy of its own, where images have no other."""
    try:
        return importlib.import_module(f"packaging.{module}")
    except ImportError:
        return importlib.import_module(f"pip._vendor.packaging.{module}")


def pinned(lock: Iterable[str], there: Collection[str]) -> list[str]:
    pins = [line for line in (line.strip() for line in lock) if line and line[0] not in "#-"]
    return [pin for pin in (*pins, *BUILDING) if name_of(pin) not in there]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("into", type=Path, help="where requirements.txt and constraints.txt are written")
    parser.add_argument("--extra", action="append", default=[], help="of pyproject.toml")
    parser.add_argument("--without", action="append", default=[], help="a package to leave out")
    parser.add_argument("--also", action="append", default=[], help="a requirement that is not the project's")
    parser.add_argument("--keep-installed", action="store_true", help="instead of the versions of the lock")
    told = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    without = {name_of(each) for each in told.without}
    requirements = [*wanted(project, told.extra, without), *told.also]
    kept = usable(requirements, installed()) if told.keep_installed else set[str]()
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    told.into.mkdir(parents=True, exist_ok=True)
    for name, lines in (
        ("requirements.txt", requirements),
        ("constraints.txt", pinned(lock, kept)),
    ):
        (told.into / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
