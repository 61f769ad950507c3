from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.grpc.call import MessageReader, prefixed
from router.grpc.status import GrpcError, StatusCode


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(1, 60), max_size=30))
def test_messages_are_the_same_however_their_bytes_are_split(messages: list[bytes], sizes: list[int]) -> None:
    reader = MessageReader(max_message_bytes=1000)
    left = b"".join(map(prefixed, messages))
    found = []
    for size in sizes:
        found += reader.feed(left[:size])
        left = left[size:]
    found += reader.feed(left)
    assert found == messages
    assert reader.held_bytes == 0


def test_an_incomplete_message_waits_for_its_missing_bytes() -> None:
    reader = MessageReader(max_message_bytes=1000)
    whole = prefixed(b"abcdef")
    for byte in whole[:-1]:
        assert reader.feed(bytes((byte,))) == []
    assert reader.held_bytes == len(whole) - 1
    assert reader.feed(whole[-1:]) == [b"abcdef"]


def test_a_message_over_the_limit_is_refused_by_its_length_alone() -> None:
    with pytest.raises(GrpcError, match="1001 bytes is larger than 1000") as caught:
        MessageReader(max_message_bytes=1000).feed((1001).to_bytes(5, "big"))
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED


def test_a_compressed_message_is_refused() -> None:
    with pytest.raises(GrpcError, match="compressed"):
        MessageReader(max_message_bytes=1000).feed(b"\x01\0\0\0\x01x")
