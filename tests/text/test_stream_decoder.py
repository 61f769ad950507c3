"""What a stream shows, held against decoding at once."""

import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from python_backend.text.stream_decoder import StreamDecoder
from python_backend.text.tokenizer import Tokenizer
from tests.text.corpus import TEXTS
from tests.text.tokenizer_kinds import LOSSLESS, TRAINED, byte_ids, tokenizer_of
from tests.tiers import examples

kinds = st.sampled_from(TRAINED)


def streamed(tokenizer: Tokenizer, chunks: Sequence[Sequence[int]], skip_special_tokens: bool = True) -> str:
    decoder = StreamDecoder(tokenizer, skip_special_tokens)
    return "".join([decoder.push(chunk) for chunk in chunks]) + decoder.finish()


def one_by_one(ids: Sequence[int]) -> list[list[int]]:
    return [[token_id] for token_id in ids]


def cut(ids: list[int], lengths: Sequence[int]) -> Iterator[list[int]]:
    """`ids` in chunks of these lengths, and the rest."""
    yield from (ids[start:end] for start, end in pairwise(accumulate(lengths, initial=0)))
    yield ids[sum(lengths) :]


class TestWholeTexts:
    def test_at_least_two_hundred_texts_are_tried(self) -> None:
        assert len(TEXTS) >= 200

    def test_token_by_token_gives_the_text_of_decoding_at_once(self, tokenizer: Tokenizer, kind: str) -> None:
        for text in TEXTS:
            [ids] = tokenizer.encode_batch([text], add_special_tokens=False)
            shown = streamed(tokenizer, one_by_one(ids))
            assert shown == tokenizer.decode(ids)
            assert "\ufffd" not in shown
            if kind in LOSSLESS:
                assert shown == (text.replace("▁", " ") if kind == "byte_fallback" else text)

    def test_special_tokens_show_when_they_are_not_skipped(self, tokenizer: Tokenizer) -> None:
        [ids] = tokenizer.encode_batch(["one two 😀 three"], add_special_tokens=False)
        special = sorted(tokenizer.special_ids)
        mixed = [token_id for pair in zip(ids, special * len(ids), strict=False) for token_id in pair]
        assert streamed(tokenizer, one_by_one(mixed), False) == tokenizer.decode(mixed, False)
        assert streamed(tokenizer, one_by_one(mixed)) == tokenizer.decode(mixed) == tokenizer.decode(ids)

    def test_ids_beyond_the_vocabulary_add_nothing(self, tokenizer: Tokenizer) -> None:
        [ids] = tokenizer.encode_batch(["one two"], add_special_tokens=False)
        odd = [10_000_000, *ids, 10_000_001, *ids]
        assert streamed(tokenizer, one_by_one(odd)) == tokenizer.decode(odd) == tokenizer.decode(ids + ids)

    @given(kind=kinds, text=st.sampled_from(TEXTS), lengths=st.lists(st.integers(0, 12)))
    @settings(deadline=None)
    def test_the_text_does_not_depend_on_how_the_ids_are_chunked(
        self, kind: str, text: str, lengths: list[int]
    ) -> None:
        tokenizer = tokenizer_of(kind)
        [ids] = tokenizer.encode_batch([text], add_special_tokens=False)
        assert streamed(tokenizer, list(cut(ids, lengths))) == tokenizer.decode(ids)

    @given(kind=kinds, text=st.text())
    @settings(max_examples=examples(100), deadline=None)
    def test_any_text_streams_as_it_decodes(self, kind: str, text: str) -> None:
        tokenizer = tokenizer_of(kind)
        [ids] = tokenizer.encode_batch([text], add_special_tokens=False)
        assert streamed(tokenizer, one_by_one(ids)) == tokenizer.decode(ids)


class TestAnyIds:
    """Ids as a confused model might write them: characters broken anywhere, special tokens in between."""

    @given(data=st.data(), kind=st.sampled_from([kind for kind in TRAINED if kind != "byte_fallback"]))
    @settings(max_examples=examples(100), deadline=None)
    def test_before_plain_text_they_stream_as_they_decode(self, data: st.DataObject, kind: str) -> None:
        tokenizer = tokenizer_of(kind)
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 5)))
        [plain] = tokenizer.encode_batch(["one"], add_special_tokens=False)
        skip = data.draw(st.booleans())
        assert streamed(tokenizer, one_by_one(ids + plain), skip) == tokenizer.decode(ids + plain, skip)

    @given(data=st.data(), kind=kinds, skip=st.booleans())
    @settings(max_examples=examples(100), deadline=None)
    def test_one_chunk_and_many_show_the_same(self, data: st.DataObject, kind: str, skip: bool) -> None:
        tokenizer = tokenizer_of(kind)
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 5)))
        lengths = data.draw(st.lists(st.integers(0, 5)))
        assert streamed(tokenizer, list(cut(ids, lengths)), skip) == streamed(tokenizer, [ids], skip)

    @given(data=st.data())
    @settings(max_examples=examples(100), deadline=None)
    def test_only_the_start_of_a_character_is_held_back(self, data: st.DataObject) -> None:
        tokenizer = tokenizer_of("byte_level")
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size)))
        decoder = StreamDecoder(tokenizer)
        shown = ""
        for count, token_id in enumerate(ids, start=1):
            shown += decoder.push([token_id])
            # Two of them for half a surrogate (ED A0 to ED BF), of which Python waits for the third byte.
            assert tokenizer.decode(ids[:count]) in (shown, shown + "\ufffd", shown + "\ufffd\ufffd")

    @given(broken=st.lists(st.binary(max_size=6)))
    @settings(deadline=None)
    def test_broken_runs_of_byte_tokens_stream_as_they_decode(self, broken: list[bytes]) -> None:
        """But for runs that also hold whole characters, which the library would replace too."""
        tokenizer = tokenizer_of("byte_fallback")
        [plain] = tokenizer.encode_batch(["one"], add_special_tokens=False)
        ids = list(plain)
        for run in broken:
            if run.decode(errors="replace").strip("\ufffd") == "" or "\ufffd" not in run.decode(
                errors="replace"
            ):
                ids += [*byte_ids(tokenizer, run), *plain]
        assert streamed(tokenizer, one_by_one(ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
class TestBrokenCharacters:
    def test_an_incomplete_character_at_the_end_is_dropped(self, kind: str) -> None:
        tokenizer = tokenizer_of(kind)
        for cut_off in ("é", "字", "😀"):
            for length in range(1, len(cut_off.encode())):
                ids = byte_ids(tokenizer, b"ab" + cut_off.encode()[:length])
                assert streamed(tokenizer, one_by_one(ids)) == streamed(tokenizer, [ids]) == "ab"

    def test_a_character_shows_with_its_last_byte(self, kind: str) -> None:
        tokenizer = tokenizer_of(kind)
        decoder = StreamDecoder(tokenizer)
        ids = byte_ids(tokenizer, "a😀b".encode())
        assert [decoder.push([token_id]) for token_id in ids] == ["a", "", "", "", "😀", "b"]

    def test_a_chunk_that_ends_inside_a_character_shows_what_comes_before_it(self, kind: str) -> None:
        tokenizer = tokenizer_of(kind)
        assert StreamDecoder(tokenizer).push(byte_ids(tokenizer, "abc😀".encode()[:-1])) == "abc"

    def test_bytes_that_cannot_become_a_character_show_at_once(self, kind: str) -> None:
        tokenizer = tokenizer_of(kind)
        decoder = StreamDecoder(tokenizer)
        ids = byte_ids(tokenizer, b"\x80\xff\xc0")
        assert [decoder.push([token_id]) for token_id in ids] == ["\ufffd"] * 3

    def test_a_replacement_character_of_the_model_is_kept(self, kind: str) -> None:
        tokenizer = tokenizer_of(kind)
        ids = byte_ids(tokenizer, "a\ufffd".encode())
        assert streamed(tokenizer, one_by_one(ids)) == "a\ufffd" == tokenizer.decode(ids)

    def test_a_special_token_inside_a_character_does_not_break_it(self, kind: str) -> None:
        tokenizer = tokenizer_of(kind)
        first, *rest = byte_ids(tokenizer, "é".encode())
        assert streamed(tokenizer, one_by_one([first, tokenizer.eos_id, *rest])) == "é"


class TestByteFallback:
    def test_characters_shown_before_a_broken_one_stay(self) -> None:
        tokenizer = tokenizer_of("byte_fallback")
        ids = byte_ids(tokenizer, "字".encode() + b"\xff")
        assert streamed(tokenizer, one_by_one(ids)) == "字\ufffd"
        assert tokenizer.decode(ids) == "\ufffd" * 4

    def test_only_the_first_space_of_a_text_is_stripped(self) -> None:
        tokenizer = tokenizer_of("byte_fallback")
        for text in ("one", " one", "  one", " ", "   "):
            [ids] = tokenizer.encode_batch([text], add_special_tokens=False)
            assert streamed(tokenizer, one_by_one(ids)) == text

    def test_more_than_one_leading_character_can_be_stripped(self) -> None:
        backend = Backend(models.WordLevel({"x": 0, "y": 1}, unk_token="x"))
        backend.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip("x", 2, 0)])
        tokenizer = Tokenizer(backend, eos_ids=[1])
        for ids in ([0], [0, 0, 1], [0, 1, 0], [0, 0, 0, 0], [1, 0]):
            assert streamed(tokenizer, one_by_one(ids)) == tokenizer.decode(ids)


class TestCost:
    def test_a_push_of_ten_ids_takes_less_than_15_us(self) -> None:
        tokenizer = tokenizer_of("byte_level")
        [ids] = tokenizer.encode_batch(["".join(TEXTS)], add_special_tokens=False)
        chunks = [ids[start : start + 10] for start in range(0, 5000, 10)]
        streamed(tokenizer, chunks)
        assert best_push_s(tokenizer, chunks) < 15e-6

    def test_a_long_run_of_broken_bytes_does_not_slow_decoding_down(self) -> None:
        tokenizer = tokenizer_of("byte_fallback")
        assert best_push_s(tokenizer, one_by_one(byte_ids(tokenizer, b"\xff") * 3000)) < 15e-6


def best_push_s(tokenizer: Tokenizer, chunks: list[list[int]]) -> float:
    """The best of several passes, for the machine may be busy."""
    passes_s = []
    for _ in range(5):
        decoder = StreamDecoder(tokenizer)
        begin_s = time.thread_time()
        for chunk in chunks:
            decoder.push(chunk)
        passes_s.append((time.thread_time() - begin_s) / len(chunks))
    return min(passes_s)
