"""What if, over HTTP: recorded hours, two policies beside each other, one question at a time."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import replace
from typing import Any

import pytest

from python_backend.costs.step_cost import LearnedStepCost, StepCost
from python_backend.wire.engine_report import EngineReport
from router.control.whatif.simulations import Engine, Simulations
from router.core.tenant import Role, Scope
from router.routing.replicas import Fleet
from tests.pace import is_over
from tests.router.raw import RawClient
from tests.router.running import MODEL, RunningRouter

PATH = "/admin/simulations"
pytestmark = pytest.mark.timeout(120)


def question(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "variants": [{"policy": "objectives"}, {"policy": "first-come"}], **fields}


async def test_a_recorded_hour_is_simulated_under_two_policies(router: RunningRouter) -> None:
    for _ in range(4):
        (await router.chat()).raise_for_status()
    await router.usage("local")
    told = (await router.http.get(f"{PATH}/hours?model={MODEL}")).json()
    assert [each["requests"] for each in told["data"]] == [4]
    assert told["engine"]["is_example"]
    trace = {"recorded_from_s": told["data"][0]["began_s"]}
    answer = await router.http.post(PATH, json=question(trace=trace, rate=2), timeout=60)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["trace"]["requests"] == 4
    assert [each["figures"]["good"] for each in found["variants"]] == [4, 4]
    assert {each["tenant"] for each in found["variants"][0]["figures"]["tenants"]} == {"local"}


async def test_an_uploaded_trace_that_is_none_is_refused_in_words(router: RunningRouter) -> None:
    answer = await router.http.post(PATH, json=question(trace={"text": "a,b\n1,2\n"}), timeout=60)
    assert answer.status_code == 400
    assert "no column for 'at' (one of arrival_s" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"variants": []}, "variants"),
        ({"variants": [{"policy": "magic"}]}, "policy"),
        ({"trace": {"text": "x", "recorded_from_s": 1}}, "not both"),
        ({"engine": {"base_ms": 0, "prefill_token_ms": 1, "decode_sequence_ms": 1}}, "base_ms"),
        ({"rate": 0}, "rate"),
    ],
)
async def test_what_cannot_be_simulated_is_refused_by_name(
    router: RunningRouter, fields: dict[str, Any], words: str
) -> None:
    answer = await router.http.post(PATH, json=question(**fields))
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


async def test_only_the_platform_may_ask(router: RunningRouter) -> None:
    owner = await router.new_key(await router.new_tenant(), frozenset(Scope), Role.OWNER)
    headers = {"authorization": f"Bearer {owner}"}
    assert (await router.http.post(PATH, json=question(), headers=headers)).status_code == 403
    assert (await router.http.get(f"{PATH}/hours?model=m", headers=headers)).status_code == 403


async def test_one_runs_at_a_time_and_ends_with_who_asked(
    router: RunningRouter, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program writes down who it is, and would wait for ever."""
    note = tmp_path / "pid"
    code = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(3600)"
    monkeypatch.setattr(router.parts.simulations, "_command", (sys.executable, "-S", "-c", code))
    body = b'{"model": "tiny", "variants": [{}]}'
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client = await RawClient.connect(router.port)
    await client.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await router.until(lambda: note.exists() and note.read_text() != "", timeout_s=60)
    pid = int(note.read_text())
    assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    second = await router.http.post(PATH, json=question())
    assert second.status_code == 429
    assert "one at a time" in second.json()["error"]["message"]
    await client.close()
    await router.until(lambda: not is_running(pid), timeout_s=60)
    await router.until(lambda: not router.parts.simulations._is_busy, timeout_s=60)


async def test_what_takes_too_long_is_stopped_and_told(router: RunningRouter) -> None:
    patient = (sys.executable, "-S", "-c", "import time; time.sleep(3600)")
    simulations = Simulations(Fleet([]), router.parts.models.published.objective_of, patient, limit_s=0.05)
    began_s = time.monotonic()
    with pytest.raises(Exception, match=r"it took longer than 0\.05 s"):
        await simulations.run(simulations.engine_of(MODEL), {}, asyncio.Event())
    assert not is_over(began_s, 60)


def test_an_engine_is_as_it_tells_of_itself_whatever_objectives_allow_it_now() -> None:
    report = EngineReport(8, 64, 64, 512, 100, 0, 16, 0, 0, holds_whole_answers=False)
    assert Engine.of(report) is None, "it has not learned its cost"
    learned = LearnedStepCost(StepCost(10.0, 0.1, 0.2), 50, 0.1)
    found = Engine.of(replace(report, learned=learned))
    assert found == Engine(learned.cost, 64, 512, 1600, 16)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
