"""Encoders in torch, as on a GPU, against the ONNX graph: here on a CPU, in fp32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from python_backend.embeddings.cuda.encoder import TorchEncoder
from python_backend.embeddings.description import read_description
from python_backend.embeddings.families import family_of
from python_backend.embeddings.model import EmbeddingModel, head_of
from python_backend.embeddings.word_pieces import Tokens
from python_backend.engine.checkpoint import Checkpoint
from tests.embeddings.test_families import FAMILIES, PAIRS, SENTENCES, write_model


def in_torch(directory: Path, like: EmbeddingModel, dtype: torch.dtype = torch.float32) -> EmbeddingModel:
    description, store = read_description(directory), Checkpoint(directory)
    family = family_of(store.config)
    read = family.reader(store)
    encoder = TorchEncoder(family.encoder(read), head_of(family, read, description), "cpu", dtype)
    return EmbeddingModel(encoder, description, like.word_pieces, 512)


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_and_scores_are_those_of_the_onnx_graph(tmp_path: Path, family: str) -> None:
    write_model(tmp_path, family, "ForSequenceClassification", num_labels=1)
    model = EmbeddingModel.load(tmp_path)
    rows: list[list[int] | Tokens] = [
        *model.word_pieces.encode(SENTENCES),
        *model.word_pieces.encode_pairs(PAIRS),
    ]
    assert np.abs(in_torch(tmp_path, model).embed(rows) - model.embed(rows)).max() < 1e-5


def test_rows_of_one_text_each_need_no_mask(checkpoint: Path, model: EmbeddingModel) -> None:
    ids = model.word_pieces.encode(["This is an example sentence", "Each sentence is converted"])
    alike = [ids[0], ids[0][::-1]]
    theirs = in_torch(checkpoint, model)
    assert np.abs(theirs.embed(alike) - model.embed(alike)).max() < 1e-5
    in_bf16 = in_torch(checkpoint, model, torch.bfloat16).embed(ids)
    assert (in_bf16 * model.embed(ids)).sum(1).min() > 0.999
