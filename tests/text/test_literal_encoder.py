"""How special tokens are found in a text, however many there are and however they begin."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from python_backend.text.literal_encoder import LiteralEncoder, _longest_of
from tests.text.tokenizer_kinds import byte_level_backend

TOKENS = st.sets(st.text("<|ab.", min_size=1, max_size=6), min_size=1, max_size=20)


@given(TOKENS, st.text("<|ab.c", max_size=40))
def test_tokens_are_found_as_by_alternatives_of_which_the_longest_comes_first(
    tokens: set[str], text: str
) -> None:
    alternatives = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
    assert re.findall(_longest_of(tokens), text) == re.findall(alternatives, text)


@pytest.fixture(scope="module")
def crowded() -> Tokenizer:
    """As some families are: thousands of tokens that begin alike."""
    backend = byte_level_backend()
    backend.add_special_tokens([AddedToken(f"<|reserved_{n}|>", special=True) for n in range(3000)])
    return backend


def test_texts_full_of_beginnings_take_no_longer_with_thousands_of_tokens(crowded: Tokenizer) -> None:
    few, many = LiteralEncoder(byte_level_backend()), LiteralEncoder(crowded)
    text = "<|reserved_" * 4000

    def took_s(encoder: LiteralEncoder) -> float:
        began_s = time.thread_time()
        encoder._tokens.sub("", text)
        return time.thread_time() - began_s

    # One after the other they took 200 times as long.
    assert min(took_s(many) for _ in range(3)) < 20 * min(took_s(few) for _ in range(3))


def test_only_meant_tokens_have_their_ids_among_thousands(crowded: Tokenizer) -> None:
    mark = "\u2063"
    ids = LiteralEncoder(crowded).encode_batch(
        [f"<|reserved_12|> <{mark}|reserved_12|> <|reserved_123|>"], mark, add_special_tokens=False
    )[0]
    reserved = {crowded.token_to_id(f"<|reserved_{n}|>"): n for n in range(3000)}
    assert [reserved[each] for each in ids if each in reserved] == [12, 123]
    assert (
        crowded.decode(ids, skip_special_tokens=False) == "<|reserved_12|> <|reserved_12|> <|reserved_123|>"
    )
