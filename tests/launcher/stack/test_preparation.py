"""What is written for Triton before it starts."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from launcher.console import StackConsole
from launcher.packaging.repository import read_parameters
from launcher.paths import PROJECT_ROOT
from launcher.settings import Settings, StackSettings
from launcher.stack.preparation import Preparation
from launcher.stack.runs import open_run
from tests.embeddings.checkpoints import embeddings_checkpoint
from tests.launcher.commands.release.materials import write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("embeddings", "precision"), [({}, ""), ({"inflight_precision": "int8", "threads": "3"}, "int8")]
)
def test_embeddings_follow_their_own_section_and_not_the_engines(
    data_dir: Path, tmp_path: Path, embeddings: dict[str, str], precision: str
) -> None:
    model, checkpoint = str(write_checkpoint(tmp_path / "tiny")), str(embeddings_checkpoint(data_dir))
    stack = StackSettings(data_dir=tmp_path, model=model, embeddings=checkpoint)
    console = Console(file=StringIO())
    settings = Settings(stack, engine={"inflight_precision": "int4"}, embeddings=embeddings)
    shown = StackConsole(console, console)
    preparation = Preparation(settings, PROJECT_ROOT, shown, engine_dir=tmp_path)
    with open_run(tmp_path) as run:
        prepared = preparation.prepare(run)
        told = read_parameters(run.directory / "model_repository" / "embeddings" / "config.pbtxt")
    assert (told["checkpoint_dir"], told["inflight_precision"]) == (checkpoint, precision)
    assert told["threads"] == embeddings.get("threads", "")
    assert prepared.embeddings_precision == precision
