"""Reading a checkpoint's tokenizer, and what it makes of texts and words."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from python_backend.text.tokenizer import Tokenizer, TokenizerError
from tests.text.corpus import TEXTS
from tests.text.tokenizer_kinds import byte_level_backend, smollm2_directory, tokenizer_of

# The ids that tokenizer_kinds gives the special tokens.
UNK, BOS, EOS = 0, 1, 2


@pytest.fixture(scope="module")
def tokenizer_json() -> str:
    return byte_level_backend().to_str()


@pytest.fixture
def checkpoint(tmp_path: Path, tokenizer_json: str) -> Path:
    (tmp_path / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    return tmp_path


def write(directory: Path, name: str, content: dict[str, Any]) -> None:
    (directory / name).write_text(json.dumps(content), encoding="utf-8")


class TestTheTokenThatEndsAText:
    def test_the_generation_configs_end_token_comes_first(self, checkpoint: Path) -> None:
        write(checkpoint, "generation_config.json", {"eos_token_id": 7})
        write(checkpoint, "tokenizer_config.json", {"eos_token": "</s>"})
        write(checkpoint, "config.json", {"eos_token_id": 9})
        assert Tokenizer.load(checkpoint).eos_ids == (7,)

    def test_several_tokens_may_end_a_generation_and_the_first_is_the_main_one(
        self, checkpoint: Path
    ) -> None:
        write(checkpoint, "generation_config.json", {"eos_token_id": [7, 8]})
        tokenizer = Tokenizer.load(checkpoint)
        assert tokenizer.eos_id == 7
        assert tokenizer.eos_ids == (7, 8)

    def test_of_several_end_tokens_the_tokenizers_own_is_the_main_one(self, checkpoint: Path) -> None:
        write(checkpoint, "generation_config.json", {"eos_token_id": [7, EOS, 8]})
        write(checkpoint, "tokenizer_config.json", {"eos_token": "</s>"})
        assert Tokenizer.load(checkpoint).eos_ids == (EOS, 7, 8)

    @pytest.mark.parametrize("token", ["</s>", {"content": "</s>", "lstrip": False}])
    @pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
    def test_the_tokenizers_own_end_token_comes_second(
        self, checkpoint: Path, name: str, token: object
    ) -> None:
        write(checkpoint, name, {"eos_token": token})
        write(checkpoint, "config.json", {"eos_token_id": 9})
        assert Tokenizer.load(checkpoint).eos_id == EOS

    def test_the_model_configs_end_token_comes_last(self, checkpoint: Path) -> None:
        write(checkpoint, "generation_config.json", {"eos_token_id": None})
        write(checkpoint, "tokenizer_config.json", {"eos_token": None})
        write(checkpoint, "config.json", {"eos_token_id": 9})
        assert Tokenizer.load(checkpoint).eos_id == 9

    def test_a_checkpoint_without_an_end_token_is_refused_with_where_to_name_it(
        self, checkpoint: Path
    ) -> None:
        write(checkpoint, "tokenizer_config.json", {"eos_token": "<not in the vocabulary>"})
        with pytest.raises(TokenizerError, match=r"generation_config\.json.*tokenizer_config\.json"):
            Tokenizer.load(checkpoint)


class TestOtherSpecialTokens:
    def test_the_padding_token_is_the_tokenizers(self, checkpoint: Path) -> None:
        write(checkpoint, "tokenizer_config.json", {"eos_token": "</s>", "pad_token": "<unk>"})
        write(checkpoint, "generation_config.json", {"pad_token_id": 9})
        assert Tokenizer.load(checkpoint).pad_id == UNK

    def test_padding_falls_back_to_the_end_token(self, checkpoint: Path) -> None:
        write(checkpoint, "config.json", {"eos_token_id": 9, "pad_token_id": -1})
        assert Tokenizer.load(checkpoint).pad_id == 9

    def test_the_token_that_begins_a_text_may_be_missing(self, checkpoint: Path) -> None:
        write(checkpoint, "config.json", {"eos_token_id": 9})
        assert Tokenizer.load(checkpoint).bos_id is None
        write(checkpoint, "config.json", {"eos_token_id": 9, "bos_token_id": BOS})
        assert Tokenizer.load(checkpoint).bos_id == BOS

    def test_special_ids_and_the_size_of_the_vocabulary_are_known(self) -> None:
        tokenizer = tokenizer_of("byte_level")
        assert tokenizer.special_ids == {UNK, BOS, EOS}
        assert tokenizer.decode([tokenizer.vocab_size - 1]) != ""
        assert tokenizer.decode([tokenizer.vocab_size]) == ""


class TestBrokenCheckpoints:
    def test_a_missing_tokenizer_json_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing$"):
            Tokenizer.load(tmp_path)

    def test_a_sentencepiece_model_alone_gets_a_hint(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.model").touch()
        with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing; tokenizer\.model alone"):
            Tokenizer.load(tmp_path)

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"eos_token_id": 1'])
    @pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json"])
    def test_a_file_that_cannot_be_read_is_named(self, checkpoint: Path, name: str, content: str) -> None:
        (checkpoint / name).write_text(content)
        with pytest.raises(TokenizerError, match=f"{name} cannot be read"):
            Tokenizer.load(checkpoint)

    def test_a_tokenizer_without_an_end_token_is_refused(self) -> None:
        with pytest.raises(TokenizerError, match="at least one"):
            Tokenizer(byte_level_backend(), eos_ids=[])


class TestEncoding:
    def test_stored_truncation_and_padding_are_off(self, tmp_path: Path) -> None:
        backend = byte_level_backend()
        backend.enable_truncation(4)
        backend.enable_padding(length=64)
        backend.save(str(tmp_path / "tokenizer.json"))
        write(tmp_path, "config.json", {"eos_token_id": EOS})
        tokenizer = Tokenizer.load(tmp_path)
        short, long = tokenizer.encode_batch(["a", "one two three " * 50], add_special_tokens=True)
        assert len(short) == 1
        assert tokenizer.decode(long) == "one two three " * 50

    def test_special_tokens_are_added_on_request(self, checkpoint: Path) -> None:
        state = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
        state["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
        }
        write(checkpoint, "tokenizer.json", state)
        write(checkpoint, "config.json", {"eos_token_id": EOS})
        tokenizer = Tokenizer.load(checkpoint)
        [plain] = tokenizer.encode_batch(["one"], add_special_tokens=False)
        assert tokenizer.encode_batch(["one"], add_special_tokens=True) == [[BOS, *plain]]
        assert tokenizer.encode_words(["one"]) == [plain]

    def test_special_tokens_written_in_a_text_are_found(self) -> None:
        assert tokenizer_of("byte_level").encode_batch(["<s>"], add_special_tokens=False) == [[BOS]]

    def test_words_that_encode_to_nothing_are_left_out(self) -> None:
        tokenizer = tokenizer_of("byte_level")
        words = tokenizer.encode_words(["", "END", "", "😀"])
        assert [tokenizer.decode(ids) for ids in words] == ["END", "😀"]
        assert tokenizer.encode_words([]) == []


def test_the_default_models_tokenizer_agrees_with_transformers() -> None:
    reference = AutoTokenizer.from_pretrained(str(smollm2_directory()))
    tokenizer = Tokenizer.load(smollm2_directory())
    for add_special_tokens in (True, False):
        expected = [reference.encode(text, add_special_tokens=add_special_tokens) for text in TEXTS]
        assert tokenizer.encode_batch(TEXTS, add_special_tokens) == expected
    assert tokenizer.decode(expected[-1]) == reference.decode(expected[-1], skip_special_tokens=True)
    assert tokenizer.eos_id == reference.eos_token_id
    assert tokenizer.pad_id == reference.pad_token_id
    assert tokenizer.vocab_size == len(reference)
