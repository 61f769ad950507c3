"""Programs of Debian packages that tests run beside ours: found, installed, or unpacked below the cache.

Nothing that is installed for a test may serve anybody: services are not started by it.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# Debian keeps servers out of the PATH of users.
_BESIDE_PATH = ("/usr/sbin", "/sbin", "/usr/local/sbin")
_POLICY = Path("/usr/sbin/policy-rc.d")
# Where it is not there, the index of all manuals is not written again.
_INDEX_OF_MANUALS = Path("/var/lib/man-db/auto-update")
_FETCHING_TIMEOUT_S = 300
_APT = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0")
# Root may drop to a user that cannot read below /root: what is there is worth no message.
_AS_THIS_USER = ("-o", "APT::Sandbox::User=root")


class Unobtainable(Exception):
    """The package cannot be had here: the message says what apt-get said."""


@cache
def debian_program(package: str, program: str) -> Path:
    """Where this program of this package is; skips the test where it cannot be had, and fails it in CI."""
    try:
        return find(program) or _fetched(package, program)
    except (Unobtainable, OSError, subprocess.TimeoutExpired) as error:
        give_up(f"{program} of the Debian package {package} is not on this machine: {error}")


def debian_packages(*packages: str) -> None:
    """Installs those that are missing; skips the test where they cannot be had, and fails it in CI."""
    try:
        with _alone():
            shown = ("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}\n", *packages)
            known = subprocess.run(shown, capture_output=True, text=True, check=False).stdout.splitlines()
            if missing := [each for each in packages if f"installed {each}" not in known]:
                install(*missing)
    except (Unobtainable, OSError, subprocess.TimeoutExpired) as error:
        give_up(f"these Debian packages are not on this machine: {', '.join(packages)}: {error}")


def give_up(reason: str) -> NoReturn:
    """A test that cannot be run here is skipped; in CI nobody would notice that."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def find(program: str) -> Path | None:
    found = shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", ""), *_BESIDE_PATH)))
    return None if found is None else Path(found)


def _fetched(package: str, program: str) -> Path:
    if shutil.which("apt-get") is None:
        raise Unobtainable("there is no apt-get")
    is_root = os.geteuid() == 0
    with _alone():
        # Another process may have had the same wish a moment ago.
        if found := find(program):
            return found
        if not is_root:
            return unpack(package, program, cache_dir())
        install(package)
    found = find(program)
    if found is None:
        raise Unobtainable("the package is installed and has no such program")
    return found


def install(*packages: str) -> None:
    """For root. The lists of packages may be missing or old: then they are fetched, once."""
    command = (*_APT, "install", "-y", "--no-install-recommends", *packages)
    with _no_services(), _manuals_as_they_are():
        try:
            _run(command)
        except Unobtainable:
            _run((*_APT, "update"))
            _run(command)


def unpack(package: str, program: str, into: Path) -> Path:
    """For anybody: what is missing here of the package and all that it needs, and a script that finds it."""
    root, archives, script = into / package, into / "archives", into / "bin" / program
    if script.exists():
        return script
    shutil.rmtree(archives, ignore_errors=True)
    (archives / "partial").mkdir(parents=True)
    places = ("-o", f"Dir::Cache::archives={archives}", "-o", "Debug::NoLocking=1", *_AS_THIS_USER)
    _run((*_APT, *places, "install", "-y", "--download-only", "--no-install-recommends", package))
    for archive in sorted(archives.glob("*.deb")):
        _run(("dpkg", "-x", str(archive), str(root)))
    shutil.rmtree(archives)
    found = next((path for path in root.rglob(program) if path.parent.name in ("bin", "sbin")), None)
    if found is None:
        raise Unobtainable("the package has no such program")
    libraries = sorted({str(path.parent) for path in root.rglob("*.so.*")})
    script.parent.mkdir(parents=True, exist_ok=True)
    lines = ("#!/bin/sh", f"export LD_LIBRARY_PATH={shlex.quote(':'.join(libraries))}", "")
    script.write_text("\n".join(lines) + f'exec {shlex.quote(str(found))} "$@"\n')
    script.chmod(0o755)
    return script


def cache_dir(kind: str = "debian") -> Path:
    below = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(below) / "inflight" / kind


def _run(command: tuple[str, ...]) -> None:
    # Run level 1 is the one in which no service is started.
    surroundings = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command,
        env=surroundings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_FETCHING_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise Unobtainable(f"{shlex.join(command)}: {done.stdout.strip()[-600:]}")


@contextmanager
def _alone() -> Iterator[None]:
    """Two workers may ask at once, and apt-get lets only one of them."""
    place = Path(tempfile.gettempdir()) / f"inflight-debian-{os.geteuid()}.lock"
    with place.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _no_services() -> Iterator[None]:
    """Scripts of packages ask this file whether they may start what they brought: 101 is no."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)


@contextmanager
def _manuals_as_they_are() -> Iterator[None]:
    is_written = _INDEX_OF_MANUALS.exists()
    _INDEX_OF_MANUALS.unlink(missing_ok=True)
    try:
        yield
    finally:
        if is_written:
            _INDEX_OF_MANUALS.touch()
