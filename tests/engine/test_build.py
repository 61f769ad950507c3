from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from python_backend.engine.build import build_engine
from python_backend.engine.config import EngineConfig
from python_backend.engine.engine import Engine
from python_backend.engine.kv.size import GIB, default_blocks
from python_backend.engine.report import FinishReason
from python_backend.engine.request import GenerationRequest, SamplingParams
from python_backend.wire.errors import ErrorKind, InflightError
from tests.engine.checkpoints import VOCABULARY, random_llama, random_variant, save

# How answers come out the same in any company.
PRECISIONS = {"cpu": "int8", "cuda": "fp32"}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, device: str) -> EngineConfig:
    directory = save(random_llama(), tmp_path_factory.mktemp("llama"))
    return EngineConfig(
        str(directory),
        max_tokens_in_kv_cache=4096,
        max_batch_size=64 if device == "cpu" else 8,  # on a GPU each batch size costs a graph
        threads=1,
        device=device,
        precision=PRECISIONS[device],
    )


def answer(engine: Engine, key: int) -> tuple[list[int], FinishReason | None]:
    """Steps until nothing is left; what one sequence got and how it ended."""
    token_ids: list[int] = []
    end = None
    while engine.has_work:
        for output in engine.step():
            if output.key == key:
                token_ids += output.token_ids
                end = output.finish_reason
        engine.pool.check()
    return token_ids, end


def test_a_sequence_may_be_as_long_as_the_model_has_positions(config: EngineConfig) -> None:
    engine = build_engine(config)
    assert engine.limits.max_sequence_tokens == 256
    assert engine.limits.vocabulary == VOCABULARY
    engine.add(1, GenerationRequest([1] * 255, 100))
    assert len(answer(engine, 1)[0]) == 1


def test_what_is_computed_to_know_a_lone_step_leaves_nothing_behind(
    config: EngineConfig, tmp_path: Path
) -> None:
    plain = build_engine(config)
    tried = build_engine(replace(config, machine="this one", packed_cache_dir=str(tmp_path)))
    assert not tried.has_work
    gauges = tried.gauges()
    assert (gauges.step_count, gauges.busy_ns, gauges.used_blocks) == (0, 0, 0)
    assert (gauges.generated_tokens, gauges.sequence_steps, gauges.cached_blocks) == (0, 0, 0)
    for engine in (plain, tried):
        engine.add(1, GenerationRequest([3, 5, 7], 8))
    assert answer(tried, 1) == answer(plain, 1)


def test_a_cache_smaller_than_the_context_limits_sequences_and_says_so(
    config: EngineConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        engine = build_engine(replace(config, max_tokens_in_kv_cache=100))
    assert engine.limits.max_sequence_tokens == 96
    assert "holds 96 tokens" in caplog.text


def test_what_a_cache_holds_where_layers_have_windows_is_said(
    config: EngineConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = save(random_variant("gemma3"), tmp_path)
    with caplog.at_level(logging.INFO):
        engine = build_engine(
            replace(config, checkpoint_dir=str(directory), max_tokens_in_kv_cache=512, max_step_tokens=64)
        )
    ready = engine.describe()
    if config.device == "cpu":  # on a GPU a tile more than the window is kept
        assert (
            "a sliding window keep 9 tokens: the KV cache holds 1280 tokens in sequences of 256"
            in caplog.text
        )
        assert (ready.total_blocks, ready.window_tokens, ready.window_blocks) == (32 * 7, 3 * 16, 6)
    assert ready.keeps_all


def test_more_positions_than_the_model_has_are_refused(config: EngineConfig) -> None:
    with pytest.raises(
        InflightError, match="inflight_max_sequence_tokens is '257'; allowed: 1 to 256"
    ) as refused:
        build_engine(replace(config, max_sequence_tokens=257))
    assert refused.value.kind is ErrorKind.INVALID_REQUEST


@pytest.mark.parametrize(
    ("blocks_of_longest", "expected_gib"), [(10, 1.0), (1500, 1500 / 1024), (10**6, 2.0)]
)
def test_the_default_cache_is_one_gib_and_up_to_two_for_a_full_sequence(
    blocks_of_longest: int, expected_gib: float
) -> None:
    blocks = default_blocks(2**20, blocks_of_longest)
    assert blocks * 2**20 == expected_gib * GIB


def test_a_seed_gives_the_same_answer_alone_in_a_batch_and_after_preemption(config: EngineConfig) -> None:
    sampling = SamplingParams(temperature=1.3, top_p=0.9, repetition_penalty=1.1, seed=42)
    wanted = GenerationRequest([5, 6, 7], 40, sampling=sampling)
    alone = build_engine(config)
    alone.add(0, wanted)
    expected, _ = answer(alone, 0)
    assert len(set(expected)) > 10

    crowded = build_engine(
        replace(config, max_tokens_in_kv_cache=100, tokens_per_block=4, guaranteed_no_evict=False)
    )
    for key in range(1, 4):
        companion = SamplingParams(top_p=1.0, seed=key)
        crowded.add(key, GenerationRequest([key] * 9, 40, sampling=companion))
    crowded.add(0, wanted)
    assert answer(crowded, 0)[0] == expected
    assert crowded.gauges().preemptions > 0


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory, device: str) -> EngineConfig:
    """A model that gives no numbers to a sequence with token 13, and a cache that is reused at once."""
    model = random_llama()
    with torch.no_grad():
        model.model.embed_tokens.weight[13] = float("nan")
    directory = save(model, tmp_path_factory.mktemp("poisoned"))
    return EngineConfig(
        str(directory),
        max_tokens_in_kv_cache=64,
        max_batch_size=8,
        max_step_tokens=24,
        threads=1,
        device=device,
        precision=PRECISIONS[device],
    )


def test_a_sequence_with_nan_scores_affects_no_other(poisoned: EngineConfig) -> None:
    healthy = GenerationRequest([1, 2, 3], 20)
    alone = build_engine(poisoned)
    alone.add(0, healthy)
    expected = answer(alone, 0)

    engine = build_engine(poisoned)
    engine.add(1, GenerationRequest([13] * 20, 5))
    engine.add(2, GenerationRequest([4] * 4, 20))
    engine.add(0, healthy)
    # Where two steps may be under way, the first is told of with the second.
    first_events = engine.step() or engine.step()
    ends = {output.key: output.finish_reason for output in first_events}
    assert ends == {1: FinishReason.ERROR, 2: None}
    assert answer(engine, 0) == expected


def test_blocks_left_by_a_cancelled_sequence_affect_no_other(poisoned: EngineConfig) -> None:
    healthy = GenerationRequest([1, 2, 3], 20)
    engine = build_engine(poisoned)
    engine.add(0, healthy)
    expected = answer(engine, 0)
    engine.add(1, GenerationRequest([13] * 60, 4))
    assert engine.step() == []
    engine.cancel(1)
    engine.add(0, healthy)
    assert answer(engine, 0) == expected
