from __future__ import annotations

import asyncio

import pytest

from python_backend.wire.tiers import Tier
from router.content.batches.claims import Answer, Claim, Returned
from router.content.batches.decisions import Life, Status
from router.content.batches.line_run import LineRun
from router.content.batches.rows import Batch
from router.core.record import Record
from router.core.tenant import LOCAL_CALLER, Caller
from router.http.inner_exchange import InnerExchange

BATCH = Batch("batch_1", "org-1", "key-1", "/v1/completions", "file-1", Life(Status.IN_PROGRESS, 0.0, 1.0))
CLAIM = Claim(BATCH, number=1, custom_id="a", attempts=0, body=b"{}")


class SlowToTidyUp:
    """Answers at once, or when it is told to, and returns a little later."""

    def __init__(self, answers: bool) -> None:
        self._answers = answers
        self.has_begun = asyncio.Event()
        self.may_return = asyncio.Event()

    async def __call__(self, exchange: InnerExchange, caller: Caller, tier: Tier) -> Record:
        if self._answers:
            exchange.respond(200, b"{}", [])
        self.has_begun.set()
        await self.may_return.wait()
        return Record("/v1/completions", "cmpl-1", caller)


@pytest.mark.parametrize(("answers", "kind"), [(True, Answer), (False, Returned)])
async def test_an_interrupted_line_is_run_again_unless_it_was_answered(
    answers: bool, kind: type[Answer | Returned]
) -> None:
    call = SlowToTidyUp(answers)
    run = LineRun(CLAIM, call, LOCAL_CALLER)
    result = asyncio.create_task(run.result())
    await call.has_begun.wait()
    run.cut()
    call.may_return.set()
    assert isinstance(await result, kind)
