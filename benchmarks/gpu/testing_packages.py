"""`python -m benchmarks.gpu.testing_packages OUT.tar.xz`: what pytest needs on a host without a registry.

Packages for x86_64 Linux, to be put on the PYTHONPATH of the host's own Python or of a bundle's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from deploy.bundle.archive import Member, write_archive
from deploy.bundle.contents import read_member
from deploy.bundle.wheels import Target, Wheelhouse, files_of

ROOT = Path(__file__).parents[2]
RUNNERS = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis")
# Of the engine what a host with torch and transformers may lack; of the stack's tests what a bundle lacks.
IMPORTED = ("gguf", "httpx", "llguidance", "msgspec", "openai", "psutil", "pyyaml")
# numpy must fit to what is there: transformers wants 2, Triton's stub 1. gguf uses requests for downloads.
NOT_PACKED = frozenset({"numpy", "requests", "charset-normalizer", "urllib3"})


def wheels(python: str, directory: Path) -> list[Path]:
    wheelhouse = Wheelhouse(Target(python), ROOT / "requirements.lock", directory)
    found = wheelhouse.gather(Requirement(name) for name in (*RUNNERS, *IMPORTED))
    return [wheel for wheel in found if parse_wheel_filename(wheel.name)[0] not in NOT_PACKED]


def members(wheels: Iterable[Path]) -> dict[PurePosixPath, Member]:
    found = {}
    for wheel in wheels:
        for path, info in files_of(wheel):
            if path.suffix != ".pyi":
                found[path] = Member(partial(read_member, wheel, info.filename))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.testing_packages", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--python-version", default="3.12")
    asked = parser.parse_args()
    with TemporaryDirectory() as folder:
        packed = wheels(asked.python_version, Path(folder))
        write_archive(asked.out, members(packed))
    print(f"{asked.out}: {asked.out.stat().st_size / 1e6:.1f} MB, {len(packed)} packages")


if __name__ == "__main__":
    main()
