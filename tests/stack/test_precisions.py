"""A release of the usual stack's model in another precision, beside the first."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from benchmarks.stack import RunningStack
from router.control.releases.states import State
from tests.stack.releasing import releases_at
from tests.stack.test_recovery import engine_process, run_of, shared_memory

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


def test_the_same_model_in_two_precisions_answers_sensibly_twice(
    stack: RunningStack, data_dir: Path, device: str
) -> None:
    """Of the stack that other tests share; what is added to it is removed again."""
    if device != "cpu":
        pytest.skip("int8 and int4 are precisions of the CPU")
    question = [{"role": "user", "content": "Name the capital of France."}]
    regions = shared_memory(run_of(stack))
    with releases_at(stack.state_dir.parent / "inflight.toml", data_dir) as releases:
        made = releases.add(stack.model, stack.model, inflight_precision="int4")
        assert made.parameters["inflight_precision"] == "int4"
        releases.load(made)
        answers = {}
        for name in (stack.model, made.name):
            body = {"model": name, "messages": question, "temperature": 0, "max_tokens": 24}
            answer = httpx.post(f"{stack.url}/v1/chat/completions", json=body, timeout=60)
            release = int(answer.headers["x-inflight-release"])
            answers[release] = answer.json()["choices"][0]["message"]["content"]
        assert sorted(answers) == [1, made.version]
        assert all("Paris" in said for said in answers.values()), answers
        releases.unload(made)
        releases.wait_for(made, State.UNLOADED)
        releases.installation.releases.forget(made.model, made.version)
    deadline_s = time.monotonic() + 30
    while shared_memory(run_of(stack)) - regions:
        assert time.monotonic() < deadline_s, "its memory is still there"
        time.sleep(0.1)
    engine_process(stack)  # waits until its engine is gone too
