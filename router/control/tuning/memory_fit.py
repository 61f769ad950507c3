"""Whether a second copy of a Triton model fits beside the first while it is loaded anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.control.releases.load import available_memory_bytes
from router.core.address import is_on_this_machine

if TYPE_CHECKING:
    from router.control.tuning.delay_change import Batched
    from router.core.manifest import Manifest

_STUB_NAME = "triton_python_backend_stub"
_MIB = 1 << 20
# What is loaded again grows as the first did; the machine keeps some for all else.
_MARGIN = 1.2
_SPARE_BYTES = 256 * _MIB
# Of the memory of another machine nothing is known: a copy as small as this fits anywhere.
_SMALL_BYTES = 256 * _MIB


def misfit(manifest: Manifest, member: str, batched: Batched, url: str) -> str | None:
    """Why it does not, or nobody can say that it does; looks at processes, so not for the event loop."""
    if batched.is_on_gpu:
        return "its instances are on a GPU, whose memory may not fit a second copy"
    is_here = is_on_this_machine(url)
    running_bytes = resident_bytes(member) if is_here else None
    needed_bytes = copy_bytes(manifest, member, batched.instances, running_bytes)
    if needed_bytes is None:
        return "the memory that a second copy needs is unknown"
    return judge(needed_bytes, available_memory_bytes() if is_here else None)


def copy_bytes(manifest: Manifest, member: str, instances: int, running_bytes: int | None) -> int | None:
    """By what its processes take, or else by its files: read, they take as much again."""
    if running_bytes is not None:
        return running_bytes * instances
    files_bytes = sum(each.bytes for each in manifest.files if each.path.startswith(f"{member}/"))
    if len(manifest.members) == 1:
        files_bytes = max(files_bytes, manifest.needs.total_bytes)
    return 2 * files_bytes * instances or None


def judge(needed_bytes: int, available_bytes: int | None) -> str | None:
    if available_bytes is None:
        if needed_bytes <= _SMALL_BYTES:
            return None
        return f"a second copy needs {_mib(needed_bytes)}; the free memory of its machine is unknown"
    if needed_bytes * _MARGIN + _SPARE_BYTES <= available_bytes:
        return None
    return f"a second copy needs {_mib(needed_bytes)}; {_mib(available_bytes)} are free"


def resident_bytes(member: str) -> int | None:
    """What the largest process of this model takes on this machine; None where there is none to be seen."""
    try:
        import psutil
    except ImportError:
        return None
    largest: int | None = None
    for process in psutil.process_iter(["name", "cmdline", "memory_info"]):
        name, command = process.info["name"] or "", process.info["cmdline"] or []
        if not (name and _STUB_NAME.startswith(name)) or model_of(command) != member:
            continue
        memory = process.info["memory_info"]
        largest = max(largest or 0, memory.rss if memory is not None else 0)
    return largest or None


def model_of(command: list[str]) -> str:
    """A stub is told to run REPOSITORY/MODEL/VERSION/model.py."""
    parts = command[1].split("/") if len(command) > 1 else []
    return parts[-3] if len(parts) >= 3 else ""


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:,.0f} MiB"
