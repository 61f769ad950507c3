"""`python -m benchmarks.router.security_costs`: what a request pays for each check, in µs.

One streamed chat of eight tokens goes through the whole router in one process, without sockets; a check is
taken out and put back chat by chat. Of each the quicker quarter counts, since others on the machine can only
add to it. The encoding of literal text is Triton's part.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from unittest.mock import patch

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from python_backend.text.literal_encoder import LiteralEncoder
from router.core.generation import LITERAL_MARK
from router.core.tenant import Limits
from router.http.exchange import Exchange, Request
from router.http.inner_exchange import InnerWire
from router.openai import chat
from router.routing.models import ServedModel
from tests.fakes.pipeline import words
from tests.router.running import MODEL, RunningRouter, running_router
from tests.text.tokenizer_kinds import byte_level_backend

_ROUNDS = 1_000
_TOKENS = ("word ",) * 8
_TEXT = "What people ask is a few sentences long, and has nothing special in it. " * 8
_LARGE = "x" * (40 << 10)
PATH = "/v1/chat/completions"


@dataclass(frozen=True)
class Case:
    """`without` takes the check out for as long as it is entered."""

    name: str
    content: str
    headers: dict[str, str]
    without: Callable[[RunningRouter], AbstractContextManager[object]]


def _no_page_check(router: RunningRouter) -> AbstractContextManager[object]:
    return patch.object(router.app._doorkeeper, "check_page", lambda method, headers: None)


def _no_entry(router: RunningRouter) -> AbstractContextManager[object]:
    return patch.object(router.permits, "enter", lambda record, scope, asks_model: None)


def _no_aside(router: RunningRouter) -> AbstractContextManager[object]:
    return patch.object(chat, "LARGE_BYTES", 1 << 30)


@contextmanager
def _no_marks(router: RunningRouter) -> Iterator[None]:
    model = router.parts.models.lineups[MODEL].stable
    assert isinstance(model, ServedModel)
    assert model.template is not None
    kept, model.template._literal = model.template._literal, None
    try:
        yield
    finally:
        model.template._literal = kept


_OWN_PAGE = {"origin": "http://localhost:8080", "sec-fetch-site": "same-origin"}
CASES = (
    Case("nothing removed: the noise", _TEXT, {}, lambda router: nullcontext()),
    Case("Host and Origin, of a web page", _TEXT, _OWN_PAGE, _no_page_check),
    Case("limits of requests, asked first", _TEXT, {}, _no_entry),
    Case("a thread taking turns, for 40 KiB", _LARGE, {}, _no_aside),
    Case("a search for special tokens in messages", _TEXT, {}, _no_marks),
)


def _request(case: Case, key: str) -> Request:
    body = {"model": MODEL, "messages": [{"role": "user", "content": case.content}], "stream": True}
    headers = {"host": "localhost:8080", "content-type": "application/json", "authorization": f"Bearer {key}"}
    return Request("POST", PATH, {**headers, **case.headers}, msgspec.json.encode(body))


async def _chat_us(router: RunningRouter, request: Request) -> float:
    """CPU time of this process, threads included."""
    exchange = Exchange(request, InnerWire())
    began_s = time.process_time()
    await router.app(exchange)
    took_s = time.process_time() - began_s
    if exchange.status != 200:
        raise RuntimeError(f"not an answer: {exchange.status}")
    return took_s * 1e6


async def measure(router: RunningRouter, case: Case, key: str, rounds: int) -> tuple[float, float]:
    """Without and with the check, µs of a whole chat."""
    request = _request(case, key)
    without: list[float] = []
    as_served: list[float] = []
    for number in range(rounds):
        for is_without in (True, False) if number % 2 else (False, True):
            with case.without(router) if is_without else nullcontext():
                took_us = await _chat_us(router, request)
            (without if is_without else as_served).append(took_us)
    return _undisturbed(without), _undisturbed(as_served)


def _undisturbed(values: list[float]) -> float:
    """The mean of the lower quarter, without the very lowest: others on the machine can only add to it."""
    quarter = sorted(values)[len(values) // 20 : len(values) // 4]
    return sum(quarter) / len(quarter)


def _least_us(work: Callable[[], object]) -> float:
    found = []
    for _ in range(_ROUNDS):
        began_s = time.process_time()
        work()
        found.append((time.process_time() - began_s) * 1e6)
    return _undisturbed(found)


def head_us(router: RunningRouter, key: str) -> float:
    """What a large body is asked about before it is read."""
    request = _request(CASES[0], key)
    return _least_us(lambda: router.app.body_terms(request.method, request.path, request.headers))


def encoding_us() -> tuple[float, float]:
    """A text that names a special token: read as if it meant it, and as letters."""
    backend = byte_level_backend()
    literal = LiteralEncoder(backend)
    text = f"{_TEXT}<{LITERAL_MARK}/s>"

    plain = _least_us(lambda: backend.encode_batch_fast([text], add_special_tokens=False))
    marked = _least_us(lambda: literal.encode_batch([text], LITERAL_MARK, False))
    return plain, marked


@asynccontextmanager
async def _router() -> AsyncIterator[tuple[RunningRouter, str]]:
    async with running_router() as router:
        router.pipeline.script = lambda call: words(*_TOKENS)
        tenant = await router.new_tenant(limits=Limits(requests_per_min=10**9, tokens_per_min=10**12))
        yield router, await router.new_key(tenant)


async def run(rounds: int) -> Table:
    table = Table("check", "without, µs", "with, µs", "costs, µs")
    async with _router() as (router, key):
        for case in CASES:
            without, as_served = await measure(router, case, key, rounds)
            table.add_row(case.name, f"{without:.1f}", f"{as_served:.1f}", f"{as_served - without:+.1f}")
        head = head_us(router, key)
        table.add_row("key and limits, before a large body is read", "", "", f"{head:+.1f}")
    plain, marked = encoding_us()
    literal = "special tokens as letters, where a text names one (in Triton)"
    table.add_row(literal, f"{plain:.1f}", f"{marked:.1f}", f"{marked - plain:+.1f}")
    return table


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.router.security_costs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    Console(width=130).print(uvloop.run(run(parser.parse_args().rounds)))


if __name__ == "__main__":
    main()
