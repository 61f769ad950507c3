"""One tokenizer of each kind, trained in a moment on half of the corpus: the other half is new to it."""

import json
import os
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from python_backend.text.tokenizer import Tokenizer
from tests.text.corpus import TEXTS

SPECIAL = ["<unk>", "<s>", "</s>"]
_TRAINING = TEXTS[::2]


def smollm2_directory() -> Path:
    data_dir = os.environ.get("INFLIGHT_TEST_DATA_DIR") or Path.home() / ".local/share/inflight"
    return Path(data_dir) / "models" / "smollm2-135m-instruct"


def byte_level_backend() -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    backend.train_from_iterator(_TRAINING, trainer)
    backend.add_tokens(["<tool call>", "日本語タグ"])  # not special, and not written in the byte alphabet
    return backend


def byte_fallback_backend() -> Backend:
    """As Llama 2 has it: the first 100 characters have tokens, all others are written byte by byte."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    backend = Backend(models.BPE(unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=1200, limit_alphabet=100, special_tokens=SPECIAL + byte_tokens, show_progress=False
    )
    backend.train_from_iterator(_TRAINING, trainer)
    state = json.loads(backend.to_str())
    state["pre_tokenizer"] = None
    state["model"]["byte_fallback"] = True
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in SPECIAL]
    return Backend.from_str(json.dumps(state))


def metaspace_backend() -> Backend:
    backend = Backend(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=1500, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(_TRAINING, trainer)
    return backend


def word_piece_backend() -> Backend:
    backend = Backend(models.WordPiece(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=1500, special_tokens=SPECIAL, show_progress=False)
    backend.train_from_iterator(_TRAINING, trainer)
    return backend


def plain_words_backend() -> Backend:
    """No decoder at all: the library joins the tokens with spaces."""
    backend = Backend(models.WordLevel(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=SPECIAL, show_progress=False)
    backend.train_from_iterator(_TRAINING, trainer)
    return backend


_BACKENDS = {
    "byte_level": byte_level_backend,
    "byte_fallback": byte_fallback_backend,
    "metaspace": metaspace_backend,
    "word_piece": word_piece_backend,
    "plain_words": plain_words_backend,
}
TRAINED = tuple(_BACKENDS)
# Kinds that give back every text exactly as it was.
LOSSLESS = ("byte_level", "byte_fallback", "smollm2")


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    if kind == "smollm2":
        return Tokenizer.load(smollm2_directory())
    backend = _BACKENDS[kind]()
    return Tokenizer(backend, eos_ids=[SPECIAL.index("</s>")])


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """The ids that stand for single bytes, in the two kinds that have them."""
    pieces = tokenizer.pieces(skip_special_tokens=True)
    by_byte = {pieces[i]: i for i in reversed(range(tokenizer.vocab_size)) if len(pieces[i]) == 1}
    return [by_byte[bytes([byte])] for byte in data]
