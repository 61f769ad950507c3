"""Everything a bundle holds, by its path in it."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path, PurePosixPath

from deploy.bundle.archive import Member
from deploy.bundle.selection import (
    PROJECT_FILES,
    PROJECT_FOLDERS,
    is_package_file_wanted,
    is_project_file_wanted,
)
from deploy.bundle.wheels import files_of

_SCRIPTS = {"install": "install.py", "bin/inflight": "inflight.sh"}


def contents(
    project: Path,
    wheels: Iterable[Path],
    version: str,
    python: str,
    models: Iterable[Path] = (),
    parts: str = "",
    of_vllm: Iterable[Path] = (),
) -> dict[PurePosixPath, Member]:
    """`parts` is the list of its packages, which goes with it wherever it is unpacked; wheels of vLLM stay
    wheels, because they are installed into an environment of its own."""
    root = PurePosixPath(f"inflight-{version}")
    members: dict[PurePosixPath, Member] = {}
    for wheel in wheels:
        members.update({root / "lib" / path: member for path, member in package_files(wheel, python)})
    for path in project_files(project):
        members[root / path] = of_file(project / path)
    for model in models:
        for file in sorted(model.iterdir()):
            members[root / "models" / model.name / file.name] = of_file(file)
    for wheel in of_vllm:
        members[root / "wheels" / "vllm" / wheel.name] = of_file(wheel)
    here = Path(__file__).parent
    for name, script in _SCRIPTS.items():
        members[root / name] = Member((here / script).read_bytes, is_executable=True)
    # So that the version can be asked for as in any environment.
    metadata = f"Metadata-Version: 2.1\nName: inflight\nVersion: {version}\n".encode()
    members[root / "lib" / f"inflight-{version}.dist-info" / "METADATA"] = Member(lambda: metadata)
    members[root / "python-version"] = Member(f"{python}\n".encode)
    if parts:
        members[root / "sbom.cdx.json"] = Member(parts.encode)
    return members


def package_files(wheel: Path, python: str) -> Iterator[tuple[PurePosixPath, Member]]:
    for path, member in files_of(wheel):
        if is_package_file_wanted(path, python):
            is_executable = bool(member.external_attr >> 16 & 0o100)
            yield path, Member(partial(read_member, wheel, member.filename), is_executable)


def read_member(wheel: Path, name: str) -> bytes:
    return _opened(wheel).read(name)


@cache
def _opened(wheel: Path) -> zipfile.ZipFile:
    """Once: to find a file in it, all that it lists is read."""
    return zipfile.ZipFile(wheel)


def project_files(project: Path) -> Iterator[PurePosixPath]:
    """What git keeps, where the project is a checkout; else whatever lies in its folders."""
    for path in sorted(kept_by_git(project) or all_files(project)):
        if is_project_file_wanted(path) and (project / path).is_file():
            yield path


def kept_by_git(project: Path) -> list[PurePosixPath]:
    if not (project / ".git").exists() or shutil.which("git") is None:
        return []
    command = ["git", "-C", str(project), "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return [PurePosixPath(name) for name in listed.split("\0") if name]


def all_files(project: Path) -> list[PurePosixPath]:
    found = [file for folder in PROJECT_FOLDERS for file in (project / folder).rglob("*")]
    return [
        *map(PurePosixPath, PROJECT_FILES),
        *(PurePosixPath(file.relative_to(project).as_posix()) for file in found),
    ]


def of_file(path: Path) -> Member:
    return Member(path.read_bytes, is_executable=bool(path.stat().st_mode & 0o100))
