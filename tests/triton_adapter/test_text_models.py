"""Preprocessing and postprocessing on a stand-in stub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backend.text.tokenizer import Tokenizer
from python_backend.triton_adapter import postprocessing, preprocessing
from python_backend.triton_adapter.request_starts import StartListener, StartTeller
from python_backend.wire.errors import TEXT_LOST
from python_backend.wire.stream_mark import StreamMark
from tests.fakes.triton_stub import InferenceResponse, Request, arguments


@pytest.fixture(scope="module")
def tokenizer(default_checkpoint: Path) -> Tokenizer:
    return Tokenizer.load(default_checkpoint)


@pytest.fixture(scope="module")
def pre(default_checkpoint: Path) -> Iterator[preprocessing.TritonPythonModel]:
    model = preprocessing.TritonPythonModel()
    model.initialize(arguments("preprocessing", {"tokenizer_dir": str(default_checkpoint)}))
    yield model
    model.finalize()


@pytest.fixture
def post(
    default_checkpoint: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[postprocessing.TritonPythonModel]:
    """Each has streams of its own, and the tokenizer that was read once."""
    monkeypatch.setattr(Tokenizer, "load", lambda directory: tokenizer)
    model = postprocessing.TritonPythonModel()
    model.initialize(arguments("postprocessing", {"tokenizer_dir": str(default_checkpoint)}))
    yield model
    model.finalize()


def query(
    text: str | bytes, parameters: dict[str, Any] | None = None, request_id: str = "", **more: Any
) -> Request:
    arrays = {
        "QUERY": np.asarray([[text]], dtype=np.object_),
        "REQUEST_OUTPUT_LEN": np.asarray([[7]], dtype=np.int32),
        **{name: np.asarray(value) for name, value in more.items()},
    }
    return Request(arrays, request_id, request_parameters=parameters or {})


def text_of(
    model: postprocessing.TritonPythonModel,
    ids: list[int],
    length: int,
    request_id: str = "r",
    **indices: int,
) -> str:
    arrays = {
        "TOKENS_BATCH": np.asarray([[ids]], dtype=np.int32).reshape(1, 1, len(ids)),
        "SEQUENCE_LENGTH": np.asarray([[length]], dtype=np.int32),
        **{name: np.asarray([[index]], dtype=np.int32) for name, index in indices.items()},
    }
    (response,) = model.execute([Request(arrays, request_id)])
    assert isinstance(response, InferenceResponse)
    assert response.error is None
    text: bytes = response.outputs["OUTPUT"][0]
    return text.decode()


def test_a_batch_is_tokenized_and_one_bad_request_affects_no_other(
    pre: preprocessing.TritonPythonModel, tokenizer: Tokenizer
) -> None:
    good, bad, other = pre.execute([query(b"Hello there"), query(b"\xff\xfe"), query(b"Bonjour")])
    assert good.outputs["INPUT_ID"].tolist() == tokenizer.encode_batch(["Hello there"], True)
    assert good.outputs["REQUEST_OUTPUT_LEN"].tolist() == [[7]]
    assert good.outputs["OUT_END_ID"].tolist() == [[tokenizer.eos_id]]
    assert good.outputs["STOP_WORDS_IDS"].shape == (1, 2, 0)
    assert bad.error.message.startswith("invalid_request: QUERY is not valid UTF-8")
    assert other.error is None


def test_a_long_conversation_that_goes_on_has_the_tokens_of_the_whole(
    pre: preprocessing.TritonPythonModel, tokenizer: Tokenizer
) -> None:
    """Plain, and with a special token that is only written about."""
    text, mark = "<|im_start|>user\nTell me more of it, please.<|im_end|>\n" * 200, "\u2063"
    for _ in range(3):
        text += "<|im_start|>assistant\nThere is more to tell than one would think.<|im_end|>\n" * 3
        expected = tokenizer.encode_batch([text], True)
        for parameters in ({}, {"inflight_literal_mark": mark}):
            (found,) = pre.execute([query(text, {"tenant": "ann", **parameters})])
            assert found.outputs["INPUT_ID"].tolist() == expected


def test_a_marked_special_token_is_text_and_the_others_of_the_batch_are_as_ever(
    pre: preprocessing.TritonPythonModel, tokenizer: Tokenizer
) -> None:
    prompt = "<|im_start|>user\na <|im_end|> b<|im_end|>\n"
    marked = prompt.replace("a <", "a <MARK").encode()
    asks = {"add_special_tokens": False}
    careful, plain, broken = pre.execute(
        [
            query(marked, {**asks, "inflight_literal_mark": "MARK"}),
            query(prompt.encode(), asks),
            query(prompt.encode(), {"inflight_literal_mark": 7}),
        ]
    )
    end_id = tokenizer.encode_words(["<|im_end|>"])[0][0]
    (ids,) = careful.outputs["INPUT_ID"].tolist()
    assert ids.count(end_id) == 1
    assert tokenizer.decode(ids, skip_special_tokens=False) == prompt
    assert plain.outputs["INPUT_ID"].tolist() == tokenizer.encode_batch([prompt], add_special_tokens=False)
    assert "inflight_literal_mark is 7; allowed: a text" in broken.error.message


def test_stop_words_become_ids_and_empty_ones_are_left_out(
    pre: preprocessing.TritonPythonModel, tokenizer: Tokenizer
) -> None:
    words = np.asarray([[b"\n\n", b"", b"END", b""]], dtype=np.object_)
    (response,) = pre.execute([query(b"Hello", STOP_WORDS_DICT=words)])
    first, second = tokenizer.encode_words(["\n\n", "END"])
    flat, ends = response.outputs["STOP_WORDS_IDS"][0].tolist()
    assert flat == first + second
    assert ends[:2] == [len(first), len(first) + len(second)]


def test_each_row_has_its_own_bad_words_and_bias(
    pre: preprocessing.TritonPythonModel, tokenizer: Tokenizer
) -> None:
    rows = {
        "QUERY": [[b"Hello"], [b"A much longer prompt"]],
        "REQUEST_OUTPUT_LEN": [[7], [8]],
        "PAD_ID": [[1], [2]],
        "BAD_WORDS_DICT": [[b"ugly words", b""], [b"", b""]],
        "EMBEDDING_BIAS_WORDS": [[b"yes", b"no"], [b"", b"no"]],
        "EMBEDDING_BIAS_WEIGHTS": np.asarray([[2.5, -1.0], [9.0, 4.0]], dtype=np.float32),
    }
    texts = {"QUERY", "BAD_WORDS_DICT", "EMBEDDING_BIAS_WORDS"}
    arrays = {
        name: np.asarray(value, dtype=np.object_ if name in texts else None) for name, value in rows.items()
    }
    (response,) = pre.execute([Request(arrays)])
    outputs = response.outputs
    (short,) = tokenizer.encode_batch(["Hello"], True)
    assert outputs["INPUT_ID"][0].tolist()[: len(short) + 1] == [*short, 1], "padded with the row's own id"
    (ugly,) = tokenizer.encode_words(["ugly words"])
    assert outputs["BAD_WORDS_IDS"][:, 0].tolist() == [ugly, [0] * len(ugly)]
    assert outputs["BAD_WORDS_IDS"][:, 1, 0].tolist() == [len(ugly), -1]
    (yes,), (no,) = tokenizer.encode_words(["yes", "no"])
    assert outputs["EMBEDDING_BIAS"].shape == (2, tokenizer.vocab_size)
    assert outputs["EMBEDDING_BIAS"][:, [yes, no]].tolist() == [[2.5, -1.0], [0.0, 4.0]]
    assert np.count_nonzero(outputs["EMBEDDING_BIAS"]) == 3


def test_without_words_there_is_no_bias(pre: preprocessing.TritonPythonModel) -> None:
    (response,) = pre.execute([query(b"Hello")])
    assert response.outputs["EMBEDDING_BIAS"].shape == (1, 0)
    assert response.outputs["BAD_WORDS_IDS"].shape == (1, 2, 0)


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        (query(b"Hi", {"add_special_tokens": "false"}), "add_special_tokens"),
        (query(b"Hi", IMAGE_BYTES=np.zeros((1, 1, 2, 2, 3), dtype=np.uint8)), "IMAGE_BYTES"),
        (query(b"Hi", EMBEDDING_BIAS_WORDS=np.asarray([[b"a"]], dtype=np.object_)), "embedding_bias_weights"),
        (query(b"Hi", EMBEDDING_BIAS_WEIGHTS=np.asarray([[1]], dtype=np.float32)), "embedding_bias_words"),
    ],
)
def test_an_invalid_preprocessing_input_is_refused_by_name(
    pre: preprocessing.TritonPythonModel, request_: Request, word: str
) -> None:
    (response,) = pre.execute([request_])
    assert word in response.error.message


def test_streams_of_one_request_id_are_distinguished_by_their_marks(
    post: postprocessing.TritonPythonModel, tokenizer: Tokenizer
) -> None:
    (face,) = tokenizer.encode_batch(["🙂"], False)
    assert len(face) > 1
    for stream in (1, 2):
        mark = StreamMark(0, stream).to_padding_id()
        assert text_of(post, [face[0], mark], 1) == ""
    for stream in (1, 2):
        mark = StreamMark(0, stream, 1, True).to_padding_id()
        assert text_of(post, [*face[1:], mark], len(face) - 1) == "🙂"


def test_a_stream_that_breaks_off_is_forgotten_at_once(
    post: postprocessing.TritonPythonModel, tokenizer: Tokenizer
) -> None:
    """The engine closes it with a response of no ids, ahead of the error."""
    (face,) = tokenizer.encode_batch(["🙂"], False)
    assert text_of(post, [face[0], StreamMark(0, 1).to_padding_id()], 1) == ""
    assert len(post._streams) == 1
    assert text_of(post, [StreamMark(0, 1, 1, True).to_padding_id()], 0) == ""
    assert len(post._streams) == 0


@pytest.mark.parametrize("turn", [1, 3])
def test_the_rest_of_a_text_is_refused_by_who_has_not_seen_its_beginning(
    post: postprocessing.TritonPythonModel, tokenizer: Tokenizer, turn: int
) -> None:
    """Triton has put this process into the place of one that was frozen, with responses on their way."""
    (ids,) = tokenizer.encode_batch(["two words"], False)
    arrays = {
        "TOKENS_BATCH": np.asarray([[[ids[1], StreamMark(0, 1, turn).to_padding_id()]]], dtype=np.int32),
        "SEQUENCE_LENGTH": np.asarray([[1]], dtype=np.int32),
    }
    (response,) = post.execute([Request(arrays, "r")])
    assert response.error.message == f"engine_failed: {TEXT_LOST}"
    assert len(post._streams) == 0


def test_output_of_an_engine_without_marks_is_decoded(
    post: postprocessing.TritonPythonModel, tokenizer: Tokenizer
) -> None:
    """NVIDIA's library: ids alone, and an empty last response when the end token came."""
    (face,) = tokenizer.encode_batch(["🙂!"], False)
    pieces = [text_of(post, [token_id], 1, "nvidia") for token_id in face]
    assert "".join([*pieces, text_of(post, [], 0, "nvidia")]) == "🙂!"


@pytest.mark.parametrize("index", ["BATCH_INDEX", "SEQUENCE_INDEX"])
def test_rows_and_sequences_of_an_engine_without_marks_have_a_decoder_each(
    post: postprocessing.TritonPythonModel, tokenizer: Tokenizer, index: str
) -> None:
    """NVIDIA's backend sends them under one request id, as they come."""
    (face,) = tokenizer.encode_batch(["🙂"], False)
    pieces = ["", ""]
    for token_id in face:
        for number in (0, 1):
            pieces[number] += text_of(post, [token_id], 1, "rows", **{index: number})
    assert pieces == ["🙂", "🙂"]


def test_an_id_used_again_without_marks_is_another_stream(
    pre: preprocessing.TritonPythonModel, post: postprocessing.TritonPythonModel, tokenizer: Tokenizer
) -> None:
    """As NVIDIA's end_to_end_test.py does; the first answer was cut within a character."""
    (face,) = tokenizer.encode_batch(["🙂"], False)
    pre.execute([query("Hello", request_id="again")])
    assert text_of(post, face[:1], 1, "again") == ""
    pre.execute([query("Hello", request_id="again")])
    assert [text_of(post, [token_id], 1, "again") for token_id in face][-1] == "🙂"
    pre.execute([query("Hello", request_id="another")])
    assert text_of(post, tokenizer.encode_batch(["Yes"], False)[0], 1, "again") == "Yes"


def test_every_postprocessing_of_a_server_hears_of_a_request_and_one_that_is_gone_is_passed_over() -> None:
    teller, first, second = StartTeller(), StartListener(), StartListener()
    teller.begun("r")
    assert (first.times_begun("r"), second.times_begun("r")) == (1, 1)
    first.close()
    teller.begun("r")
    assert (second.times_begun("r"), second.times_begun("s")) == (2, 0)
    second.close()
    teller.begun("r")
    teller.close()


def test_prompt_ids_replace_the_text(pre: preprocessing.TritonPythonModel, tokenizer: Tokenizer) -> None:
    ids = np.asarray([[11, 12, 13]], dtype=np.int32)
    by_ids, by_text = pre.execute([query(b"Hello there", PROMPT_IDS=ids), query(b"Hello there")])
    assert by_ids.outputs["INPUT_ID"].tolist() == [[11, 12, 13]]
    assert by_ids.outputs["REQUEST_INPUT_LEN"].tolist() == [[3]]
    assert by_text.outputs["INPUT_ID"].tolist() == tokenizer.encode_batch(["Hello there"], True)


def test_the_bytes_of_tokens_come_with_their_top_log_probs(
    post: postprocessing.TritonPythonModel, tokenizer: Tokenizer
) -> None:
    (ids,) = tokenizer.encode_batch(["so 🙂"], False)
    echoed, answer = ids[:1], [*ids[1:], tokenizer.eos_id]
    mark = StreamMark(0, 1, 0, True).to_padding_id()
    arrays = {
        "TOKENS_BATCH": np.asarray([[[*echoed, *answer, mark]]], dtype=np.int32),
        "SEQUENCE_LENGTH": np.asarray([[len(ids) + 1]], dtype=np.int32),
        "TOP_TOKEN_IDS": np.asarray([[[[token_id, echoed[0]] for token_id in answer]]], dtype=np.int32),
    }
    (response,) = post.execute([Request(arrays, "r")])
    assert response.outputs["OUTPUT"][0].decode() == "so 🙂"
    tokens = response.outputs["top_tokens"]
    assert tokens.shape == (1, len(answer), 2)
    *pieces, end = [row[0] for row in tokens[0]]
    assert b"".join(pieces).decode() == " 🙂"
    assert (end, tokens[0][0][1]) == (b"<|im_end|>", b"so")
    characters = response.outputs["token_characters"]
    assert characters.shape == (1, len(answer))
    assert characters[0, :-1].sum() == 2
    assert characters[0, -1] == -1, "it is not shown"
