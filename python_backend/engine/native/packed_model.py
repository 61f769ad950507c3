"""Packed weights on disk: found by what they were made from, made where they are missing."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from python_backend.engine.native.microkernel import Format
from python_backend.engine.native.weights import Progress, map_packed, write_packed

if TYPE_CHECKING:
    from python_backend.engine.models.decoder import DecoderWeights
    from python_backend.engine.native.tables import Arrays

_log = logging.getLogger(__name__)

# Raised whenever the same checkpoint would be packed into something else.
_LAYOUT = 3
# A living engine that packs for longer than this is hard to imagine.
_ABANDONED_AFTER_S = 24 * 3600
FORMATS = {"fp32": Format.FP32, "int8": Format.INT8, "int4": Format.INT4}


def packed_dir(checkpoint: Path, precision: str, packed_cache: Path) -> Path:
    """Named by the checkpoint's place, the precision, and everything the content depends on."""
    files = sorted(checkpoint.iterdir()) if checkpoint.is_dir() else [checkpoint]
    content = [
        (path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for path in files
        if path.suffix in (".safetensors", ".gguf", ".json") and path.is_file()
    ]
    described = hashlib.sha256(json.dumps([_LAYOUT, content]).encode()).hexdigest()[:16]
    return packed_cache / f"{_family(checkpoint, precision)}{described}"


def _family(checkpoint: Path, precision: str) -> str:
    place = hashlib.sha256(str(checkpoint.resolve()).encode()).hexdigest()[:12]
    return f"{place}-{precision}-"


def load_packed(
    weights: DecoderWeights,
    checkpoint: Path,
    precision: str,
    packed_cache: Path,
    progress: Progress | None = None,
) -> Arrays:
    """Maps the packed weights; packs them first if they are not there, and drops those they replace."""
    directory = packed_dir(checkpoint, precision, packed_cache)
    if not directory.is_dir():
        remove_abandoned(packed_cache)
        _log.info("packing the weights of %s as %s", checkpoint, precision)
        write_packed(weights, FORMATS[precision], directory, progress)
        for older in packed_cache.glob(f"{_family(checkpoint, precision)}*"):
            if older != directory:
                shutil.rmtree(older, ignore_errors=True)
    return map_packed(directory, weights.shape, FORMATS[precision])


def remove_abandoned(packed_cache: Path) -> None:
    """Drops what killed engines left half packed."""
    for partial in packed_cache.glob(".*"):
        if partial.is_dir() and time.time() - partial.stat().st_mtime > _ABANDONED_AFTER_S:
            shutil.rmtree(partial, ignore_errors=True)
