"""The model that `inflight up` serves by default, fetched if it is not there yet."""

from __future__ import annotations

from rich.console import Console

from launcher.console import StackConsole
from launcher.packaging.models.checkpoint import resolve_checkpoint
from launcher.settings import StackSettings


def default_model_path(console: Console) -> str:
    settings = StackSettings()
    return str(resolve_checkpoint(settings.model, settings.data_dir, StackConsole(console)).model_path)
