from __future__ import annotations

import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.generation import Delta
from router.http.connection import Limits
from router.request.text import patience_s
from tests.fakes.pipeline import words
from tests.router.raw import RawClient, chat_request
from tests.router.running import RunningRouter, running_router

TOKEN_BYTES = 500  # in Triton, which keeps what is not read


@given(tokens=st.integers(1, 1_000_000), lasted_s=st.floats(0.001, 10_000))
def test_a_client_that_does_not_read_makes_triton_keep_at_most_a_few_megabytes(
    tokens: int, lasted_s: float
) -> None:
    pace = tokens / lasted_s
    behind = pace * patience_s(tokens, lasted_s)
    assert behind * TOKEN_BYTES <= max(10 << 20, pace * TOKEN_BYTES)


@given(tokens=st.integers(0, 300))
def test_a_slow_reader_has_half_a_minute_at_the_pace_of_a_usual_model(tokens: int) -> None:
    assert patience_s(tokens, lasted_s=1.0) >= 30


@pytest.fixture
async def patient() -> AsyncIterator[RunningRouter]:
    async with running_router(Limits(write_stall_timeout_s=600, write_buffer_bytes=1 << 14)) as running:
        yield running


async def test_a_client_that_stops_reading_a_fast_answer_is_dropped_early(patient: RunningRouter) -> None:
    patient.pipeline.script = lambda call: [Delta("x" * 10_000, 1_000, 1)] * 5_000
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", patient.port))
        reader.sendall(chat_request(stream=True))
        await patient.until(lambda: len(patient.pipeline.generations) == 1)
        await patient.until(lambda: patient.permits.open_count == 0)
    assert patient.pipeline.generations[0].stopped


@contextmanager
def garbage() -> Iterator[set[str]]:
    """The types of what only the collector could free, of the router's own."""
    found: set[str] = set()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        kinds = {f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage}
        found.update(kind for kind in kinds if kind.startswith("router."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def leave(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: [Delta("a", 1, 1), 60.0, *words("b")]
    client = await RawClient.connect(router.port)
    await client.send(chat_request(stream=True))
    await client.read_until(b'"content":"a"')
    await client.close()
    await router.until(lambda: router.permits.open_count == 0)


async def fail(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: [Delta("a", 1, 1), Delta("", finish="cancelled")]
    assert (await router.chat(n=2)).status_code == 503


async def finish(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: words("a", "b")
    for stream in (False, True):
        assert (await router.chat(stream=stream, n=2)).status_code == 200


@pytest.mark.parametrize("end", [finish, leave, fail])
async def test_a_request_leaves_nothing_behind_for_the_garbage_collector(
    router: RunningRouter, end: Callable[[RunningRouter], Awaitable[None]]
) -> None:
    """Which seldom comes: thousands that leave would be megabytes."""
    await end(router)
    with garbage() as found:
        await end(router)
        await router.http.aclose()
        await router.until(lambda: router.listener.connection_count == 0)
    assert not found
