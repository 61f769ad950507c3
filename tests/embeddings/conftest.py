"""The real embedding model, loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from python_backend.embeddings.model import EmbeddingModel
from tests.embeddings.checkpoints import embeddings_checkpoint


@pytest.fixture(scope="session")
def checkpoint(data_dir: Path) -> Path:
    return embeddings_checkpoint(data_dir)


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> EmbeddingModel:
    return EmbeddingModel.load(checkpoint, threads=2)
