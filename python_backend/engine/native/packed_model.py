"""Packed weights on disk: found by what they were made from, made where they are missing."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from python_backend.engine.native.microkernel import Format
from python_backend.engine.native.weights import Progress, expected_bytes, map_packed, write_packed
from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from python_backend.engine.models.decoder import DecoderShape, DecoderWeights
    from python_backend.engine.native.tables import Arrays

_log = logging.getLogger(__name__)

# Raised whenever the same checkpoint would be packed into something else.
_LAYOUT = 4
# Engines that pack share a lock on it. The kernel drops it however an engine ends.
_PACKING = ".packing"
# Beside the matrices: norms, biases, and what files take to be there.
_SPARE_BYTES = 1_000_000
# What `inflight perplexity` packs for itself lies in folders of this name. It runs no longer than this.
PASSING_PREFIX = ".perplexity-"
_PASSED_AFTER_S = 24 * 3600
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
        packed_cache.mkdir(parents=True, exist_ok=True)
        remove_abandoned(packed_cache)
        require_room(weights.shape, precision, packed_cache)
        _log.info("packing the weights of %s as %s", checkpoint, precision)
        try:
            with _packing(packed_cache):
                write_packed(weights, FORMATS[precision], directory, progress)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _no_room(weights.shape, precision, packed_cache) from error
            raise
        for older in packed_cache.glob(f"{_family(checkpoint, precision)}*"):
            if older != directory:
                shutil.rmtree(older, ignore_errors=True)
    return map_packed(directory, weights.shape, FORMATS[precision])


def require_room(shape: DecoderShape, precision: str, packed_cache: Path) -> None:
    """Refuses before the work what would fail at its end."""
    packed_cache.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(packed_cache).free < _needed_bytes(shape, precision):
        raise _no_room(shape, precision, packed_cache)


def _needed_bytes(shape: DecoderShape, precision: str) -> int:
    return expected_bytes(shape, FORMATS[precision]) + _SPARE_BYTES


def _no_room(shape: DecoderShape, precision: str, packed_cache: Path) -> InflightError:
    free_bytes = shutil.disk_usage(packed_cache).free
    return InflightError(
        ErrorKind.ENGINE_FAILED,
        f"{packed_cache} has {free_bytes / 1e6:,.0f} MB free; packing the weights as {precision} needs at "
        f"least {_needed_bytes(shape, precision) / 1e6:,.0f} MB (choose another directory with "
        "inflight_packed_cache_dir)",
        "inflight_packed_cache_dir",
    )


@contextmanager
def _packing(packed_cache: Path) -> Iterator[None]:
    """Meanwhile nobody removes what is half packed."""
    with (packed_cache / _PACKING).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def remove_abandoned(packed_cache: Path) -> None:
    """Drops what killed engines left half packed; nothing while any engine packs."""
    with (packed_cache / _PACKING).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        for partial in packed_cache.glob(".*"):
            kept_s = _PASSED_AFTER_S if partial.name.startswith(PASSING_PREFIX) else 0
            if partial.is_dir() and time.time() - partial.stat().st_mtime >= kept_s:
                shutil.rmtree(partial, ignore_errors=True)
