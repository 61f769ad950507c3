"""The contract on `inflight_runtime = vllm`: the real package, built for CPUs, under the real Triton."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer
from typer.testing import CliRunner

from benchmarks.stack import RunningStack, running_stack
from launcher.commands.adapter import adapter as adapter_commands
from tests.lasting import lasting
from tests.pace import is_over
from tests.stack.conftest import EXACT
from tests.stack.tiny_models import write_tiny_model
from tests.stack.triton_calls import TritonCalls, build_request

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

TEXT = "In the summer of 1914 the harbour was full of ships, and nobody in the town could have said where"
NEW_TOKENS = 8
PROCESSES = 2
GIVEN_BACK = "vLLM has unloaded adapter"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, default_checkpoint: Path) -> Path:
    """One that does not repeat itself; each process has a head of it."""
    return write_tiny_model(tmp_path_factory.mktemp("vllm") / "varied", default_checkpoint, scale=0.3)


@pytest.fixture(scope="module")
def in_transformers(checkpoint: Path) -> Any:
    from benchmarks.transformers_model import load_in_transformers

    return load_in_transformers(checkpoint)


@pytest.fixture(scope="module")
def stack(runtimes: Path, checkpoint: Path, data_dir: Path) -> Iterator[RunningStack]:
    engine = {
        **EXACT,
        "inflight_runtime": "vllm",
        "tensor_parallel_size": str(PROCESSES),
        "inflight_max_sequence_tokens": "1024",
        "max_tokens_in_paged_kv_cache": "16384",
        "inflight_max_adapters": "1",
        "inflight_max_adapter_rank": "8",
    }
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


def engine_log(stack: RunningStack) -> str:
    return "".join(path.read_text() for path in stack.logs.glob("triton*.log"))


def comes_true(condition: Callable[[], bool], limit_s: float) -> bool:
    began_s = time.monotonic()
    while not (is_true := condition()) and not is_over(began_s, limit_s):
        time.sleep(0.2)
    return is_true


def test_the_launcher_names_the_runtime_and_the_device(stack: RunningStack) -> None:
    assert "computes on vLLM 0.32.0 on the CPU" in stack.output()


async def test_the_ids_are_those_of_transformers(
    stack: RunningStack, in_transformers: Any, checkpoint: Path
) -> None:
    from tests.engine.checkpoints import greedy_choices

    assert len(stack.processes("VLLM::Worker")) == PROCESSES
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
    stack: RunningStack,
    whole: str,
    in_transformers: Any,
    checkpoint: Path,
    data_dir: Path,
    tmp_path: Path,
) -> None:
    from tests.engine.adapters.random_adapters import write_adapter

    def adapter(*words: str) -> None:
        options = ["--config", str(stack.state_dir.parent / "inflight.toml"), "--data-dir", str(data_dir)]
        result = CliRunner().invoke(adapter_commands, [*words, *options])
        assert result.exit_code == 0, result.output

    name = f"{stack.model}:sql"
    merged = write_adapter(in_transformers, tmp_path / "sql", modules=("q_proj", "down_proj"), seed=1)
    adapter("add", name, str(tmp_path / "sql"))
    words = (await complete(stack, model=name)).json()["choices"][0]["text"]
    assert words == greedy_text(merged, checkpoint) != whole
    assert (await complete(stack)).json()["choices"][0]["text"] == whole
    adapter("remove", name)
    assert (await complete(stack, model=name)).status_code == 404
    given_back = await asyncio.to_thread(comes_true, lambda: GIVEN_BACK in engine_log(stack), 60)
    assert given_back, engine_log(stack)


async def test_what_vllm_does_not_do_is_refused_by_name(stack: RunningStack, checkpoint: Path) -> None:
    prompt = prompt_ids(checkpoint)
    inputs = {"input_ids": prompt, "input_lengths": len(prompt), "request_output_len": 2}
    request = build_request("tensorrt_llm", "refused", {**inputs, "return_context_logits": True})
    async with TritonCalls(stack.triton_grpc_url) as triton:
        with pytest.raises(Exception, match="return_context_logits has True, which vLLM does not support"):
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


@pytest.fixture(scope="module")
def broken(stack: RunningStack, checkpoint: Path) -> str:
    """What a running stream was told when the core was killed; for the last tests of this file."""
    return asyncio.run(break_the_core(stack, prompt_ids(checkpoint)))


async def break_the_core(stack: RunningStack, prompt: list[int]) -> str:
    (core,) = stack.processes("VLLM::EngineCore")
    asked = {"input_ids": prompt, "input_lengths": len(prompt), "request_output_len": 900, "streaming": True}
    async with TritonCalls(stack.triton_grpc_url) as triton:
        answer = triton.stream(build_request("tensorrt_llm", "broken", asked))
        await anext(answer)
        core.kill()
        with pytest.raises(RuntimeError) as told:
            [response async for response in answer]
    return str(told.value)


def test_an_engine_ends_with_its_core_and_says_so_to_whom_it_answers(
    stack: RunningStack, broken: str
) -> None:
    assert re.search("vLLM|the engine process ended", broken)  # by whoever notices first
    assert comes_true(lambda: "the engine process ended" in engine_log(stack), 60), engine_log(stack)


@pytest.mark.usefixtures("broken")
async def test_an_engine_that_ended_with_its_core_is_revived(stack: RunningStack, whole: str) -> None:
    assert await asyncio.to_thread(comes_true, lambda: answers(stack), 600)
    assert (await complete(stack)).json()["choices"][0]["text"] == whole
