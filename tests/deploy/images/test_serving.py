"""Images are built from this checkout and answer together, started as docker-compose.yml says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from deploy.compose_file import compose
from deploy.images import containers, servers
from deploy.images.base import LIBRARIES, make_stand_in
from deploy.images.buildah import Buildah
from deploy.images.exercise import exercise
from deploy.images.podman import ulimits
from tests.debian import debian_packages
from tests.stack.tiny_models import write_tiny_model

OURS = ("router", "triton-cpu", "locust")


@pytest.fixture
def buildah() -> Buildah:
    if os.geteuid():
        pytest.skip("images are built by buildah and run by podman, as root")
    debian_packages("buildah", *LIBRARIES, *containers.PACKAGES, *servers.PACKAGES)
    return Buildah()


@pytest.fixture
def stand_ins(buildah: Buildah) -> dict[str, str]:
    """For the servers of others; skips the test where podman can run none, with what it says."""
    made = servers.make_servers(buildah)
    options = ("--rm", "--network=podman", f"--volume={servers.PROGRAMS}", *ulimits({}))
    command = ["podman", *containers.HERE, "run", *options, servers.IMAGE, "true"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"podman runs no container here: {tried.stderr.strip()[-600:]}")
    return made


@pytest.mark.timeout(900)
def test_a_chat_is_answered_by_images_built_from_this_checkout(
    buildah: Buildah, stand_ins: dict[str, str], default_checkpoint: Path, tmp_path: Path
) -> None:
    base = make_stand_in(buildah, None)
    for name in OURS:
        buildah.build(compose()["services"][name], {"PYTHON_IMAGE": base})
    write_tiny_model(tmp_path / "tiny", default_checkpoint)
    assert exercise("tiny", tmp_path / "tiny", stand_ins, whole=False)["answered"]
