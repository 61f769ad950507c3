"""Ids that a caller brings along."""

from __future__ import annotations

import pytest

from python_backend.embeddings.model import EmbeddingModel
from python_backend.wire.errors import ErrorKind, InflightError

TEXT = "Token ids instead of a text"


def test_ids_are_the_same_with_and_without_their_special_tokens(model: EmbeddingModel) -> None:
    (ids,) = model.word_pieces.encode([TEXT])
    assert model.word_pieces.frame(ids) == ids
    assert model.word_pieces.frame(ids[1:-1]) == ids


def test_too_many_ids_are_truncated_as_a_text_is(model: EmbeddingModel) -> None:
    (ids,) = model.word_pieces.encode(["word " * 1000])
    assert len(ids) == model.word_pieces.max_tokens == 256
    assert model.word_pieces.frame([ids[1]] * 1000) == ids


@pytest.mark.parametrize("stranger", [-1, 30522, 100_257])
def test_ids_of_another_tokenizer_are_refused(model: EmbeddingModel, stranger: int) -> None:
    with pytest.raises(InflightError, match=f"token id {stranger} .* allowed: 0 to 30521") as caught:
        model.word_pieces.frame([5, stranger])
    assert caught.value.kind is ErrorKind.INVALID_REQUEST
