"""The contract on `inflight_runtime = vllm`: the real package, built for CPUs, under the real Triton."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer
from typer.testing import CliRunner

from benchmarks.stack import RunningStack, running_stack
from benchmarks.text_checkpoint import llama_config, write_random_llama
from launcher.commands.adapter import adapter as adapter_commands
from python_backend.engine.process.handle import EngineProcess
from python_backend.engine.process.messages import Progress
from python_backend.engine.report import SequenceEvent
from python_backend.engine.request import GenerationRequest
from python_backend.engine.runtimes.own import load_engine
from python_backend.wire.parameters import EngineParameters
from tests.lasting import lasting
from tests.stack.conftest import EXACT
from tests.stack.triton_calls import TritonCalls, build_request

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

TEXT = "In the summer of 1914 the harbour was full of ships, and nobody in the town could have said where"
NEW_TOKENS = 8
# A worker in the core, as on a GPU: on CPUs vLLM gives it a process, which imports all of torch once more.
ONE_PROCESS_LESS = ("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
GIVEN_BACK = "vLLM has given back adapter"


@pytest.fixture(scope="module")
def checkpoint(
    in_transformers: Any, default_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The default model as safetensors: vLLM reads no GGUF here."""
    folder = tmp_path_factory.mktemp("vllm") / "default"
    in_transformers.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(default_checkpoint / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def stack(runtimes: Path, checkpoint: Path, data_dir: Path) -> Iterator[RunningStack]:
    engine = {
        **EXACT,
        "inflight_runtime": "vllm",
        "inflight_max_sequence_tokens": "1024",
        "max_tokens_in_paged_kv_cache": "16384",
        "inflight_max_adapters": "1",
        "inflight_max_adapter_rank": "8",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*ONE_PROCESS_LESS)
        with lasting(running_stack(engine, str(checkpoint), data_dir, embeddings=False)) as running:
            yield running


def prompt_ids(checkpoint: Path) -> list[int]:
    ids: list[int] = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(TEXT).ids
    return ids


def greedy_text(model: Any, checkpoint: Path) -> str:
    from tests.engine.checkpoints import all_logits

    prompt, answer = prompt_ids(checkpoint), list[int]()
    for _ in range(NEW_TOKENS):
        answer.append(int(all_logits(model, prompt + answer)[-1].argmax()))
    text: str = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).decode(answer)
    return text


async def complete(stack: RunningStack, **more: Any) -> httpx.Response:
    body = {"model": stack.model, "prompt": TEXT, "max_tokens": NEW_TOKENS, "temperature": 0, **more}
    async with httpx.AsyncClient(base_url=stack.url, timeout=300) as http:
        return await http.post("/v1/completions", json=body)


@pytest.fixture(scope="module")
def whole(stack: RunningStack) -> str:
    """What is said to TEXT."""
    text: str = asyncio.run(complete(stack)).json()["choices"][0]["text"]
    return text


def answers(stack: RunningStack) -> bool:
    body = {"model": stack.model, "prompt": TEXT, "max_tokens": 1}
    return httpx.post(f"{stack.url}/v1/completions", json=body, timeout=300).status_code == 200


def comes_true(condition: Callable[[], bool], limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while not (is_true := condition()) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    return is_true


def test_the_launcher_names_the_runtime_and_the_device(stack: RunningStack) -> None:
    assert "computes on vLLM 0.32.0 on the CPU" in stack.output()


async def test_the_ids_are_those_of_transformers(
    stack: RunningStack, in_transformers: Any, checkpoint: Path
) -> None:
    from tests.engine.checkpoints import greedy_choices

    prompt = prompt_ids(checkpoint)
    async with TritonCalls(stack.triton_grpc_url) as triton:
        answer = await triton.generate_ids("alone", prompt, NEW_TOKENS)
    assert len(answer) == NEW_TOKENS
    assert answer == greedy_choices(in_transformers, prompt, answer)


async def test_the_streamed_text_is_the_whole_one(stack: RunningStack, whole: str) -> None:
    body = {"model": stack.model, "prompt": TEXT, "max_tokens": NEW_TOKENS, "temperature": 0, "stream": True}
    pieces = []
    async with (
        httpx.AsyncClient(base_url=stack.url, timeout=300) as http,
        http.stream("POST", "/v1/completions", json=body) as response,
    ):
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                pieces += [choice["text"] for choice in json.loads(line[6:])["choices"]]
    assert "".join(pieces) == whole
    assert len(pieces) > 2


async def test_guides_log_probs_and_stop_words_hold(stack: RunningStack, whole: str) -> None:
    guided = (await complete(stack, guided_regex="(yes|no)", logprobs=2)).json()["choices"][0]
    assert guided["text"] in ("yes", "no")
    assert guided["finish_reason"] == "stop"
    assert all(each <= 0 for each in guided["logprobs"]["token_logprobs"])
    word = whole.split()[1]
    stopped = (await complete(stack, stop=[word])).json()["choices"][0]
    assert (stopped["text"], stopped["finish_reason"]) == (whole[: whole.index(word)], "stop")


async def test_an_adapter_made_here_is_served_and_given_back_live(
    stack: RunningStack, whole: str, in_transformers: Any, checkpoint: Path, data_dir: Path, tmp_path: Path
) -> None:
    from tests.engine.adapters.random_adapters import write_adapter

    def adapter(*words: str) -> None:
        options = ["--config", str(stack.state_dir.parent / "inflight.toml"), "--data-dir", str(data_dir)]
        result = CliRunner().invoke(adapter_commands, [*words, *options])
        assert result.exit_code == 0, result.output

    def engine_log() -> str:
        (folder,) = re.findall(r"^ *logs +(\S+)$", stack.output(), re.MULTILINE)
        return "".join(path.read_text() for path in Path(folder).glob("triton*.log"))

    name = f"{stack.model}:sql"
    merged = write_adapter(
        in_transformers, tmp_path / "sql", modules=("q_proj", "down_proj"), seed=1, strength=0.1
    )
    adapter("add", name, str(tmp_path / "sql"))
    words = (await complete(stack, model=name)).json()["choices"][0]["text"]
    assert words == greedy_text(merged, checkpoint) != whole
    assert (await complete(stack)).json()["choices"][0]["text"] == whole
    adapter("remove", name)
    assert (await complete(stack, model=name)).status_code == 404
    assert await asyncio.to_thread(comes_true, lambda: GIVEN_BACK in engine_log(), 60), engine_log()


async def test_what_vllm_does_not_do_is_refused_by_name(stack: RunningStack, checkpoint: Path) -> None:
    prompt = prompt_ids(checkpoint)
    inputs = {"input_ids": prompt, "input_lengths": len(prompt), "request_output_len": 2}
    request = build_request("tensorrt_llm", "refused", {**inputs, "return_context_logits": True})
    async with TritonCalls(stack.triton_grpc_url) as triton:
        with pytest.raises(Exception, match="return_context_logits has True, which vLLM does not do"):
            [response async for response in triton.stream(request)]


async def test_a_client_that_leaves_frees_the_engine(stack: RunningStack) -> None:
    body = {"model": stack.model, "prompt": TEXT, "max_tokens": 900, "stream": True}
    async with (
        httpx.AsyncClient(base_url=stack.url, timeout=300) as http,
        http.stream("POST", "/v1/completions", json={**body, "ignore_eos": True}) as response,
    ):
        events = 0
        async for line in response.aiter_lines():
            events += line.startswith("data: ")
            if events == 5:
                break
    assert await asyncio.to_thread(comes_true, lambda: stack.used_blocks() == 0, 60)


async def test_a_killed_core_is_revived(stack: RunningStack, whole: str) -> None:
    (core,) = stack.processes("VLLM::EngineCore")
    core.send_signal(signal.SIGKILL)
    assert await asyncio.to_thread(comes_true, lambda: answers(stack), 600)
    assert (await complete(stack)).json()["choices"][0]["text"] == whole


def test_over_two_processes_the_ids_are_the_same(runtimes: Path, tmp_path: Path) -> None:
    """Those of our engine, which has one; the default model's nine heads cannot be halved."""
    model = write_random_llama(tmp_path / "even", llama_config(2, 256, 512, 4, 2, 8192))
    parameters = EngineParameters(
        "inflight_fused_batching",
        str(model),
        inflight_runtime="vllm",
        inflight_runtimes_dir=str(runtimes),
        inflight_precision="fp32",
        inflight_max_sequence_tokens=1024,
        max_tokens_in_paged_kv_cache=4096,
        tensor_parallel_size=2,
    )
    request = GenerationRequest(list(range(5, 25)), NEW_TOKENS)
    expected = ids_of_our_engine(model, request)
    assert len(expected) == NEW_TOKENS
    assert ids_of_process(parameters, request) == expected


def ids_of_process(parameters: EngineParameters, request: GenerationRequest) -> list[int]:
    engine = EngineProcess(parameters)
    try:
        engine.wait_until_ready()
        engine.submit(1, request, time.monotonic_ns())
        events: list[SequenceEvent] = []
        while not any(event.is_last for event in events):
            report = engine.receive()
            events += report.events if isinstance(report, Progress) else []
    finally:
        engine.stop()
    return [token_id for event in events for token_id in event.token_ids]


def ids_of_our_engine(model: Path, request: GenerationRequest) -> list[int]:
    parameters = EngineParameters("inflight_fused_batching", str(model), inflight_precision="fp32")
    engine = load_engine(parameters)
    engine.add(1, request, time.monotonic_ns())
    ids: list[int] = []
    while engine.has_work:
        ids += [token_id for event in engine.step() for token_id in event.token_ids]
    return ids
