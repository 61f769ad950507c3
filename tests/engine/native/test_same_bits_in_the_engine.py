"""The engine's ways around computing a token twice, and its ways of doing so, change no bit of the logits."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backend.engine.build import build_engine
from python_backend.engine.checkpoint import Checkpoint
from python_backend.engine.config import EngineConfig
from python_backend.engine.engine import Engine
from python_backend.engine.models import load_weights
from python_backend.engine.native.packed_model import FORMATS, packed_dir
from python_backend.engine.request import GenerationRequest, SamplingParams
from tests.engine.checkpoints import VOCABULARY, random_model, save
from tests.engine.drained import events_of
from tests.engine.native.runs import Runner, assert_same_bits

NEW_TOKENS = 12
DICE = random.Random(3)
PROMPTS = [[DICE.randrange(VOCABULARY) for _ in range(length)] for length in (40, 5, 33, 1, 21, 16)]


class Case:
    """A checkpoint in one precision, and a runner that computes whole sequences alone as the judge."""

    def __init__(self, precision: str, directory: Path, family: str = "Llama", **changes: Any) -> None:
        checkpoint = save(random_model(family, **changes), directory / "checkpoint")
        packed_cache = directory / "packed"
        self.config = EngineConfig(
            str(checkpoint),
            max_tokens_in_kv_cache=1024,
            max_sequence_tokens=64,
            threads=1,
            precision=precision,
            packed_cache_dir=str(packed_cache),
            check_blocks=True,
        )
        weights = load_weights(Checkpoint(checkpoint))
        packed = packed_dir(checkpoint, precision, packed_cache)
        self._judge = Runner(weights, FORMATS[precision], packed)

    def check(self, engine: Engine, requests: list[GenerationRequest]) -> None:
        """Every token was chosen from the very logits that the whole answer gives when it is alone."""
        for key, request in enumerate(requests):
            engine.add(key, replace(request, returns_generation_logits=True))
        ids: dict[tuple[int, int], list[int]] = {}
        logits: dict[tuple[int, int], bytes] = {}
        for event in events_of(engine):
            name = (event.key, event.sequence_index)
            assert event.error is None
            ids[name] = ids.get(name, []) + event.token_ids
            logits[name] = logits.get(name, b"") + (event.generation_logits or b"")
        assert len(ids) == sum(request.num_return_sequences for request in requests)
        for name, answer in ids.items():
            prompt = requests[name[0]].prompt_ids
            alone = self._judge.all_logits([*prompt, *answer[:-1]])[len(prompt) - 1 :]
            found = np.frombuffer(logits[name], np.float32).reshape(alone.shape)
            assert_same_bits(found, alone)
        assert engine.gauges().used_blocks == 0


@pytest.fixture(scope="module", params=FORMATS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("model"))


def requests(prompts: list[list[int]]) -> list[GenerationRequest]:
    return [GenerationRequest(prompt, NEW_TOKENS) for prompt in prompts]


def test_small_chunks_in_flight_together_change_no_bit(case: Case) -> None:
    engine = build_engine(replace(case.config, max_batch_size=5, max_step_tokens=7))
    case.check(engine, requests(PROMPTS))


def test_a_prompt_found_in_the_cache_changes_no_bit(case: Case) -> None:
    engine = build_engine(case.config)
    case.check(engine, requests(PROMPTS[:1]))
    reused_blocks = engine.gauges().reused_blocks
    longer = [PROMPTS[0] + PROMPTS[1], PROMPTS[0], PROMPTS[0][:32] + PROMPTS[2][:9]]
    case.check(engine, requests(longer))
    assert engine.gauges().reused_blocks >= reused_blocks + 6


def test_preemption_and_recomputation_change_no_bit(case: Case) -> None:
    small = replace(
        case.config,
        max_tokens_in_kv_cache=72,
        tokens_per_block=4,
        guaranteed_no_evict=False,
    )
    engine = build_engine(small)
    case.check(engine, requests(PROMPTS))
    assert engine.gauges().preemptions > 0


@pytest.mark.parametrize(
    "prompt", [PROMPTS[0], PROMPTS[4]], ids=["within a block", "at another place of one"]
)
def test_forking_from_a_shared_prompt_changes_no_bit(case: Case, prompt: list[int]) -> None:
    engine = build_engine(case.config)
    sampling = SamplingParams(temperature=1.5, top_k=50, seed=7)
    forks = GenerationRequest(prompt, NEW_TOKENS, sampling=sampling, num_return_sequences=4)
    case.check(engine, [forks, *requests(PROMPTS)])


def test_blocks_let_go_before_a_window_change_no_bit(tmp_path: Path) -> None:
    """The judge keeps all of them."""
    case = Case("fp32", tmp_path, "Mistral", sliding_window=7, head_dim=20)
    small = replace(
        case.config, max_tokens_in_kv_cache=72, tokens_per_block=4, max_batch_size=5, max_step_tokens=9
    )
    engine = build_engine(small)
    case.check(engine, requests(PROMPTS))
    sampling = SamplingParams(temperature=1.5, top_k=50, seed=7)
    case.check(engine, [GenerationRequest(PROMPTS[0], 9, sampling=sampling, num_return_sequences=3)])
    engine.add(99, GenerationRequest(PROMPTS[0], NEW_TOKENS))
    used = []
    while engine.has_work:
        engine.step()
        used.append(engine.gauges().used_blocks)
    assert 0 < used[-2] <= 4, "of 13 blocks of four tokens only those of its window are left"
