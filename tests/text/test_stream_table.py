"""Many answers at once: each gets its own text, and none leaves anything behind."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from python_backend.text.pieces import UnsupportedDecoder
from python_backend.text.stream_table import StreamTable, TextLost
from python_backend.text.tokenizer import Tokenizer
from tests.text.corpus import EMOJI, TEXTS
from tests.text.tokenizer_kinds import TRAINED, byte_ids, tokenizer_of


@pytest.fixture
def byte_level() -> Tokenizer:
    return tokenizer_of("byte_level")


def test_each_request_and_beam_has_its_own_text(byte_level: Tokenizer) -> None:
    table = StreamTable(byte_level)
    keys = [("one", 0), ("one", 1), ("two", 0)]
    answers = [byte_level.encode_batch([text], False)[0] for text in EMOJI[:3]]
    shown = [""] * 3
    for position in range(max(map(len, answers))):
        for index, (request_id, beam) in enumerate(keys):
            ids = answers[index][position : position + 1]
            shown[index] += table.feed(request_id, beam, ids, is_last=False, now_s=0.0)
    assert tuple(shown) == EMOJI[:3]
    assert len(table) == 3


@pytest.mark.parametrize("seen", [0, 1, 5])
def test_a_chunk_before_which_another_is_missing_is_refused(byte_level: Tokenizer, seen: int) -> None:
    table = StreamTable(byte_level)
    for turn in range(seen):
        table.feed("one", 0, [5], is_last=False, now_s=0.0, turns=(turn, turn + 1))
    with pytest.raises(TextLost):
        table.feed("one", 0, [5], is_last=False, now_s=0.0, turns=(seen + 1, seen + 2))
    assert len(table) == 0


def test_the_last_chunk_frees_the_stream(byte_level: Tokenizer) -> None:
    table = StreamTable(byte_level)
    first, *rest = byte_ids(byte_level, "é".encode())
    assert table.feed("one", 0, [first], is_last=False, now_s=0.0) == ""
    assert table.feed("one", 0, rest, is_last=True, now_s=0.0) == "é"
    assert len(table) == 0


def test_an_empty_last_chunk_frees_the_stream_and_drops_half_a_character(byte_level: Tokenizer) -> None:
    table = StreamTable(byte_level)
    assert table.feed("one", 0, byte_ids(byte_level, "aé".encode()[:-1]), is_last=False, now_s=0.0) == "a"
    assert table.feed("one", 0, [], is_last=True, now_s=0.0) == ""
    assert len(table) == 0


def test_an_answer_in_one_chunk_leaves_nothing_behind(byte_level: Tokenizer) -> None:
    table = StreamTable(byte_level)
    assert table.feed("one", 0, byte_ids(byte_level, b"whole"), is_last=True, now_s=0.0) == "whole"
    assert len(table) == 0


def test_a_request_without_an_id_has_no_stream(byte_level: Tokenizer) -> None:
    table = StreamTable(byte_level)
    first, second = byte_ids(byte_level, "é".encode())
    assert table.feed("", 0, [first], is_last=False, now_s=0.0) == ""
    assert table.feed("", 0, [second], is_last=False, now_s=0.0) == "\ufffd"
    assert table.feed("", 0, [first, second], is_last=False, now_s=0.0) == "é"
    assert len(table) == 0


def test_special_tokens_show_when_they_are_not_skipped(byte_level: Tokenizer) -> None:
    table = StreamTable(byte_level, skip_special_tokens=False)
    assert table.feed("one", 0, [byte_level.eos_id], is_last=True, now_s=0.0) == "</s>"


def test_an_answer_shows_special_tokens_on_request(byte_level: Tokenizer) -> None:
    table = StreamTable(byte_level)
    asked: list[str] = []

    def shows() -> bool:
        asked.append("once")
        return True

    ids = [byte_level.eos_id]
    assert table.feed("one", 0, ids, is_last=False, now_s=0.0, shows_special=shows) == "</s>"
    assert table.feed("one", 0, ids, is_last=True, now_s=0.0, shows_special=shows) == "</s>"
    assert table.feed("two", 0, ids, is_last=True, now_s=0.0, shows_special=lambda: False) == ""
    assert asked == ["once"]


def test_an_abandoned_stream_is_dropped_after_the_idle_timeout(byte_level: Tokenizer) -> None:
    table = StreamTable(byte_level, idle_timeout_s=10.0)
    table.feed("abandoned", 0, [], is_last=False, now_s=0.0)
    table.feed("used", 0, [], is_last=False, now_s=0.0)
    table.feed("used", 0, [], is_last=False, now_s=9.0)
    table.expire(10.0)
    assert len(table) == 2
    table.expire(10.1)
    assert len(table) == 1
    table.feed("other", 0, [], is_last=True, now_s=19.1)
    assert len(table) == 0


def test_beyond_the_limit_the_least_recently_used_stream_is_dropped(byte_level: Tokenizer) -> None:
    table = StreamTable(byte_level, max_streams=2)
    first, second = byte_ids(byte_level, "é".encode())
    table.feed("old", 0, [first], is_last=False, now_s=0.0)
    table.feed("unused", 0, [first], is_last=False, now_s=0.0)
    table.feed("old", 0, [], is_last=False, now_s=0.0)
    table.feed("new", 0, [first], is_last=False, now_s=0.0)
    assert len(table) == 2
    assert table.feed("old", 0, [second], is_last=True, now_s=0.0) == "é"
    assert table.feed("new", 0, [second], is_last=True, now_s=0.0) == "é"
    assert table.feed("unused", 0, [second], is_last=True, now_s=0.0) == "\ufffd"


def test_ids_that_cannot_be_decoded_free_the_stream(byte_level: Tokenizer) -> None:
    table = StreamTable(byte_level)
    table.feed("one", 0, [], is_last=False, now_s=0.0)
    with pytest.raises(OverflowError):
        table.feed("one", 0, [-1], is_last=False, now_s=0.0)
    assert len(table) == 0


def test_bad_settings_are_refused_with_their_name(byte_level: Tokenizer) -> None:
    with pytest.raises(ValueError, match="max_streams must be at least 1, not 0"):
        StreamTable(byte_level, max_streams=0)
    with pytest.raises(ValueError, match="idle_timeout_s must be above 0, not 0"):
        StreamTable(byte_level, idle_timeout_s=0)


def test_a_tokenizer_that_cannot_be_streamed_is_refused_at_the_start() -> None:
    backend = Backend(models.WordLevel({"a": 0}, unk_token="a"))
    backend.decoder = decoders.BPEDecoder()
    with pytest.raises(UnsupportedDecoder):
        StreamTable(Tokenizer(backend, eos_ids=[0]))


@given(
    kind=st.sampled_from(TRAINED),
    texts=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=6),
    random=st.randoms(use_true_random=True),
)
@settings(deadline=None)
def test_interleaved_answers_are_whole_and_all_are_freed(kind: str, texts: list[str], random: Random) -> None:
    tokenizer = tokenizer_of(kind)
    left = dict(enumerate(tokenizer.encode_batch(texts, add_special_tokens=False)))
    whole = {index: tokenizer.decode(ids) for index, ids in left.items()}
    shown = dict.fromkeys(left, "")
    table = StreamTable(tokenizer)
    now_s = 0.0
    while left:
        index = random.choice(list(left))
        count = random.randint(0, 10)
        now_s += random.random()
        chunk, left[index] = left[index][:count], left[index][count:]
        is_last = not left[index] and random.random() < 0.5
        shown[index] += table.feed(f"request-{index}", 0, chunk, is_last, now_s)
        if is_last:
            del left[index]
    assert shown == whole
    assert len(table) == 0


@given(
    calls=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 1), st.booleans(), st.floats(0, 20))),
    max_streams=st.integers(1, 5),
)
@settings(deadline=None)
def test_only_recent_unfinished_answers_are_kept(
    calls: list[tuple[int, int, bool, float]], max_streams: int
) -> None:
    table = StreamTable(tokenizer_of("byte_level"), idle_timeout_s=30.0, max_streams=max_streams)
    last_used_s: dict[tuple[int, int], float] = {}
    now_s = 0.0
    for request, beam, is_last, wait_s in calls:
        now_s += wait_s
        table.feed(f"request-{request}", beam, [1], is_last, now_s)
        last_used_s.pop((request, beam), None)
        if not is_last:
            last_used_s[request, beam] = now_s
        recent = [used_s for used_s in last_used_s.values() if now_s - used_s <= 30.0]
        assert len(table) <= min(len(recent), max_streams)


@given(kind=st.sampled_from(TRAINED), text=st.sampled_from(TEXTS))
@settings(deadline=None)
def test_the_bytes_of_tokens_are_those_of_their_text(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    [ids] = tokenizer.encode_batch([text], add_special_tokens=False)
    table = StreamTable(tokenizer)
    shown = [
        token
        for token_id in ids
        for token in table.feed_each("one", 0, [[token_id, *ids[:2]]], is_last=False, now_s=0.0)
    ]
    assert "".join(token.text for token in shown) == tokenizer.decode(ids)
    assert b"".join(token.pieces[0] for token in shown if not token.is_hidden).decode() == tokenizer.decode(
        ids
    )
    assert all(len(token.pieces) == 1 + len(ids[:2]) for token in shown)


def test_half_a_character_has_its_bytes_and_a_hidden_token_its_name(byte_level: Tokenizer) -> None:
    table = StreamTable(byte_level)
    first, second = byte_ids(byte_level, "é".encode())
    hidden = min(byte_level.special_ids)
    rows = [[first, second], [second, hidden], [hidden], [10_000_000]]
    half, whole, special, unknown = table.feed_each("one", 0, rows, is_last=True, now_s=0.0)
    assert half == ("", False, ["é".encode()[:1], "é".encode()[1:]])
    assert whole == ("é", False, ["é".encode()[1:], b"<unk>"])
    assert special == ("", True, [b"<unk>"])
    assert unknown == ("", True, [b""])
    assert len(table) == 0
