"""Runtimes with a Python of their own: made in the data directory, or taken as they are elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.failure import ProcessFailed, Unusable
from launcher.packaging.models.checkpoint import exclusive
from launcher.packaging.runtimes.builds import PACKAGES, Build
from python_backend.wire.runtime_environments import (
    FILE,
    OLDEST,
    RuntimeEnvironment,
    environment_from,
    version_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.console import StackConsole

LAST_LINES = 12
NEEDED_DISK_BYTES = {"cpu": 5_000_000_000, "cuda": 15_000_000_000}
NEEDED_BESIDE_TORCH_BYTES = 5_000_000_000
# The engine process needs these beside the runtime's package, which has them as its own dependencies.
NEEDED = ("msgspec", "numpy")
_PROBE = """
import importlib.metadata as metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps({"python": sys.executable, "versions": found}))
"""


def noted_environments(runtimes: Path) -> dict[str, RuntimeEnvironment]:
    """By the names of the runtimes; a note that cannot be read is an error."""
    found = {}
    for note in sorted(runtimes.glob(f"*/{FILE}")):
        try:
            found[note.parent.name] = environment_from(note.read_text(encoding="utf-8"))
        except ValueError as error:
            raise Unusable(f"{note} cannot be read: {error}") from error
    return found


def install(build: Build, runtimes: Path, offline: Path | None, console: StackConsole) -> RuntimeEnvironment:
    """One after the other, if several ask for it at once; nothing is done where it is there already."""
    place = runtimes / build.runtime
    place.mkdir(parents=True, exist_ok=True)
    if offline is not None and not offline.is_dir():
        raise Unusable(f"--offline {offline}: there is no such folder")
    with exclusive(place / ".lock", console):
        there = noted_environments(runtimes).get(build.runtime)
        if there is not None and there.version_text == build.version and Path(there.python).exists():
            return there
        folder = place / f"env-{build.package}-{build.version}"
        require_disk(place, NEEDED_BESIDE_TORCH_BYTES if build.wheels else NEEDED_DISK_BYTES[build.device])
        shutil.rmtree(folder, ignore_errors=True)
        try:
            with console.stage(f"Installing {build.requirement} into {folder}"):
                if build.wheels:
                    make_beside_hosts_torch(folder, build.wheels)
                else:
                    make_environment(folder, build, offline)
            return note_environment(build.runtime, folder / "bin" / "python", runtimes)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def require_disk(place: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(place).free
    if free_bytes < needed_bytes:
        raise Unusable(
            f"{place} has {free_bytes // 10**9} GB free; the environment needs {needed_bytes // 10**9} GB "
            "(choose another place with --data-dir)"
        )


def make_environment(folder: Path, build: Build, offline: Path | None) -> None:
    run([sys.executable, "-m", "venv", str(folder)], {})
    python = str(folder / "bin" / "python")
    sources = ["--no-index", "--find-links", str(offline)] if offline else []
    wanted = [build.requirement, *([f"torch=={build.torch}"] if build.device == "cpu" else [])]
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    commands = [[*pip, "install", "--quiet", *sources, *wanted]]
    if (uv := find_uv()) is not None:
        # A fifth of pip's time; pip follows where uv, which does not read pip's settings, finds nothing.
        links = os.environ.get("PIP_FIND_LINKS")
        places = sources or (["--find-links", links] if links else [])
        quick = [uv, "pip", "install", "--quiet", "--python", python]
        commands.insert(0, [*quick, *places, *wanted])
    try_each(commands, build)
    if build.unused:
        run([*pip, "uninstall", "--quiet", "--yes", *build.unused], {})


def make_beside_hosts_torch(folder: Path, wheels: Path) -> None:
    """All that is in the folder, by the pip that is there: the host's Python need not have one."""
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)], {})
    python, (pip,) = str(folder / "bin" / "python"), wheels.glob("pip-*.whl")
    install = [python, str(pip / "pip"), "install", "--quiet", "--no-index", "--no-deps"]
    run([*install, *map(str, sorted(wheels.glob("*.whl")))], {"PIP_CONFIG_FILE": os.devnull})
    # Behind its own packages, which may be other versions than the host's.
    (packages,) = folder.glob("lib/python3*/site-packages")
    found = (find_spec(name) for name in ("torch", "triton"))
    host = sorted({str(Path(spec.origin).parents[1]) for spec in found if spec and spec.origin})
    (packages / "hosts-torch.pth").write_text("\n".join([*host, ""]), encoding="utf-8")


def try_each(commands: list[list[str]], build: Build) -> None:
    for number, command in enumerate(commands, 1):
        try:
            run(command, {})
            return
        except ProcessFailed as error:
            if number == len(commands):
                hint = f"it needs torch {build.torch}, which not every package index has"
                raise ProcessFailed(
                    f"{build.requirement} could not be installed; {hint}", error.lines
                ) from error


def find_uv() -> str | None:
    beside = Path(sys.executable).parent / "uv"
    return str(beside) if beside.is_file() else shutil.which("uv")


def run(command: list[str], more: Mapping[str, str]) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**environment, **more}, errors="replace"
    )
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise ProcessFailed(f"{command[0]} ended with exit code {done.returncode}", lines[-LAST_LINES:])
    return done.stdout


def note_environment(runtime: str, python: Path, runtimes: Path) -> RuntimeEnvironment:
    """Looks into the Python, refuses one that will not do, and notes it for the engine."""
    found = probe(runtime, python)
    place = runtimes / runtime
    place.mkdir(parents=True, exist_ok=True)
    draft = place / f".{FILE}"
    draft.write_text(found.to_text(), encoding="utf-8")
    draft.replace(place / FILE)
    return found


def probe(runtime: str, python: Path) -> RuntimeEnvironment:
    packages = PACKAGES.get(runtime)
    if packages is None:
        raise Unusable(
            f"{runtime!r} is not a runtime with a Python of its own; allowed: {', '.join(PACKAGES)}"
        )
    try:
        told = json.loads(run([str(python), "-c", _PROBE, *packages, *NEEDED, "torch"], {}))
    except (OSError, ValueError, ProcessFailed) as error:
        raise Unusable(f"{python} is not a working Python: {error}") from error
    versions: dict[str, str] = told["versions"]
    package = next((name for name in packages if name in versions), None)
    if package is None:
        raise Unusable(f"{python} has no {' or '.join(packages)}")
    if missing := [name for name in NEEDED if name not in versions]:
        raise Unusable(
            f"{python} has no {' and no '.join(missing)}, which the engine process needs beside it"
        )
    oldest, version = OLDEST[runtime], versions[package]
    if version_of(version) < oldest:
        raise Unusable(f"{package} is {version}; {'.'.join(map(str, oldest))} or newer is needed")
    device = "cpu" if package.endswith("-cpu") or "+cpu" in version else "cuda"
    # As it was named: what `sys.executable` leads to may be the Python that the environment was made of.
    return RuntimeEnvironment(os.path.abspath(python), package, version, device, versions.get("torch", ""))


def remove(runtime: str, runtimes: Path) -> None:
    """The note, and the environment if it was made here."""
    place = runtimes / runtime
    if not (place / FILE).is_file():
        raise Unusable(f"{runtime} is not installed in {runtimes}")
    (place / FILE).unlink()
    for folder in place.glob("env-*"):
        shutil.rmtree(folder)


def machine_device(devices: Path = Path("/dev")) -> str:
    return "cuda" if any(devices.glob("nvidia[0-9]*")) else "cpu"
