"""The embedding model's checkpoint for tests: fetched into the data directory of tests if it is not there."""

from __future__ import annotations

from pathlib import Path

from launcher.packaging.models.embeddings import ALL_MINILM, resolve_embeddings
from python_backend.embeddings.model import EmbeddingModel
from tests.conftest import Unwatched


def embeddings_checkpoint(data_dir: Path) -> Path:
    return resolve_embeddings(ALL_MINILM.name, data_dir, Unwatched()).directory


def embed(model: EmbeddingModel, *texts: str) -> list[list[float]]:
    vectors: list[list[float]] = model.embed(model.word_pieces.encode(texts)).tolist()
    return vectors
