from __future__ import annotations

import asyncio
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.grpc import frames
from router.grpc.call import STREAM_WINDOW_BYTES, Call, prefixed
from router.grpc.frames import Setting
from router.grpc.sender import literal
from router.grpc.status import GrpcError, StatusCode
from tests.pace import patience
from tests.router.grpc.peer import HEADERS, Peer, answer, data, goaway, headers, read_all, trailers
from tests.tiers import examples


def kinds(peer: Peer) -> list[int]:
    return [frame.kind for frame in peer.heard()]


async def failure(call: Call) -> GrpcError:
    with pytest.raises(GrpcError) as caught:
        await read_all(call)
    return caught.value


# Requests


async def test_a_small_request_is_sent_as_two_frames() -> None:
    peer = Peer()
    call = peer.begin(b"hello")
    first, second = peer.heard()
    assert (first.kind, first.flags, first.stream_id) == (frames.HEADERS, frames.END_HEADERS, call.stream_id)
    assert (second.kind, second.flags, second.payload) == (
        frames.DATA,
        frames.END_STREAM,
        prefixed(b"hello"),
    )
    assert [peer.begin().stream_id for _ in range(3)] == [3, 5, 7]


@settings(deadline=None)
@given(
    size=st.integers(0, 300_000),
    window=st.integers(0, 100_000),
    frame_bytes=st.integers(16_384, 200_000),
    updates=st.lists(st.tuples(st.booleans(), st.integers(1, 120_000)), max_size=12),
)
def test_a_request_is_sent_within_the_windows_and_whole_in_the_end(
    size: int, window: int, frame_bytes: int, updates: list[tuple[bool, int]]
) -> None:
    async def check() -> None:
        peer = Peer({Setting.INITIAL_WINDOW_SIZE: window, Setting.MAX_FRAME_SIZE: frame_bytes})
        request = bytes(range(256)) * (size // 256)
        call = peer.begin(request)
        allowed = {0: frames.DEFAULT_WINDOW_BYTES, call.stream_id: window}
        sent = b""
        ended = False
        for on_stream, increment in [*updates, (True, 1 << 20), (False, 1 << 20)]:
            for frame in peer.heard():
                if frame.kind == frames.DATA:
                    assert not ended
                    assert len(frame.payload) <= frame_bytes
                    sent += frame.payload
                    ended = bool(frame.flags & frames.END_STREAM)
            assert len(sent) <= min(allowed.values())
            stream_id = call.stream_id if on_stream else 0
            allowed[stream_id] += increment
            peer.say(frames.window_update(stream_id, increment))
        sent += b"".join(frame.payload for frame in peer.heard() if frame.kind == frames.DATA)
        assert sent == prefixed(request)

    asyncio.run(check())


async def test_a_new_setting_changes_the_windows_of_requests_in_flight() -> None:
    peer = Peer({Setting.INITIAL_WINDOW_SIZE: 10})
    peer.begin(b"x" * 95)
    assert [len(frame.payload) for frame in peer.heard()[1:]] == [10]
    peer.say(frames.settings({Setting.INITIAL_WINDOW_SIZE: 4}))
    assert kinds(peer) == [frames.SETTINGS]
    peer.say(frames.settings({Setting.INITIAL_WINDOW_SIZE: 100}))
    assert [len(frame.payload) for frame in peer.heard() if frame.kind == frames.DATA] == [90]


async def test_requests_that_wait_for_the_window_go_in_their_order() -> None:
    peer = Peer({Setting.INITIAL_WINDOW_SIZE: 1 << 20})
    first, second = peer.begin(b"x" * 70_000), peer.begin(b"y")
    assert {frame.stream_id for frame in peer.heard() if frame.kind == frames.DATA} == {first.stream_id}
    peer.say(frames.window_update(0, 1 << 20))
    streams = [frame.stream_id for frame in peer.heard() if frame.kind == frames.DATA]
    assert streams == [first.stream_id, second.stream_id]


async def test_a_request_answered_before_it_was_sent_is_not_sent_on() -> None:
    peer = Peer({Setting.INITIAL_WINDOW_SIZE: 10})
    call = peer.begin(b"x" * 100)
    peer.heard()
    peer.say(trailers(1, HEADERS + literal("grpc-status", "8")))
    assert (await failure(call)).code is StatusCode.RESOURCE_EXHAUSTED
    peer.say(frames.window_update(1, 1000) + frames.window_update(0, 1000))
    assert kinds(peer) == [frames.RST_STREAM]


# Answers


@settings(deadline=None)
@given(
    answers=st.lists(st.lists(st.binary(max_size=60), max_size=4), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 80), max_size=60),
)
def test_messages_do_not_depend_on_how_their_bytes_are_split(
    answers: list[list[bytes]], sizes: list[int]
) -> None:
    async def check() -> None:
        peer = Peer()
        calls = [peer.begin() for _ in answers]
        left = b"".join(answer(call.stream_id, *told) for call, told in zip(calls, answers, strict=True))
        for size in sizes:
            peer.say(left[:size])
            left = left[size:]
        peer.say(left)
        assert [await read_all(call) for call in calls] == answers

    asyncio.run(check())


@settings(deadline=None)
@given(
    answers=st.lists(st.lists(st.binary(max_size=30), max_size=3), min_size=1, max_size=4),
    cut=st.integers(0, 400),
)
def test_a_connection_that_dies_at_any_byte_ends_every_call_once(
    answers: list[list[bytes]], cut: int
) -> None:
    async def check() -> None:
        peer = Peer()
        ends = list[int]()
        calls = [peer.begin(on_end=partial(ends.append, number)) for number in range(len(answers))]
        told = b"".join(answer(call.stream_id, *told) for call, told in zip(calls, answers, strict=True))
        peer.say(told[:cut])
        peer.hang_up()
        assert sorted(ends) == list(range(len(calls)))
        for call, messages in zip(calls, answers, strict=True):
            if call.error is None:
                assert await read_all(call) == messages
            else:
                assert (await failure(call)).code is StatusCode.UNAVAILABLE

    asyncio.run(check())


async def test_padding_priorities_and_continuations_are_taken_off() -> None:
    peer = Peer()
    call = peer.begin()
    peer.say(
        frames.frame(
            frames.HEADERS, frames.HAS_PRIORITY | frames.PADDED, 1, b"\2" + bytes(5) + HEADERS[:9] + b"xx"
        )
    )
    peer.say(frames.frame(frames.CONTINUATION, 0, 1, HEADERS[9:15]))
    peer.say(frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, HEADERS[15:]))
    peer.say(data(1, b"\3" + prefixed(b"abc") + b"\0\0\0", frames.PADDED))
    peer.say(data(1, b"\0" + prefixed(b"def"), frames.PADDED))
    peer.say(frames.frame(0x77, 0, 1, b"unknown") + frames.frame(frames.PRIORITY, 0, 1, bytes(5)))
    peer.say(trailers(1))
    assert await read_all(call) == [b"abc", b"def"]


async def test_an_answer_of_trailers_only_is_an_end() -> None:
    peer = Peer()
    call = peer.begin()
    peer.say(trailers(1, HEADERS + literal("grpc-status", "14") + literal("grpc-message", "busy")))
    error = await failure(call)
    assert (error.code, error.details) == (StatusCode.UNAVAILABLE, "busy")


async def test_an_informational_answer_is_skipped() -> None:
    peer = Peer()
    call = peer.begin()
    peer.say(headers(1, literal(":status", "103")) + answer(1, b"a"))
    assert await read_all(call) == [b"a"]


@pytest.mark.parametrize(
    ("told", "code"),
    [
        (headers(1) + data(1, prefixed(b"a"), frames.END_STREAM), StatusCode.INTERNAL),
        (headers(1) + data(1, prefixed(b"abc")[:6]) + trailers(1), StatusCode.INTERNAL),
        (headers(1) + headers(1), StatusCode.INTERNAL),
        (data(1, prefixed(b"a")), StatusCode.INTERNAL),
        (headers(1) + data(1, b"\x01\0\0\0\0"), StatusCode.INTERNAL),
        (headers(1) + data(1, b"\0\x7f\0\0\0"), StatusCode.RESOURCE_EXHAUSTED),
        (headers(1, literal(":status", "502")), StatusCode.UNAVAILABLE),
        (frames.reset(1, frames.ErrorCode.CANCEL), StatusCode.CANCELLED),
        (frames.reset(1, frames.ErrorCode.INTERNAL_ERROR), StatusCode.INTERNAL),
        (trailers(1, literal("x", "y")), StatusCode.UNKNOWN),
    ],
)
async def test_an_invalid_answer_ends_its_call_and_no_other(told: bytes, code: StatusCode) -> None:
    peer = Peer()
    bad, good = peer.begin(), peer.begin()
    peer.say(told)
    peer.say(answer(1, b"too late") + answer(3, b"fine"))
    assert bad.error is not None
    assert bad.error.code is code
    assert await read_all(good) == [b"fine"]


@pytest.mark.parametrize(
    "told",
    [
        frames.head(1 << 20, frames.DATA, 0, 1),
        data(7, b"never opened"),
        data(2, b"even"),
        data(0, b"zero"),
        data(1, b"\x09abc", frames.PADDED),
        frames.frame(frames.HEADERS, 0, 1, HEADERS) + data(1, b""),
        frames.frame(frames.CONTINUATION, 0, 1, b""),
        headers(1, b"\xff\xff\xff\xff\xff\xff"),
        headers(1, b"\xbe"),  # a field of a table that we do not keep
        frames.frame(frames.SETTINGS, 0, 0, b"12345"),
        frames.settings({Setting.INITIAL_WINDOW_SIZE: 1 << 31}),
        frames.settings({Setting.MAX_FRAME_SIZE: 100}),
        frames.window_update(0, 0),
        frames.window_update(0, (1 << 31) - 1),
        frames.frame(frames.PING, 0, 0, b"short"),
        frames.frame(frames.GOAWAY, 0, 0, b"short"),
        frames.frame(frames.RST_STREAM, 0, 1, b""),
        frames.frame(frames.PUSH_PROMISE, 0, 1, bytes(4)),
        frames.frame(frames.HEADERS, 0, 1, b"x" * 16_000)
        + frames.frame(frames.CONTINUATION, 0, 1, b"x" * 16_000) * 20,
    ],
)
async def test_a_server_that_breaks_the_protocol_is_disconnected(
    told: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    peer = Peer()
    call = peer.begin()
    peer.heard()
    peer.say(told)
    assert kinds(peer)[-1] == frames.GOAWAY
    assert peer.transport.closed
    assert not peer.connection.has_room
    assert (await failure(call)).code is StatusCode.UNAVAILABLE
    peer.connection.connection_lost(None)
    assert "broke HTTP/2" in caplog.text


@settings(deadline=None, max_examples=examples(75))
@given(
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, 255), st.integers(0, 5), st.binary(max_size=24)))
)
def test_no_frames_do_more_than_end_the_connection(
    told: list[tuple[int, int, int, bytes]],
) -> None:
    async def check() -> None:
        peer = Peer()
        calls = [peer.begin(), peer.begin()]
        for kind, flags, stream_id, payload in told:
            if peer.transport.closed:
                break
            peer.say(frames.frame(kind, flags, stream_id, payload))
        peer.hang_up()
        assert all(call.ended or call in peer.refusals for call in calls)

    asyncio.run(check())


# Windows


async def test_a_slow_reader_holds_back_only_its_own_stream() -> None:
    peer = Peer()
    slow, quick = peer.begin(), peer.begin()
    peer.heard()
    peer.say(headers(1) + headers(3))
    message = b"x" * 995
    for _ in range(STREAM_WINDOW_BYTES // 1000):
        peer.say(data(1, prefixed(message)))
        peer.say(data(3, prefixed(message)))
        assert await quick.read() == message
    updates = {frame.stream_id for frame in peer.heard() if frame.kind == frames.WINDOW_UPDATE}
    assert updates == {quick.stream_id}
    for _ in range(STREAM_WINDOW_BYTES // 1000):
        assert await slow.read() == message
    (update,) = peer.heard()
    assert update.stream_id == slow.stream_id


async def test_a_server_that_ignores_the_window_loses_the_stream() -> None:
    peer = Peer()
    call = peer.begin()
    peer.say(headers(1))
    for _ in range(STREAM_WINDOW_BYTES // 16_000 + 1):
        peer.say(data(1, prefixed(b"x" * 15_995)))
    assert call.error is not None
    assert peer.heard()[-1].kind == frames.RST_STREAM


async def test_a_message_larger_than_the_window_comes_through() -> None:
    peer = Peer()
    call = peer.begin(max_message_bytes=10 << 20)
    peer.say(headers(1))
    message = bytes(1 << 20)
    left = prefixed(message)
    window = STREAM_WINDOW_BYTES
    while left:
        size = min(window, 16_384, len(left))
        assert size > 0, "the server waits for ever"
        peer.say(data(1, left[:size]))
        left = left[size:]
        window -= size
        for frame in peer.heard():
            if frame.kind == frames.WINDOW_UPDATE and frame.stream_id == 1:
                window += int.from_bytes(frame.payload, "big")
    peer.say(trailers(1))
    assert await read_all(call) == [message]


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60_000)), max_size=60))
def test_a_streams_window_and_its_unread_bytes_always_add_up_to_one_window(
    steps: list[tuple[bool, int]],
) -> None:
    async def check() -> None:
        peer = Peer()
        call = peer.begin()
        peer.say(headers(1))
        window, unread = STREAM_WINDOW_BYTES, 0
        for reads, size in steps:
            if reads and unread:
                unread -= len(await call.read() or b"") + 5
            else:
                payload = prefixed(bytes(size))
                if len(payload) > window:
                    continue
                for start in range(0, len(payload), 16_384):
                    peer.say(data(1, payload[start : start + 16_384]))
                window -= len(payload)
                unread += len(payload)
            for frame in peer.heard():
                if frame.kind == frames.WINDOW_UPDATE and frame.stream_id == 1:
                    window += int.from_bytes(frame.payload, "big")
            assert call.error is None
            assert window + unread <= STREAM_WINDOW_BYTES
            assert unread > 0 or window > STREAM_WINDOW_BYTES // 2

    asyncio.run(check())


async def test_a_call_without_a_reader_runs_to_its_end() -> None:
    peer = Peer()
    call = peer.begin()
    peer.say(headers(1))
    call.discard()
    for _ in range(3 * STREAM_WINDOW_BYTES // 16_000):
        peer.say(data(1, prefixed(b"x" * 15_995)))
    peer.say(trailers(1))
    assert call.ended
    assert call.error is None
    assert await call.read() is None


async def test_the_connections_window_is_replenished_even_for_cancelled_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.grpc.connection._WINDOW_BYTES", 100_000)
    peer = Peer()
    peer.begin().cancel()
    peer.heard()
    for _ in range(4):
        peer.say(data(1, bytes(16_000)))
    (update,) = peer.heard()
    assert (update.kind, update.stream_id) == (frames.WINDOW_UPDATE, 0)
    assert int.from_bytes(update.payload, "big") == 64_000


# Ends


async def test_a_cancelled_call_resets_its_stream_once_and_frees_its_reader() -> None:
    peer = Peer()
    call = peer.begin()
    reading = asyncio.ensure_future(call.read())
    await asyncio.sleep(0)
    peer.heard()
    call.cancel()
    call.cancel()
    with pytest.raises(GrpcError) as caught:
        await reading
    assert caught.value.code is StatusCode.CANCELLED
    (reset,) = peer.heard()
    assert (reset.kind, reset.stream_id, reset.payload[-1]) == (frames.RST_STREAM, 1, 8)
    peer.say(answer(1, b"late") + frames.reset(1, frames.ErrorCode.CANCEL))
    assert peer.connection.open_calls == 0


async def test_two_readers_of_one_call_are_an_error() -> None:
    call = Peer().begin()
    reading = asyncio.ensure_future(call.read())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="already has a reader"):
        await call.read()
    reading.cancel()


async def test_a_deadline_ends_a_call_without_an_answer() -> None:
    peer = Peer()
    call = Call("/s/M", b"", 100)
    call.set_deadline(0.02)
    peer.connection.begin(call)
    assert (await failure(call)).code is StatusCode.DEADLINE_EXCEEDED
    assert kinds(peer)[-1] == frames.RST_STREAM


async def test_pings_and_settings_are_acknowledged() -> None:
    peer = Peer()
    peer.say(frames.frame(frames.PING, 0, 0, b"12345678") + frames.settings({}))
    peer.say(
        frames.frame(frames.PING, frames.ACK, 0, b"12345678") + frames.frame(frames.SETTINGS, frames.ACK, 0)
    )
    ping, settings_ = peer.heard()
    assert (ping.kind, ping.flags, ping.payload) == (frames.PING, frames.ACK, b"12345678")
    assert (settings_.kind, settings_.flags, settings_.payload) == (frames.SETTINGS, frames.ACK, b"")


async def test_after_goaway_accepted_calls_finish_and_the_rest_go_to_another_connection() -> None:
    peer = Peer()
    kept, refused = peer.begin(), peer.begin()
    peer.say(goaway((1 << 31) - 1) + goaway(1))
    assert not peer.connection.has_room
    assert peer.refusals == [refused]
    peer.say(answer(1, b"done"))
    assert await read_all(kept) == [b"done"]
    await asyncio.sleep(0)
    assert peer.changes > 0


async def test_a_refused_stream_goes_to_another_connection() -> None:
    peer = Peer()
    call = peer.begin()
    peer.say(frames.reset(1, frames.ErrorCode.REFUSED_STREAM))
    assert peer.refusals == [call]
    assert not call.ended


async def test_a_silent_server_is_pinged_and_then_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.grpc.connection._SILENCE_S", 0.05)
    monkeypatch.setattr("router.grpc.connection._PING_TIMEOUT_S", patience(0.5))
    peer = Peer()
    call = peer.begin()
    peer.heard()
    asked = 0
    while not peer.transport.closed:
        await asyncio.sleep(0.001)
        for ping in peer.heard():
            assert ping.kind == frames.PING
            asked += 1
            if asked == 1:
                peer.say(frames.frame(frames.PING, frames.ACK, 0, ping.payload))
    assert asked == 2
    peer.connection.connection_lost(None)
    assert "pings" in (await failure(call)).details


async def test_a_connection_has_as_many_streams_as_the_server_allows() -> None:
    peer = Peer({Setting.MAX_CONCURRENT_STREAMS: 2})
    calls = [peer.begin(), peer.begin()]
    room = [peer.connection.has_room]
    calls[0].cancel()
    assert [*room, peer.connection.has_room] == [False, True]
    await asyncio.sleep(0)
    assert peer.changes == 1
