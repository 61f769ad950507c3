"""The runtime on the stand-in, which refuses what is not published and computes with our own engine."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backend.engine.build import build_engine
from python_backend.engine.config import EngineConfig
from python_backend.engine.report import EngineBroken, FinishReason, SequenceEvent
from python_backend.engine.request import GenerationRequest, SamplingParams
from python_backend.engine.runtimes.declared import TENSORRT_LLM
from python_backend.engine.runtimes.hosted.conversation import Conversation
from python_backend.engine.runtimes.hosted.runtime import HostedRuntime
from python_backend.engine.runtimes.trtllm.host import LlmHost
from python_backend.engine.runtimes.trtllm.load import load_llm
from python_backend.engine.runtimes.trtllm.package import PATH_VARIABLE, import_package
from python_backend.wire.errors import InflightError
from python_backend.wire.parameters import EngineParameters
from tests.pace import is_over
from tests.stack.tiny_models import VOCABULARY, write_tiny_model
from tests.waiting import wait_until

STAND_IN = Path(__file__).parents[3] / "fakes" / "tensorrt_llm"
PROMPTS = [[1, 2, 3], [40, 41, 42, 43, 44], list(range(100, 140))]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llm")
    return write_tiny_model(folder / "tiny", folder)


@pytest.fixture(scope="module")
def llmapi() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PATH_VARIABLE, str(STAND_IN))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")  # what the runtime sets goes with the tests
        patch.syspath_prepend(str(STAND_IN))
        yield importlib.import_module("tensorrt_llm.llmapi")


def parameters(checkpoint: Path, **more: Any) -> EngineParameters:
    given = {"max_tokens_in_paged_kv_cache": 4096, "inflight_runtime": "llm", **more}
    return EngineParameters("inflight_fused_batching", str(checkpoint), **given)


@pytest.fixture(scope="module")
def runtime(llmapi: Any, checkpoint: Path) -> HostedRuntime:
    return load_llm(parameters(checkpoint), TENSORRT_LLM.capabilities)


def answers(runtime: HostedRuntime, *requests: GenerationRequest) -> list[list[SequenceEvent]]:
    for key, request in enumerate(requests):
        runtime.add(key, request, time.monotonic_ns())
    events: list[SequenceEvent] = []
    while sum(event.is_last for event in events) < sum(each.num_return_sequences for each in requests):
        events += runtime.step()
    return [[event for event in events if event.key == key] for key in range(len(requests))]


def ids(events: list[SequenceEvent]) -> list[int]:
    return [token_id for event in events for token_id in event.token_ids]


def test_the_runtime_reports_its_capacity(runtime: HostedRuntime) -> None:
    ready = runtime.describe()
    assert (ready.max_sequence_tokens, ready.total_blocks * ready.tokens_per_block) == (2048, 4096)


def test_the_ids_are_those_of_our_engine_alone_and_in_a_batch(
    runtime: HostedRuntime, checkpoint: Path
) -> None:
    requests = [GenerationRequest(prompt, 12) for prompt in PROMPTS]
    engine = build_engine(EngineConfig(str(checkpoint), precision="fp32", max_tokens_in_kv_cache=4096))
    for key, request in enumerate(requests):
        engine.add(key, request)
    ours: list[SequenceEvent] = []
    while engine.has_work:
        ours += engine.step()
    expected = [ids([event for event in ours if event.key == key]) for key in range(len(requests))]
    assert [ids(answers(runtime, request)[0]) for request in requests] == expected
    assert [ids(events) for events in answers(runtime, *requests)] == expected


def test_log_probs_and_logits_are_those_of_our_engine(runtime: HostedRuntime) -> None:
    request = GenerationRequest(
        PROMPTS[1],
        4,
        returns_log_probs=True,
        top_log_probs=2,
        returns_prompt_log_probs=True,
        returns_context_logits=True,
        returns_generation_logits=True,
    )
    ((event,),) = answers(runtime, request)
    assert event.log_probs is not None
    assert event.top_log_probs is not None
    assert len(event.top_log_probs) == len(PROMPTS[1]) - 1 + 4
    logits = np.frombuffer(event.generation_logits or b"", np.float32).reshape(4, VOCABULARY)
    assert len(event.context_logits or b"") == len(PROMPTS[1]) * VOCABULARY * 4
    whole = np.log(np.exp(logits - logits.max()).sum(axis=1)) + logits.max()
    found = [
        row[token_id] - total for row, token_id, total in zip(logits, event.token_ids, whole, strict=True)
    ]
    np.testing.assert_allclose(event.log_probs, found, atol=1e-4)
    assert [row[0][1] for row in event.top_log_probs[-4:]] == event.log_probs


def test_streamed_log_probs_come_with_their_tokens(runtime: HostedRuntime) -> None:
    (events,) = answers(runtime, GenerationRequest(PROMPTS[0], 6, returns_log_probs=True))
    assert all(len(event.log_probs or ()) == len(event.token_ids) for event in events)


def test_sampling_repeats_with_its_seed(runtime: HostedRuntime) -> None:
    chosen = SamplingParams(temperature=1.0, top_p=0.9, seed=4)
    request = GenerationRequest(PROMPTS[0], 8, sampling=chosen, num_return_sequences=2)
    (first,), (again,) = answers(runtime, request), answers(runtime, request)
    texts = [ids([event for event in first if event.sequence_index == index]) for index in (0, 1)]
    assert texts[0] != texts[1]
    assert texts == [ids([event for event in again if event.sequence_index == index]) for index in (0, 1)]


def test_a_cancelled_request_is_aborted_in_tensorrt_llm(runtime: HostedRuntime) -> None:
    runtime.add(1, GenerationRequest(PROMPTS[0], 2000), time.monotonic_ns())
    events: list[SequenceEvent] = []
    while not ids(events):
        events += runtime.step()
    runtime.cancel(1)
    while not any(event.is_last for event in events):
        events += runtime.step()
    assert events[-1].finish_reason is FinishReason.CANCELLED
    wait_until(lambda: runtime.step() or not runtime.has_work)
    assert not runtime.has_work
    now = runtime.gauges()
    assert (now.active, now.used_blocks) == (0, 0)
    assert now.step_count > 1


@pytest.mark.parametrize(
    ("prompt", "words"),
    [([7, 7, 7], "illegal memory access"), ([8, 8, 8], "health check of TensorRT-LLM failed")],
)
def test_a_fault_in_tensorrt_llm_breaks_the_engine_even_if_no_request_is_told(
    llmapi: Any, checkpoint: Path, prompt: list[int], words: str
) -> None:
    broken = load_llm(parameters(checkpoint), TENSORRT_LLM.capabilities)
    broken.add(1, GenerationRequest(prompt, 4), time.monotonic_ns())

    def go_on() -> None:
        began_s = time.monotonic()
        while not is_over(began_s, 30):
            broken.step()

    with pytest.raises(EngineBroken, match=words):
        go_on()
    assert [event.key for event in broken.abort("engine_failed: broken")] == [1]


def test_gauges_are_updated_during_a_single_answer(runtime: HostedRuntime) -> None:
    runtime.add(1, GenerationRequest(PROMPTS[0], 2000), time.monotonic_ns())
    seen = {runtime.gauges().step_count}
    began_s = time.monotonic()
    while len(seen) < 5 and not is_over(began_s, 30):
        runtime.step()
        seen.add(runtime.gauges().step_count)
    runtime.cancel(1)
    while runtime.has_work:
        runtime.step()
    assert len(seen) == 5


def test_bad_words_never_come_though_tensorrt_llms_sampler_does_not_know_them(runtime: HostedRuntime) -> None:
    (bad,) = ids(answers(runtime, GenerationRequest(PROMPTS[0], 1))[0])
    (events,) = answers(runtime, GenerationRequest(PROMPTS[0], 8, bad_sequences=((bad,),)))
    assert bad not in ids(events)


def test_closing_aborts_running_requests_and_ends_the_thread(llmapi: Any, checkpoint: Path) -> None:
    llm = llmapi.LLM(str(checkpoint))
    conversation = Conversation(LlmHost(llm), 0.1, 60)
    sampling = llmapi.SamplingParams(max_tokens=2000, end_id=0, ignore_eos=True)
    asked = conversation.ask({"inputs": [1, 2], "sampling_params": sampling, "streaming": True})
    while not conversation.hear(1.0):
        pass
    conversation.close()
    assert asked.handle.aborted()
    assert conversation._thread not in threading.enumerate()
    llm.shutdown()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"inflight_precision": "fp8"}, "inflight_precision is 'fp8'; allowed: auto, fp32, bf16"),
        ({"inflight_max_sequence_tokens": 4000}, "at most 2048, the model's own"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_refused_by_name(
    llmapi: Any, checkpoint: Path, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(InflightError, match=words):
        load_llm(parameters(checkpoint, **given), TENSORRT_LLM.capabilities)


def test_a_folder_without_a_model_is_refused(llmapi: Any, tmp_path: Path) -> None:
    with pytest.raises(InflightError, match=r"config\.json does not describe a model"):
        load_llm(parameters(tmp_path), TENSORRT_LLM.capabilities)


def test_tensorrt_llm_runs_in_this_process_which_is_not_an_mpi_rank(
    llmapi: Any, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TLLM_WORKER_USE_SINGLE_PROCESS", raising=False)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_MCA_btl", "self")
    assert import_package(parameters(checkpoint)) is llmapi
    assert os.environ["TLLM_WORKER_USE_SINGLE_PROCESS"] == "1"
    assert "OMPI_COMM_WORLD_RANK" not in os.environ
    assert "OMPI_MCA_btl" in os.environ


def test_the_stand_in_refuses_what_is_not_published(llmapi: Any, checkpoint: Path) -> None:
    with pytest.raises(TypeError, match="max_new_tokens"):
        llmapi.SamplingParams(max_new_tokens=3)
    with pytest.raises(TypeError, match=r"SamplingParams\.max_tokens"):
        llmapi.SamplingParams(max_tokens="3")
    with pytest.raises(ValueError, match="beams"):
        llmapi.LLM(str(checkpoint), beams=1)
    with pytest.raises(TypeError, match="fraction"):
        llmapi.KvCacheConfig(fraction=0.5)
    with pytest.raises(TypeError, match="embedding_bias"):
        llmapi.SamplingParams(embedding_bias=[0.0] * VOCABULARY)
    with pytest.raises(TypeError, match="guided_decoding_backend"):
        llmapi.LLM(str(checkpoint), guided_decoding_backend="outlines")
