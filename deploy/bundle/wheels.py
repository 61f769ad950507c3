"""The wheels of a target machine: resolved and downloaded with pip, whatever machine this is."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from deploy.bundle.selection import LEFT_OUT, WITHOUT_DEPENDENCIES
from deploy.sbom import metadata_of

# Triton's wheel is built against glibc 2.35.
_NEWEST_GLIBC = 35
_OLDER_TAGS = ("manylinux2014", "manylinux2010", "manylinux1")


class BundleError(Exception):
    """The bundle cannot be made; the message says why."""


@dataclass(frozen=True)
class Target:
    """An x86_64 Linux machine with this version of Python ("3.12")."""

    python: str

    @property
    def markers(self) -> dict[str, str]:
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": "x86_64",
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }

    def applies(self, requirement: Requirement, extras: Iterable[str] = ()) -> bool:
        """pip would ask this machine's Python, not the target's."""
        marker = requirement.marker
        return marker is None or any(
            marker.evaluate({**self.markers, "extra": extra}) for extra in ("", *extras)
        )

    @property
    def pip_options(self) -> list[str]:
        platforms = [f"manylinux_2_{minor}" for minor in range(_NEWEST_GLIBC, 4, -1)]
        flags = [f"--platform={name}_x86_64" for name in (*platforms, *_OLDER_TAGS)]
        return ["--only-binary=:all:", "--implementation=cp", f"--python-version={self.python}", *flags]


def visit(
    requirements: Iterable[Requirement],
    target: Target,
    fetch: Callable[[list[Requirement]], None],
    requires: Callable[[str], Iterable[str]],
    left_out: Container[str] = LEFT_OUT,
) -> None:
    """What is asked for and, in turn, what that needs there: each round is fetched before it is asked."""
    asked: set[tuple[str, str]] = set()
    wanted = list(requirements)
    while wanted := [item for item in wanted if _is_new(item, asked, left_out)]:
        fetch(wanted)
        wanted = [need for item in wanted for need in _needs_of(item, target, requires)]


def _is_new(requirement: Requirement, asked: set[tuple[str, str]], left_out: Container[str]) -> bool:
    name = canonicalize_name(requirement.name)
    keys = {(name, extra) for extra in ("", *requirement.extras)}
    is_new = name not in left_out and not keys <= asked
    asked |= keys
    return is_new


def _needs_of(
    requirement: Requirement, target: Target, requires: Callable[[str], Iterable[str]]
) -> list[Requirement]:
    name = canonicalize_name(requirement.name)
    if name in WITHOUT_DEPENDENCIES:
        return []
    return [need for need in map(Requirement, requires(name)) if target.applies(need, requirement.extras)]


class Wheelhouse:
    """Downloads what is asked for and, in turn, what that needs; `pip_options` go to every call of pip."""

    def __init__(
        self,
        target: Target,
        lock: Path,
        directory: Path,
        pip_options: Sequence[str] = (),
        say: Callable[[str], None] = lambda text: None,
        left_out: Container[str] = LEFT_OUT,
    ) -> None:
        self._target = target
        self._directory = directory
        self._pip_options = pip_options
        self._say = say
        self._left_out = left_out
        self._constraints = directory / "constraints.txt"
        self._constraints.write_text(
            "".join(f"{pin.name}{pin.specifier}\n" for pin in pins_of(lock) if target.applies(pin))
        )

    def gather(self, requirements: Iterable[Requirement]) -> list[Path]:
        """The wheels, in the order of their names."""
        wheels: dict[str, Path] = {}

        def fetch(wanted: list[Requirement]) -> None:
            if missing := [item for item in wanted if canonicalize_name(item.name) not in wheels]:
                self._download(missing)
                wheels.update({_name(path): path for path in sorted(self._directory.glob("*.whl"))})

        def requires(name: str) -> list[str]:
            return metadata_of(wheels[name]).get_all("Requires-Dist", [])

        visit(requirements, self._target, fetch, requires, self._left_out)
        return [wheels[name] for name in sorted(wheels)]

    def _download(self, requirements: list[Requirement]) -> None:
        plain = sorted({f"{item.name}{item.specifier}" for item in requirements})
        self._say(f"Downloading {', '.join(sorted({item.name for item in requirements}))}")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
        command += ["--disable-pip-version-check", "--constraint", str(self._constraints)]
        command += ["--dest", str(self._directory), *self._target.pip_options, *self._pip_options, *plain]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BundleError(f"pip could not download what the bundle needs:\n{done.stderr.strip()}")


def pins_of(lock: Path) -> list[Requirement]:
    """With hashes below them or without."""
    lines = lock.read_text().splitlines()
    return [Requirement(line.rstrip(" \\")) for line in lines if line and line[0] not in "#- "]


def check_hashes(wheels: Iterable[Path], hashes: Path) -> None:
    """Refuses a wheel whose bytes are not among those that the file names."""
    known = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", hashes.read_text()))
    strange = [wheel.name for wheel in wheels if hashlib.sha256(wheel.read_bytes()).hexdigest() not in known]
    if strange:
        raise BundleError(f"these are not the files that {hashes.name} lists: {', '.join(strange)}")


def _name(wheel: Path) -> str:
    return parse_wheel_filename(wheel.name)[0]


def files_of(wheel: Path) -> Iterator[tuple[PurePosixPath, zipfile.ZipInfo]]:
    """Each file with its place below site-packages; scripts and the like are left out."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = PurePosixPath(member.filename)
            if member.is_dir():
                continue
            if path.parts[0].endswith(".data"):
                if path.parts[1] not in ("purelib", "platlib"):
                    continue
                path = PurePosixPath(*path.parts[2:])
            yield path, member
