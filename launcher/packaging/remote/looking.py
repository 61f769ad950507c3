"""Asks a place for what it has, in a process with limits on memory and time.

Whoever answers at an address may send a list without an end, or a byte a minute, and the libraries that read
lists keep all of them in memory. Here only this process ends, and the caller is told why.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from launcher.packaging.remote.address import Address
from launcher.packaging.remote.source import Listing, SourceError, Unreachable

if TYPE_CHECKING:
    from launcher.packaging.remote.source import Source

LOOK_S = 120.0
MEMORY_BYTES = 1 << 30
MOST_FILES = 10_000
_TOO_LARGE = 3
_ROOT = Path(__file__).parents[3]


def look_at(address: Address, limit_s: float = LOOK_S, memory_bytes: int = MEMORY_BYTES) -> Listing:
    """The files that are there now; raises SourceError, or Unreachable where nobody answers."""
    where = address.without_pin.rstrip("/")
    order = json.dumps([memory_bytes, asdict(address)])  # not on the command line: a query may be a secret
    with subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=_ROOT,
        text=True,
    ) as child:
        try:
            told, complaint = child.communicate(order, timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{where} has not listed its files within {limit_s:g} s") from None
        finally:
            child.kill()
    if child.returncode == 0:
        return _listing(json.loads(told))
    if child.returncode < 0 or child.returncode == _TOO_LARGE:
        most = f"{memory_bytes >> 20} MiB of memory"
        raise SourceError(f"{where}: the list of its files takes more than {most}: it was not read")
    raise Unreachable(f"{where} cannot be read: {(complaint.strip().splitlines() or ['no reason'])[-1]}")


def open_source(address: Address) -> Source:
    if address.scheme == "hf":
        from launcher.packaging.remote.hub import HubRepository

        return HubRepository(address)
    if address.scheme == "oci":
        from launcher.packaging.remote.registry import Registry

        return Registry(address)
    if address.scheme in ("s3", "gs"):
        from launcher.packaging.remote.object_store import Bucket

        return Bucket(address)
    from launcher.packaging.remote.web import WebPlace

    return WebPlace(address)


def _listing(told: dict[str, object]) -> Listing:
    if "listing" in told:
        return msgspec.convert(told["listing"], Listing)
    raise (Unreachable if told["is_unreachable"] else SourceError)(str(told["error"]))


def main() -> int:
    from contextlib import closing

    from launcher.packaging.remote.address import Address

    memory_bytes, address = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with closing(open_source(Address(**address))) as source:
            listing = source.look()
        if len(listing.files) > MOST_FILES:
            raise SourceError(f"it lists {len(listing.files):,} files; allowed: at most {MOST_FILES:,}")
        answer: dict[str, object] = {"listing": listing}
    except MemoryError:
        return _TOO_LARGE
    except SourceError as error:
        if _is_of_memory(error):
            return _TOO_LARGE
        answer = {"error": str(error), "is_unreachable": isinstance(error, Unreachable)}
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return 0


def _is_of_memory(error: BaseException | None) -> bool:
    """Libraries report it as their own."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


if __name__ == "__main__":
    sys.exit(main())
