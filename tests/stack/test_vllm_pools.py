"""Prompts and answers in two pools of vLLM, the real one, joined by a folder."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.stack import RunningStack, running_stack
from benchmarks.text_checkpoint import llama_config, write_random_llama
from python_backend.engine.process.handle import EngineProcess
from python_backend.engine.process.messages import Progress
from python_backend.engine.report import SequenceEvent
from python_backend.engine.request import GenerationRequest
from python_backend.engine.runtimes.own import load_engine
from python_backend.wire.parameters import EngineParameters
from python_backend.wire.pools import Part
from tests.pace import patience
from tests.stack.conftest import EXACT

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]
BLOCK = 128  # vLLM's on a CPU
PROMPT = [5 + place % 4000 for place in range(0, 7 * 700, 7)]
WHOLE_BLOCKS = (len(PROMPT) - 1) // BLOCK * BLOCK
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = llama_config(2, 256, 512, 4, 2, 8192)
    return write_random_llama(tmp_path_factory.mktemp("pools") / "small", config)


@contextmanager
def engine_of(pool: str, model: Path, runtimes: Path, folder: Path) -> Iterator[EngineProcess]:
    """Prompts are computed in several steps."""
    parameters = EngineParameters(
        "inflight_fused_batching",
        str(model),
        inflight_runtime="vllm",
        inflight_runtimes_dir=str(runtimes),
        inflight_precision="fp32",
        inflight_max_sequence_tokens=2048,
        inflight_max_step_tokens=256,
        max_tokens_in_paged_kv_cache=8192,
        inflight_pool=pool,
        inflight_kv_folder=str(folder),
    )
    engine = EngineProcess(parameters)
    try:
        engine.wait_until_ready()
        yield engine
    finally:
        engine.stop()


def events_of(engine: EngineProcess, key: int, request: GenerationRequest) -> list[SequenceEvent]:
    engine.submit(key, request, time.monotonic_ns())
    events: list[SequenceEvent] = []
    while not any(event.is_last for event in events):
        report = engine.receive()
        events += report.events if isinstance(report, Progress) else []
    assert not events[-1].error
    return events


def ids(events: list[SequenceEvent]) -> list[int]:
    return [token_id for event in events for token_id in event.token_ids]


def ids_of_our_engine(model: Path, request: GenerationRequest) -> list[int]:
    parameters = EngineParameters("inflight_fused_batching", str(model), inflight_precision="fp32")
    engine = load_engine(parameters)
    engine.add(1, request, time.monotonic_ns())
    events: list[SequenceEvent] = []
    while engine.has_work:
        events += engine.step()
    return ids(events)


def cached_tokens(events: list[SequenceEvent]) -> int:
    perf = events[-1].perf
    assert perf is not None
    return perf.cached_tokens


def test_an_answer_to_a_prompt_computed_elsewhere_is_that_of_one_engine(
    runtimes: Path, model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "kv"
    request = GenerationRequest(PROMPT, NEW_TOKENS, cache_salt="ours")
    expected = ids_of_our_engine(model, request)
    with (
        engine_of("prefill", model, runtimes, folder) as prefill,
        engine_of("decode", model, runtimes, folder) as decode,
    ):
        prompt = events_of(prefill, 1, request.prompt_alone)
        assert ids(prompt) == []
        context = prompt[-1].context
        assert context is not None
        assert len(list(folder.iterdir())) == 1
        theirs = replace(request, part=Part.GENERATION, context=context, cache_salt="theirs")
        others = events_of(decode, 1, theirs)
        assert cached_tokens(others) == 0, "another tenant's keys and values are not taken"
        again = events_of(prefill, 2, request.prompt_alone)
        assert cached_tokens(again) == WHOLE_BLOCKS
        answer = events_of(decode, 2, replace(theirs, context=again[-1].context or b"", cache_salt="ours"))
        assert cached_tokens(answer) == WHOLE_BLOCKS, "they were loaded, not computed"
        assert ids(answer) == ids(others) == expected
        lost = replace(request, part=Part.GENERATION, context=context, cache_salt="mine")
        assert ids(events_of(decode, 3, lost)) == expected, "what is gone is computed"
        assert ids(events_of(prefill, 3, request)) == expected, "whoever is for prompts answers too"
        assert not list(folder.iterdir()), "nothing is left of what was taken"


@pytest.fixture(scope="module")
def stack(runtimes: Path, model: Path, data_dir: Path) -> Iterator[RunningStack]:
    engine = {
        **EXACT,
        "inflight_runtime": "vllm",
        "inflight_max_sequence_tokens": "2048",
        "max_tokens_in_paged_kv_cache": "8192",
    }
    with running_stack(
        engine, str(model), data_dir, triton_servers=2, embeddings=False, prefill_servers=1
    ) as running:
        yield running


def answer_of(stack: RunningStack, name: str) -> str:
    words = " ".join([name, *(f"w{token_id}" for token_id in PROMPT)])
    body = {"model": stack.model, "prompt": words, "max_tokens": NEW_TOKENS, "temperature": 0}
    response = httpx.post(f"{stack.url}/v1/completions", json=body, timeout=300)
    assert response.status_code == 200, response.text
    usage = response.json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0, "it was computed, wherever"
    assert usage["completion_tokens"] == NEW_TOKENS
    text: str = response.json()["choices"][0]["text"]
    return text


def prompts_elsewhere(stack: RunningStack) -> dict[str, float]:
    text = httpx.get(f"{stack.url}/metrics", timeout=patience(10)).text
    found = re.findall(r'^inflight_prompts_elsewhere_total\{.*outcome="(\w+)".*\} (\S+)$', text, re.MULTILINE)
    return {outcome: float(value) for outcome, value in found}


def test_a_stack_with_two_pools_divides_requests_and_goes_on_without_the_one_that_answers(
    stack: RunningStack,
) -> None:
    time.sleep(patience(2))  # the router asks engines what they are there for once a second
    texts = [answer_of(stack, "w11")]
    assert prompts_elsewhere(stack) == {"computed": 1, "lost": 0}
    (decode,) = [
        each
        for each in psutil.Process(stack.process.pid).children(recursive=True)
        if "tritonserver" in each.name() and each.environ().get("INFLIGHT_POOL") == "decode"
    ]
    decode.send_signal(signal.SIGKILL)
    texts.append(answer_of(stack, "w12"))
    assert all(len(text.split()) == NEW_TOKENS for text in texts)
