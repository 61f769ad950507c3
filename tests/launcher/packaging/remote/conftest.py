"""Real servers of each protocol, with one small model on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fakes.file_server import FileServer, file_server
from tests.launcher.commands.release.materials import write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

_OF_USERS = ("HF_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "DOCKER_CONFIG")


@pytest.fixture(autouse=True)
def nobodys_credentials(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_HOME", str(home / "hf"))
    for name in _OF_USERS:
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "there" / "Tiny-Llama")


@pytest.fixture
def web(checkpoint: Path) -> Iterator[FileServer]:
    with file_server(checkpoint) as files:
        yield files
