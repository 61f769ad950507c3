"""The built images answer together, started as docker-compose.yml says; `make images` builds them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.compose_file import compose
from deploy.images.exercise import exercise
from deploy.images.servers import STARTED_BY
from deploy.images.sources import LABEL, mark_of_sources
from tests.stack.tiny_models import write_tiny_model

OURS = ("router", "triton-cpu")


def why_not() -> str:
    if os.geteuid() or not shutil.which("podman"):
        return "containers are run by podman, as root"
    names = [f"localhost/{compose()['services'][name]['image']}" for name in OURS]
    for name in names:
        shown = ["podman", "image", "inspect", "--format", f'{{{{index .Labels "{LABEL}"}}}}', name]
        found = subprocess.run(shown, capture_output=True, text=True, check=False)
        if found.returncode:
            return f"{name} is not built here: make images"
        if found.stdout.strip() != mark_of_sources():
            return f"{name} was built from other sources: make images"
    servers = [image for image, _ in STARTED_BY.values()]
    if any(subprocess.run(["podman", "image", "exists", image], check=False).returncode for image in servers):
        return "PostgreSQL, Redis and Prometheus have no images here: make images ARGS=--serve"
    return ""


@pytest.mark.timeout(900)
def test_a_chat_is_answered_by_the_built_images_alone(default_checkpoint: Path, tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    write_tiny_model(tmp_path / "tiny", default_checkpoint)
    tmp_path.chmod(0o755)
    servers = {variable: image for variable, (image, _) in STARTED_BY.items()}
    assert exercise("tiny", tmp_path / "tiny", servers, whole=False)["answered"]
