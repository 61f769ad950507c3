"""What is wrong with a release's Triton models that Triton itself would only say after a long wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

if TYPE_CHECKING:
    from pathlib import Path

    from router.releases.manifest import Manifest

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
