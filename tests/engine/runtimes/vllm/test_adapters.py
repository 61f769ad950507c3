"""When vLLM is told to give an adapter back: while nobody has it, for it would read its files again."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from python_backend.engine.request import GenerationRequest
from python_backend.engine.runtimes.declared import VLLM
from python_backend.engine.runtimes.hosted.runtime import HostedRuntime, HostFacts
from python_backend.engine.runtimes.vllm.adapters import VllmAdapters
from python_backend.engine.runtimes.vllm.host import VllmHost
from python_backend.engine.runtimes.vllm.translator import VllmTranslator
from tests.engine.runtimes.vllm.test_translator import API
from tests.fakes.conversation import HandConversation

FACTS = HostFacts(100, 64, 2, 32, 16, 16)


@pytest.fixture
def adapters(tmp_path: Path) -> VllmAdapters:
    for name in ("sql", "prose"):
        (tmp_path / name).mkdir()
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            (tmp_path / name / file).write_text("{}")
    return VllmAdapters(tmp_path, SimpleNamespace)


class Run:
    def __init__(self, adapters: VllmAdapters) -> None:
        self.there = HandConversation()
        translator = VllmTranslator(API, VLLM.capabilities, True, (), adapters)
        self.runtime = HostedRuntime(self.there, translator, FACTS)

    def add(self, key: int, adapter: str) -> None:
        self.runtime.add(key, GenerationRequest([5, 6], 8, adapter=adapter), time.monotonic_ns())


def test_it_is_given_back_at_once_where_nobody_has_it(adapters: VllmAdapters) -> None:
    run = Run(adapters)
    run.add(1, "prose")
    run.runtime.step()
    run.runtime.drop_adapter("sql")
    assert run.there.dropped_adapters == ["sql"]


def test_it_is_given_back_once_when_the_last_that_has_it_is_over(adapters: VllmAdapters) -> None:
    run = Run(adapters)
    for key in (1, 2, 3):  # the third waits for a slot
        run.add(key, "sql")
    run.runtime.step()
    run.runtime.drop_adapter("sql")
    run.there.say(0, 7, ends="length")
    run.runtime.step()
    run.there.say(1, 7, ends="length")
    run.runtime.step()
    assert run.there.dropped_adapters == []
    run.runtime.cancel(3)  # it may still be computed until that is confirmed
    run.runtime.step()
    assert run.there.dropped_adapters == []
    run.there.say(2, ends="abort")
    run.runtime.step()
    run.runtime.step()
    assert run.there.dropped_adapters == ["sql"]


def test_every_content_that_a_name_had_is_removed(adapters: VllmAdapters, tmp_path: Path) -> None:
    removed: list[int] = []

    async def remove_lora(number: int) -> bool:
        removed.append(number)
        return number != 1

    first = adapters.request_for("sql")
    adapters.request_for("prose")
    (tmp_path / "sql" / "adapter_config.json").write_text("{ }")
    second = adapters.request_for("sql")
    host = VllmHost(SimpleNamespace(remove_lora=remove_lora), adapters)
    asyncio.run(host.drop_adapter("sql"))
    asyncio.run(host.drop_adapter("nobody"))
    assert removed == [first.lora_int_id, second.lora_int_id]
    asyncio.run(VllmHost(SimpleNamespace(remove_lora=remove_lora)).drop_adapter("sql"))
