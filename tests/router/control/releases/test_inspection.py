"""What is wrong with a release's Triton models, found before Triton is asked to load them."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.control.releases.inspection import missing_program
from router.core.manifest import Kind, Manifest

MODEL = Manifest("m", 3, Kind.TENSORS, ("m.3",))


@pytest.mark.parametrize(
    ("config", "files", "fault"),
    [
        ('backend: "python"', ["model.py"], None),
        ('backend: "python"', [], "m.3/3/model.py is missing"),
        ('backend: "python" default_model_filename: "mine.py"', ["model.py"], "m.3/3/mine.py is missing"),
        ('backend: "tensorrtllm"', [], None),
        ("backend: [ what?", [], None),
        (None, [], None),
    ],
)
def test_a_python_model_needs_its_program(
    config: str | None, files: list[str], fault: str | None, tmp_path: Path
) -> None:
    folder = tmp_path / "repository" / "m.3"
    (folder / "3").mkdir(parents=True)
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    for name in files:
        (folder / "3" / name).write_text("")
    assert missing_program(MODEL, tmp_path) == fault
