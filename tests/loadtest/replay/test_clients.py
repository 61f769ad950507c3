"""Several processes send one plan between them, and an interrupt leaves nothing out."""

from __future__ import annotations

import asyncio
import signal

from loadtest.replay.clients import send_from
from loadtest.replay.plan import PlannedRequest
from loadtest.replay.sender import Target
from loadtest.results import RequestResult
from tests.fakes.completions_server import SILENT, CompletionsServer, serving, serving_aside


async def test_each_request_is_sent_once_by_one_of_the_clients() -> None:
    plan = [PlannedRequest(0.01 * number, "x", 2, f"k{number}") for number in range(6)]
    told: list[RequestResult] = []
    async with serving(CompletionsServer()) as server:
        target = Target(server.url, "tiny")
        sent = await asyncio.to_thread(send_from, target, plan, 2, told.append)
    assert sorted(each.kind for each in sent.results) == [each.kind for each in plan]
    assert all(each.is_answered for each in sent.results)
    assert told == sent.results


def test_ctrl_c_ends_the_run_with_the_results_so_far() -> None:
    plan = [PlannedRequest(0.0, SILENT, 2), PlannedRequest(0.0, "x", 2), PlannedRequest(60.0, "x", 2)]

    def interrupt(result: RequestResult) -> None:
        if result.is_answered:
            signal.raise_signal(signal.SIGINT)

    with serving_aside(CompletionsServer()) as server:
        sent = send_from(Target(server.url, "tiny"), plan, told=interrupt)
    assert sorted((each.is_answered, each.has_left) for each in sent.results) == [
        (False, True),
        (True, False),
    ]
    assert sent.is_interrupted


def test_ctrl_c_reaches_clients_in_other_processes() -> None:
    plan = [PlannedRequest(0.0, SILENT, 2), PlannedRequest(0.0, "x", 2), PlannedRequest(60.0, "x", 2)]

    def interrupt(result: RequestResult) -> None:
        if result.is_answered:
            signal.raise_signal(signal.SIGINT)

    with serving_aside(CompletionsServer()) as server:
        sent = send_from(Target(server.url, "tiny"), plan, 2, interrupt)
    assert sorted((each.is_answered, each.has_left) for each in sent.results) == [
        (False, True),
        (True, False),
    ]
    assert sent.is_interrupted
