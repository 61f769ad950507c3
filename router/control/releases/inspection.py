"""What is wrong with a release's Triton models that Triton itself would only say after a long wait."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from google.protobuf import text_format

from router.triton.protocol import model_config_pb2

if TYPE_CHECKING:
    from pathlib import Path

    from router.core.manifest import Manifest

_PROGRAM = "model.py"


def missing_program(manifest: Manifest, releases_dir: Path) -> str | None:
    """In a sentence without paths; reads files, so not for the event loop.

    The process of a Python model that has no program ends before it has told Triton anything, and Triton
    waits for it as patiently as for one that loads large weights.
    """
    if manifest.is_built_in:
        return None
    for member in manifest.members:
        config = model_config_pb2.ModelConfig()
        folder = releases_dir / "repository" / member
        try:
            text_format.Parse((folder / "config.pbtxt").read_text(encoding="utf-8"), config)
        except (OSError, UnicodeDecodeError, text_format.ParseError):
            continue  # Triton says so at once, and knows better which configs it can read
        program = folder / str(manifest.version) / (config.default_model_filename or _PROGRAM)
        if config.backend == "python" and not program.is_file():
            return f"{member}/{manifest.version}/{program.name} is missing"
    return None


_IN_NAME = r"[^\s/'\"`,;:()<>\[\]{}]"
_PATH = re.compile(rf"(?<![\w.])(?:file:)?/(?:{_IN_NAME}*/)*({_IN_NAME}*)")
_REGION = re.compile(r"/?\btriton_python_backend_shm_region_\w*")
_SPACE = re.compile(r"\s+")
# How Triton begins when a model cannot be loaded, or one that it is made of.
_PREAMBLE = re.compile(
    r"load failed for model '(?P<model>[^']*)': "
    r"(?:ensemble '[^']*' depends on '(?P<member>[^']*)' which has no loaded version\. "
    r"Model '[^']*' loading failed with error: )?"
    r"version \d+ is at UNAVAILABLE state: (?:Internal: |Invalid argument: )?"
)
_MOST_CHARACTERS = 400


def scrub(text: str) -> str:
    """One line; of each path the last name, which says what it is about and not where it is."""
    short = _SPACE.sub(" ", text[: 16 * _MOST_CHARACTERS]).strip()
    short = _PREAMBLE.sub(lambda found: f"{found['member'] or found['model']}: ", short)
    short = _REGION.sub("a region of shared memory", short)
    short = _PATH.sub(lambda found: found[1] or "a path", short)
    return short if len(short) <= _MOST_CHARACTERS else f"{short[: _MOST_CHARACTERS - 1]}…"
