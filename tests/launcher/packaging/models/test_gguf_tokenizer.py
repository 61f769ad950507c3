"""Tokenizers rebuilt from what GGUF files say of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from launcher.packaging.models.gguf_tokenizer import build_tokenizer, generation_settings, write_tokenizer
from launcher.packaging.models.gguf_vocabularies import SPLITTINGS, TokenizerError
from python_backend.gguf.header import read_header
from python_backend.wire.errors import InflightError
from tests.launcher.conftest import RecordedProgress
from tests.launcher.stand_ins.tiny_model import CHAT_TEMPLATE, SPECIAL_TOKENS, vocabulary, write_gguf

TEXTS = ("hello the world", "  two  spaces\n", "année 1234", "日本 👩‍👩‍👧", "don't WON'T", "\t\r\n x = 10;")


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_gguf(path)
    return path


@pytest.fixture(scope="module")
def fields(gguf: Path) -> dict[str, Any]:
    return read_header(gguf, with_texts=True).fields


def changed(fields: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return fields | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


def test_a_rebuilt_tokenizer_round_trips_and_knows_its_special_tokens(gguf: Path, tmp_path: Path) -> None:
    write_tokenizer(gguf, tmp_path, RecordedProgress())
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("<|im_start|>hello").tokens == ["<|im_start|>", "he", "llo"]
    assert tokenizer.encode("12").tokens == ["1", "2"], "each digit stands alone"
    assert tokenizer.decode([1, 2], skip_special_tokens=True) == ""


def test_the_written_files_hold_the_gguf_files_metadata(gguf: Path, tmp_path: Path) -> None:
    write_tokenizer(gguf, tmp_path, RecordedProgress(), {"temperature": 0.5})
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (settings["bos_token"], settings["eos_token"]) == tuple(SPECIAL_TOKENS[1:])
    assert settings["model_max_length"] == 128
    assert (tmp_path / "chat_template.jinja").read_text() == CHAT_TEMPLATE
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    assert generation == {**ids, "do_sample": True, "temperature": 0.5}


def test_the_end_of_a_turn_is_an_end_token(fields: dict[str, Any]) -> None:
    assert generation_settings(changed(fields, eot_token_id=0))["eos_token_id"] == [2, 0]
    assert generation_settings(changed(fields, eot_token_id=2))["eos_token_id"] == 2


@pytest.mark.parametrize("name", SPLITTINGS)
def test_texts_survive_every_pre_tokenizer(name: str, fields: dict[str, Any]) -> None:
    tokenizer = build_tokenizer(changed(fields, pre=name))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=True) == text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt-2", ["Don", "'t", "Ġcount", "Ġ12345", "!!", "Ċ", "Ċ", "ok"]),
        ("smollm", ["Don", "'t", "Ġcount", "Ġ", "1", "2", "3", "4", "5", "!!", "Ċ", "Ċ", "ok"]),
        ("llama-bpe", ["Don", "'t", "Ġcount", "Ġ", "123", "45", "!!ĊĊ", "ok"]),
        ("qwen2", ["Don", "'t", "Ġcount", "Ġ", "1", "2", "3", "4", "5", "!!ĊĊ", "ok"]),
        ("tekken", ["Don", "'t", "Ġcount", "Ġ", "1", "2", "3", "4", "5", "!!ĊĊ", "ok"]),
        ("gpt-4o", ["Don't", "Ġcount", "Ġ", "123", "45", "!!ĊĊ", "ok"]),
    ],
)
def test_words_are_split_as_the_models_tokenizer_splits_them(
    name: str, words: list[str], fields: dict[str, Any]
) -> None:
    splitter = build_tokenizer(changed(fields, pre=name)).pre_tokenizer
    assert isinstance(splitter, pre_tokenizers.PreTokenizer)
    assert [word for word, _ in splitter.pre_tokenize_str("Don't count 12345!!\n\nok")] == words


def test_a_text_begins_with_bos_where_the_file_or_its_kind_says_so(fields: dict[str, Any]) -> None:
    assert build_tokenizer(changed(fields, pre="llama-bpe")).encode("h").tokens[0] == "<|im_start|>"
    assert build_tokenizer(changed(fields, pre="llama-bpe", add_bos_token=False)).encode("h").tokens == ["h"]
    assert build_tokenizer(changed(fields, add_bos_token=True)).encode("h").tokens[0] == "<|im_start|>"
    assert build_tokenizer(fields).encode("h").tokens == ["h"]


def sentencepiece_fields(**changes: Any) -> dict[str, Any]:
    pieces = ["▁", "h", "e", "l", "o", "he", "ll", "llo", "hello", "▁hello"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces))]
    return changed(
        {},
        model="llama",
        tokens=tokens,
        token_type=kinds,
        scores=scores,
        bos_token_id=1,
        eos_token_id=2,
        **changes,
    )


def test_sentencepiece_vocabularies_merge_by_score_and_fall_back_to_bytes() -> None:
    tokenizer = build_tokenizer(sentencepiece_fields())
    assert tokenizer.encode("hello").tokens == ["<s>", "▁hello"]
    assert tokenizer.encode("hé").tokens == ["<s>", "▁", "h", "<0xC3>", "<0xA9>"]
    for text in ("hello", "hello hello", " hé  日本"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_sentencepiece_without_a_space_in_front_keeps_the_text_as_it_is() -> None:
    tokenizer = build_tokenizer(sentencepiece_fields(add_space_prefix=False, add_bos_token=False))
    assert tokenizer.encode("hello hello").tokens == ["hello", "▁hello"]
    for text in ("hello", " hello", "é"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"model": "bert"}, "'bert' with pre-tokenizer None"),
        ({"pre": "viking"}, "'gpt2' with pre-tokenizer 'viking'"),
    ],
)
def test_an_unknown_tokenizer_kind_is_refused_with_the_known_ones(
    changes: dict[str, str], name: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(
        TokenizerError, match=f"tokenizer is {name}; known are 'llama', and 'gpt2' with one of"
    ):
        build_tokenizer(changed(fields, **changes))


def test_a_missing_field_is_named(fields: dict[str, Any]) -> None:
    fields = {name: value for name, value in fields.items() if name != "tokenizer.ggml.pre"}
    with pytest.raises(TokenizerError, match=r"no field 'tokenizer\.ggml\.pre'"):
        build_tokenizer(fields)


def test_the_metadata_is_complete(fields: dict[str, Any]) -> None:
    assert fields["general.architecture"] == "llama"
    assert fields["tokenizer.ggml.tokens"] == vocabulary()
    assert fields["tokenizer.ggml.token_type"][:4] == [3, 3, 3, 1]
    assert fields["tokenizer.ggml.add_space_prefix"] is False
    assert fields["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "empty"), (b"GGML....", "does not begin with GGUF"), (b"GGUF\x01" + bytes(60), "version 1")],
)
def test_a_file_of_another_kind_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(InflightError, match=f"cannot be read as GGUF: .*{reason}"):
        read_header(tmp_path / "x.gguf")
