"""The `embeddings` model on a stand-in stub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backend.embeddings.layers import Floats
from python_backend.embeddings.model import EmbeddingModel
from python_backend.triton_adapter.embeddings import TritonPythonModel
from python_backend.wire.errors import InflightError
from tests.embeddings.checkpoints import embeddings_checkpoint
from tests.fakes.triton_stub import Request, Sender, arguments


@pytest.fixture(scope="module")
def checkpoint(data_dir: Path) -> Path:
    return embeddings_checkpoint(data_dir)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> TritonPythonModel:
    loaded = TritonPythonModel()
    loaded.initialize(arguments("embeddings", {"checkpoint_dir": str(checkpoint), "threads": ""}))
    return loaded


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> EmbeddingModel:
    return EmbeddingModel.load(checkpoint)


def texts(*values: str | bytes, **more: Any) -> Request:
    return Request({"TEXT": np.array([[value] for value in values], np.object_), **numbers(more)})


def ids(*rows: Sequence[int], **more: Any) -> Request:
    return Request(numbers({"INPUT_IDS": rows, **more}))


def numbers(values: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.asarray(value, np.int32) for name, value in values.items()}


def answers(model: TritonPythonModel, requests: Sequence[Request]) -> list[Any]:
    """Each exactly once: with the batch, or sent before that was done."""
    for request in requests:
        request.sender = Sender()
    given = model.execute(requests)
    sent = [request.sender.responses for request in requests]
    assert [len(early) + (late is not None) for early, late in zip(sent, given, strict=True)] == [1] * len(
        given
    )
    return [early[0] if early else late for early, late in zip(sent, given, strict=True)]


def test_a_batch_of_requests_is_answered_row_by_row(model: TritonPythonModel, plain: EmbeddingModel) -> None:
    one, three = answers(model, [texts(b"alone"), texts("one", b"a longer text", "")])
    expected = plain.embed(plain.word_pieces.encode(["alone", "one", "a longer text", ""]))
    assert np.abs(one.outputs["EMBEDDING"] - expected[:1]).max() < 1e-6
    assert np.abs(three.outputs["EMBEDDING"] - expected[1:]).max() < 1e-6
    assert three.outputs["EMBEDDING"].dtype == np.float32
    assert one.outputs["TOKENS"].tolist() == [[3]]
    assert three.outputs["TOKENS"].tolist() == [[3], [5], [2]]


def test_token_ids_of_several_lengths_are_padded_with_minus_1(
    model: TritonPythonModel, plain: EmbeddingModel
) -> None:
    short, long = plain.word_pieces.encode(["one", "a longer text"])
    padded = [*short[1:-1], -1, -1, -1, -1]
    by_ids, by_text = answers(model, [ids(padded, long), texts("one", "a longer text")])
    assert np.abs(by_ids.outputs["EMBEDDING"] - by_text.outputs["EMBEDDING"]).max() < 1e-6
    assert by_ids.outputs["TOKENS"].tolist() == by_text.outputs["TOKENS"].tolist()


@pytest.mark.parametrize(("asked", "given"), [(0, 384), (384, 384), (64, 64), (1, 1)])
def test_dimensions_shorten_the_vectors(model: TritonPythonModel, asked: int, given: int) -> None:
    (response,) = answers(model, [texts("one", "two", DIMENSIONS=[[asked], [asked]])])
    vectors = response.outputs["EMBEDDING"]
    assert vectors.shape == (2, given)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (texts("fine", b"\xff\xfe"), "invalid_request: TEXT is not valid UTF-8 (byte 0)"),
        (Request({}), "invalid_request: expected either TEXT or INPUT_IDS, not neither"),
        (Request({**texts("a").arrays, **ids([7]).arrays}), "not both"),
        (ids([7, 30522]), "invalid_request: token id 30522 is not in this model's vocabulary"),
        (ids([7, -2, 7]), "invalid_request: token id -2 is not in this model's vocabulary"),
        (ids([-1, -1]), "invalid_request: INPUT_IDS has an empty row"),
        (texts("a", DIMENSIONS=[[385]]), "invalid_request: DIMENSIONS is 385; allowed: 1 to 384"),
        (texts("a", DIMENSIONS=[[-1]]), "invalid_request: DIMENSIONS is -1; allowed: 1 to 384"),
        (texts("a", "b", DIMENSIONS=[[8], [9]]), "DIMENSIONS is 8, 9; allowed: 1 to 384, the same for each"),
        (texts("a", "b", DIMENSIONS=[[8]]), "invalid_request: DIMENSIONS has shape [1, 1]"),
        (Request({"TEXT": np.array([["a", "b"]], np.object_)}), "TEXT must be one value a row, not 2"),
    ],
)
def test_a_wrong_request_is_refused_and_affects_no_other(
    model: TritonPythonModel, request_: Request, said: str
) -> None:
    before, wrong, after = answers(model, [texts("before"), request_, texts("after")])
    assert said in wrong.error.message
    assert InflightError.from_text(wrong.error.message).kind.http_status == 400
    alone = answers(model, [texts("before"), texts("after")])
    for response, expected in zip((before, after), alone, strict=True):
        assert response.error is None
        assert np.abs(response.outputs["EMBEDDING"] - expected.outputs["EMBEDDING"]).max() < 1e-6


def test_a_request_that_breaks_the_computation_fails_alone(
    model: TritonPythonModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = EmbeddingModel.embed_in_slices

    def breaking(self: EmbeddingModel, rows: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], Floats]]:
        if any(len(row) == 4 for row in rows):
            raise MemoryError("no room")
        return whole(self, rows)

    monkeypatch.setattr(EmbeddingModel, "embed_in_slices", breaking)
    good, bad, other = answers(model, [texts("one"), texts("two words"), texts("three")])
    assert bad.error.message.startswith("engine_failed: ")
    assert "no room" not in bad.error.message
    assert good.error is None
    assert other.error is None


def test_a_vector_that_is_not_finite_is_not_sent(
    model: TritonPythonModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = EmbeddingModel.embed_in_slices

    def infected(self: EmbeddingModel, rows: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], Floats]]:
        for indices, vectors in whole(self, rows):
            vectors[indices.index(1), 7] = np.nan
            yield indices, vectors

    monkeypatch.setattr(EmbeddingModel, "embed_in_slices", infected)
    good, bad = answers(model, [texts("one"), texts("two")])
    assert good.error is None
    assert bad.error.message.startswith("engine_failed: ")


LONG = " ".join(["word"] * 250)


def test_a_short_text_is_answered_before_the_long_ones_of_its_batch_are_computed(
    model: TritonPythonModel, plain: EmbeddingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = EmbeddingModel.embed_in_slices
    short, long = texts("short"), texts(LONG, LONG, "another")
    seen: list[tuple[int, bool]] = []

    def watched(self: EmbeddingModel, rows: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], Floats]]:
        for indices, vectors in whole(self, rows):
            seen.append((len(indices), short.sender.finals == 1))
            yield indices, vectors

    monkeypatch.setattr(EmbeddingModel, "embed_in_slices", watched)
    given = model.execute([long, short])
    assert given[1] is None
    assert not seen[0][1]
    assert seen[-1][1]
    expected = plain.embed(plain.word_pieces.encode([LONG, LONG, "another", "short"]))
    assert np.abs(given[0].outputs["EMBEDDING"] - expected[:3]).max() < 1e-5
    assert np.abs(short.sender.responses[0].outputs["EMBEDDING"] - expected[3:]).max() < 1e-5


def test_an_answer_that_cannot_be_sent_early_is_given_with_the_others(model: TritonPythonModel) -> None:
    short = texts("short")
    short.sender.fail_at = 1
    given = model.execute([texts(LONG), short])
    assert [each.error for each in given] == [None, None]


def test_what_breaks_after_others_were_answered_fails_alone(
    model: TritonPythonModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = EmbeddingModel._compute

    def breaking(self: EmbeddingModel, rows: Sequence[Any], piece: Any) -> Floats:
        if piece.width > 100:
            raise MemoryError("no room")
        return whole(self, rows, piece)

    monkeypatch.setattr(EmbeddingModel, "_compute", breaking)
    bad, good = answers(model, [texts(LONG), texts("short")])
    assert good.error is None
    assert bad.error is not None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("device", "tpu", "parameter device is .* allowed: cpu or cuda"),
        ("gpu_memory_share", "half", "parameter gpu_memory_share is"),
        ("threads", "257", "parameter threads is .* allowed: 1 to 256"),
        ("inflight_precision", "int4", "parameter inflight_precision is .* allowed: auto, fp32, int8"),
    ],
)
def test_a_wrong_parameter_stops_the_start(checkpoint: Path, name: str, value: str, said: str) -> None:
    parameters = {"checkpoint_dir": str(checkpoint), name: value}
    with pytest.raises(InflightError, match=said):
        TritonPythonModel().initialize(arguments("embeddings", parameters))


def test_int8_is_computed_where_it_is_asked_for(checkpoint: Path, plain: EmbeddingModel) -> None:
    parameters = {"checkpoint_dir": str(checkpoint), "inflight_precision": "int8"}
    loaded = TritonPythonModel()
    loaded.initialize(arguments("embeddings", parameters))
    (answer,) = answers(loaded, [texts("alone")])
    exact = plain.embed(plain.word_pieces.encode(["alone"]))
    assert 0.995 < (answer.outputs["EMBEDDING"] * exact).sum() < 0.99999


def test_a_decoder_makes_vectors_as_short_as_asked(tmp_path: Path) -> None:
    from tests.embeddings.test_decoders import END, write_embedder

    write_embedder(tmp_path, "qwen3")
    loaded = TritonPythonModel()
    loaded.initialize(arguments("embeddings", {"checkpoint_dir": str(tmp_path), "threads": "1"}))
    asked = [texts("w1 w2", DIMENSIONS=[[8]]), ids([7, 8, END], DIMENSIONS=[[8]])]
    by_text, by_ids = answers(loaded, asked)
    assert by_text.outputs["EMBEDDING"].shape == (1, 8)
    assert by_text.outputs["TOKENS"].tolist() == [[3]]
    assert np.abs(by_text.outputs["EMBEDDING"] - by_ids.outputs["EMBEDDING"]).max() < 1e-6


def test_a_decoder_scores_pairs_in_its_template(tmp_path: Path) -> None:
    from tests.embeddings.test_decoders import write_reranker

    write_reranker(tmp_path)
    loaded, plain = TritonPythonModel(), EmbeddingModel.load(tmp_path)
    loaded.initialize(arguments("embeddings", {"checkpoint_dir": str(tmp_path), "threads": "1"}))
    pairs = {"TEXT": [[b"w1 w2"], [b"w1 w2"]], "TEXT_PAIR": [[b"w3"], [b"w4 w5"]]}
    request = Request({name: np.array(values, np.object_) for name, values in pairs.items()})
    (response,) = answers(loaded, [request])
    expected = plain.embed(plain.word_pieces.encode_pairs([("w1 w2", "w3"), ("w1 w2", "w4 w5")]))
    assert np.abs(response.outputs["EMBEDDING"] - expected).max() < 1e-6
    assert response.outputs["TOKENS"].min() > 3, "the template counts"
