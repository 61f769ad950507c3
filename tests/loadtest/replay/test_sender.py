"""Requests go out at their moments, and what each one saw is told from there."""

from __future__ import annotations

import asyncio
import time

import pytest

from loadtest.replay.plan import InventedPrompt, PlannedRequest
from loadtest.replay.sender import SendResult, Target, play, retry_after_s, send
from loadtest.results import RequestResult
from tests.fakes.completions_server import BREAK, BUSY, SILENT, VANISH, CompletionsServer, serving
from tests.pace import patience


async def sent_to(server: CompletionsServer, plan: list[PlannedRequest], **more: object) -> SendResult:
    async with serving(server):
        return await send(Target(server.url, "tiny", **more), plan)  # type: ignore[arg-type]  # any field


async def test_a_stalled_server_delays_later_requests_and_does_not_thin_them_out() -> None:
    """It answers nobody before all have asked, then one at a time: the n-th waited for all before."""
    plan = [PlannedRequest(0.02 * number, "x", 2) for number in range(6)]
    sent = await sent_to(CompletionsServer(first_s=0.1, one_at_a_time=True, stalls_until=len(plan)), plan)
    assert not sent.errors
    assert sorted(each.at_s for each in sent.results) == pytest.approx([each.at_s for each in plan], abs=1e-6)
    ended = sorted(each.at_s + each.ended_s for each in sent.results if each.ended_s is not None)
    assert len(ended) == len(plan)
    assert all(at_s >= 0.1 * (number + 2) - 0.02 for number, at_s in enumerate(ended))


async def test_tokens_gaps_and_names_are_those_of_the_stream() -> None:
    server = CompletionsServer(first_s=0.03, gap_s=0.02)
    plan = [PlannedRequest(0.0, InventedPrompt(7, 0, 0), 6, "mine", "a", "interactive")]
    (seen,) = (await sent_to(server, plan, keys={"a": "secret"}, keeps_text=True)).results
    assert seen.is_answered
    assert (seen.kind, seen.tenant, seen.tier, seen.model) == ("mine", "a", "interactive", "tiny")
    assert (seen.prompt_tokens, seen.completion_tokens, seen.pieces, seen.text) == (7, 6, 3, "ababab")
    assert (seen.request_id, seen.release, seen.status, seen.cached_tokens) == ("r1", "1", 200, 2)
    assert seen.first_token_s is not None
    assert seen.first_token_s >= 0.03
    # Five tokens after the first came in two pieces: each gap is divided by two and a half.
    assert seen.between_tokens_s is not None
    assert seen.between_tokens_s >= 2 * 0.02 / 5 * 0.9
    assert seen.longest_gap_s == pytest.approx(max(seen.gaps_s) * 2.5)
    (body,) = server.bodies
    assert (body["service_tier"], body["ignore_eos"], len(body["prompt"])) == ("priority", True, 7)
    assert server.keys == ["Bearer secret"]


async def test_a_failed_request_says_why_and_is_not_an_answer() -> None:
    plan = [PlannedRequest(0.0, prompt, 4, prompt) for prompt in (BREAK, VANISH, "fine", BUSY)]
    sent = await sent_to(CompletionsServer(), plan)
    seen = {each.kind: each for each in sent.results}
    assert "broken" in seen[BREAK].error
    assert seen[VANISH].error
    assert seen[BREAK].has_failed
    assert seen[VANISH].has_failed
    assert seen["fine"].is_answered
    assert seen[BUSY].is_refused
    assert not seen[BUSY].has_failed
    assert seen[BUSY].retry_after_s == 0.05
    assert (len(sent.errors), len(sent.latencies_s("fine")), sent.latencies_s(BREAK)) == (3, 1, [])


async def test_without_a_listener_every_request_says_so() -> None:
    sent = await send(Target("http://127.0.0.1:9", "tiny"), [PlannedRequest(0.0, "x", 2)])
    (seen,) = sent.results
    assert seen.status == 0
    assert "ClientConnector" in seen.error


async def test_a_refused_request_is_retried_after_its_retry_time() -> None:
    plan = [PlannedRequest(0.0, BUSY, 2)]
    sent = await sent_to(CompletionsServer(), plan, retries=3, honours_retry_after=True)
    first, second = sent.results
    assert (first.attempt, first.status, second.attempt, second.status) == (0, 503, 1, 200)
    assert second.at_s >= 0.05
    at_once = await sent_to(CompletionsServer(busy_times=9), plan, retries=3)
    assert [each.status for each in at_once.results] == [503] * 4


async def test_a_request_that_waits_too_long_gives_up_and_is_counted() -> None:
    plan = [PlannedRequest(0.0, SILENT, 2), PlannedRequest(0.0, "x", 2)]
    sent = await sent_to(CompletionsServer(), plan, gives_up_s=patience(1.0))
    assert sorted(each.has_left for each in sent.results) == [False, True]
    assert sent.duration_s < patience(30)


async def test_an_interrupted_run_reports_all_that_was_sent() -> None:
    results: list[RequestResult] = []
    plan = [PlannedRequest(0.0, SILENT, 2), PlannedRequest(60.0, "x", 2)]
    async with serving(CompletionsServer()) as server:
        running = asyncio.create_task(
            play(Target(server.url, "tiny"), plan, time.perf_counter(), results.append)
        )
        await server.asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert [each.has_left for each in results] == [True]


async def test_an_empty_plan_ends_at_once() -> None:
    assert (await sent_to(CompletionsServer(), [])).results == []


def test_a_retry_time_is_read_with_its_full_precision() -> None:
    assert retry_after_s({"retry-after": "2", "retry-after-ms": "1500"}) == 1.5
    assert retry_after_s({"retry-after": "2"}) == 2
    assert retry_after_s({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}) is None
    assert retry_after_s({}) is None
