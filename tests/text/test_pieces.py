"""The bytes behind each id."""

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from python_backend.text.pieces import Pieces, UnsupportedDecoder
from python_backend.text.tokenizer import Tokenizer
from tests.text.tokenizer_kinds import tokenizer_of


def backend_with(decoder: decoders.Decoder | None) -> Backend:
    backend = Backend(models.WordLevel({"a": 0}, unk_token="a"))
    if decoder is not None:
        backend.decoder = decoder
    return backend


def test_the_pieces_of_byte_level_ids_are_the_bytes_of_their_text() -> None:
    tokenizer = tokenizer_of("byte_level")
    pieces = tokenizer.pieces(skip_special_tokens=False)
    for token_id in range(tokenizer.vocab_size):
        assert pieces[token_id].decode(errors="replace") == tokenizer.decode([token_id], False)


def test_the_byte_alphabet_is_the_librarys() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.WordLevel(dict(zip(alphabet, range(256), strict=True)), unk_token="a"))
    backend.decoder = decoders.ByteLevel()
    pieces = Pieces(backend, skip_special_tokens=True)
    assert sorted(pieces[n] for n in range(256)) == [bytes([n]) for n in range(256)]


def test_special_and_unknown_ids_have_no_bytes(tokenizer: Tokenizer) -> None:
    pieces = tokenizer.pieces(skip_special_tokens=True)
    assert {pieces[token_id] for token_id in (*tokenizer.special_ids, 10_000_000)} == {b""}


def test_unknown_ids_are_not_remembered(tokenizer: Tokenizer) -> None:
    pieces = tokenizer.pieces(skip_special_tokens=True)
    before = len(pieces)
    assert pieces[10_000_000] == b""
    assert len(pieces) == before


def test_stream_decoders_of_a_tokenizer_share_one_table(tokenizer: Tokenizer) -> None:
    assert tokenizer.pieces(True) is tokenizer.pieces(True)
    assert tokenizer.pieces(True) is not tokenizer.pieces(False)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.ByteLevel(),
        decoders.Sequence([decoders.ByteLevel()]),
        decoders.Metaspace(),
        decoders.WordPiece(),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    ],
)
def test_decoders_of_models_that_generate_text_are_allowed(decoder: decoders.Decoder | None) -> None:
    assert Pieces(backend_with(decoder), skip_special_tokens=True)[0].strip() == b"a"


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        (decoders.BPEDecoder(), "BPEDecoder"),
        (decoders.CTC(), "CTC"),
        (decoders.Sequence([decoders.Fuse(), decoders.Replace("a", "b")]), "Fuse + Replace"),
        (decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]), "Fuse + Strip"),
    ],
)
def test_a_decoder_that_looks_at_neighbours_is_refused_by_name(decoder: decoders.Decoder, named: str) -> None:
    with pytest.raises(UnsupportedDecoder, match=named.replace("+", r"\+")):
        Pieces(backend_with(decoder), skip_special_tokens=True)
