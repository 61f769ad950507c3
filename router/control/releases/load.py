"""Loads a release on Triton servers, if it fits there."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from python_backend.host.gpu_memory import free_gpu_bytes
from router.control.releases.memory_fit import FreeMemory
from router.triton.control import ControlError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.control.releases.ports import Server
    from router.core.manifest import Manifest

log = logging.getLogger(__name__)

_NO_SECRET = "this router has neither a secret nor a certificate for Triton: it cannot load models"


class LoadFailed(Exception):
    """The release cannot be loaded; the message may be Triton's own and name paths."""


class ServerLost(Exception):
    """No server was left to load it on, through no known fault of the release."""


async def load(manifest: Manifest, servers: Sequence[Server]) -> tuple[list[Server], list[Server]]:
    """Those that have it now, and the others; raises where none has.

    Several at once: a server that is slow or broken does not keep the others from it.
    """
    said = await asyncio.gather(*(_load_on(server, manifest) for server in servers))
    answers = list(zip(servers, said, strict=True))
    loaded = [server for server, failure in answers if failure is None]
    if not loaded and not any(said):
        raise ServerLost("Triton became unreachable while loading it")
    if not loaded:
        raise LoadFailed(next(failure for failure in said if failure))
    return loaded, [server for server, failure in answers if failure is not None]


async def _load_on(server: Server, manifest: Manifest) -> str | None:
    """None when it is there, else why not; an empty text where the server is gone."""
    if manifest.base:
        return None  # its base's engine reads it when it is first asked
    if not server.control.can_control:
        return _NO_SECRET
    try:
        await server.control.load(manifest.entry)
    except ControlError as error:
        log.warning("%s cannot be loaded on %s: %s", manifest.name, server.name, error)
        return (str(error) or "Triton gave no reason") if await server.control.is_alive() else ""
    return None


def free_memory() -> FreeMemory:
    """Of this machine; asks the driver of its GPUs, so not for the event loop."""
    return FreeMemory(available_memory_bytes(), free_gpu_bytes())


def available_memory_bytes() -> int | None:
    """None where nobody can tell."""
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.virtual_memory().available)
