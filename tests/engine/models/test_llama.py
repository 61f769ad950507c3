"""The torch engine against transformers: the same ids, however the work is cut and batched."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from python_backend.engine.build import build_engine
from python_backend.engine.engine import Engine, EngineConfig
from python_backend.engine.sequence import GenerationRequest
from tests.engine.checkpoints import SHAPES, VOCABULARY, greedy_continuation, random_llama, save

NEW_TOKENS = 24
PROMPT_LENGTHS = (1, 2, 15, 16, 17, 40, 90)


class Case:
    """A checkpoint on disk, some prompts, and the answers transformers gives to them."""

    def __init__(self, shape: str, directory: Path) -> None:
        model = random_llama(**SHAPES[shape])
        self.config = EngineConfig(str(save(model, directory)), threads=1)
        dice = random.Random(shape)
        self.prompts = [[dice.randrange(VOCABULARY) for _ in range(length)] for length in PROMPT_LENGTHS]
        self.answers = [greedy_continuation(model, prompt, NEW_TOKENS) for prompt in self.prompts]


@pytest.fixture(scope="module", params=sorted(SHAPES))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("llama"))


def answers(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    for key, prompt in enumerate(prompts):
        engine.add(key, GenerationRequest(prompt, NEW_TOKENS))
    found: list[list[int]] = [[] for _ in prompts]
    while engine.has_work:
        for output in engine.step():
            found[output.key] += output.token_ids
        engine.pool.check()
    return found


def test_alone_the_ids_are_those_of_transformers(case: Case) -> None:
    engine = build_engine(case.config)
    assert [answers(engine, [prompt])[0] for prompt in case.prompts] == case.answers


def test_in_flight_together_the_ids_are_those_of_transformers(case: Case) -> None:
    assert answers(build_engine(case.config), case.prompts) == case.answers


def test_prompts_in_tiny_chunks_give_the_ids_of_transformers(case: Case) -> None:
    engine = build_engine(replace(case.config, max_batch_size=7, max_step_tokens=9))
    assert answers(engine, case.prompts) == case.answers


def test_preempted_and_recomputed_the_ids_are_those_of_transformers(case: Case) -> None:
    engine = build_engine(
        replace(case.config, max_tokens_in_kv_cache=120, tokens_per_block=4, guaranteed_no_evict=False)
    )
    assert answers(engine, case.prompts) == case.answers
    assert engine.stats.preemption_count > 0


def test_static_batches_give_the_ids_of_transformers(case: Case) -> None:
    engine = build_engine(replace(case.config, max_batch_size=3, static_batching=True))
    assert answers(engine, case.prompts) == case.answers
