"""Which of several Triton servers compute prompts for the others, and where these find what they computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from python_backend.wire.pools import DECODE, OF_SERVER, PREFILL

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "kv"


def share_of_pools(number: int, prefill: int, directory: Path) -> dict[str, str]:
    """What to add to the environment of a server: the first, as many as `prefill` says, are for prompts.

    Nothing where all do the same.
    """
    if not prefill:
        return {}
    folder = directory / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    pool = PREFILL if number < prefill else DECODE
    return {OF_SERVER["inflight_pool"]: pool, OF_SERVER["inflight_kv_folder"]: str(folder)}
