"""The torch engine against transformers: the same ids, however the work is cut and batched."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from python_backend.engine.build import build_engine
from python_backend.engine.engine import Engine, EngineConfig
from python_backend.engine.sequence import GenerationRequest
from tests.engine.checkpoints import SHAPES, VOCABULARY, greedy_choices, random_llama, save

NEW_TOKENS = 16
PROMPT_LENGTHS = (1, 15, 16, 17, 40, 90)


class Case:
    """A checkpoint on disk, some prompts, and transformers to judge the answers."""

    def __init__(self, shape: str, directory: Path) -> None:
        self._model = random_llama(**SHAPES[shape])
        checkpoint_dir = str(save(self._model, directory))
        self.config = EngineConfig(checkpoint_dir, max_tokens_in_kv_cache=4096, threads=1)
        dice = random.Random(shape)
        self.prompts = [[dice.randrange(VOCABULARY) for _ in range(length)] for length in PROMPT_LENGTHS]

    def check(self, engine: Engine, prompts: list[list[int]]) -> None:
        """Sends the prompts all at once; every answer must be transformers' own, token for token."""
        for key, prompt in enumerate(prompts):
            engine.add(key, GenerationRequest(prompt, NEW_TOKENS))
        answers: list[list[int]] = [[] for _ in prompts]
        while engine.has_work:
            for output in engine.step():
                answers[output.key] += output.token_ids
            engine.pool.check()
        for prompt, answer in zip(prompts, answers, strict=True):
            assert len(answer) == NEW_TOKENS
            assert answer == greedy_choices(self._model, prompt, answer)


@pytest.fixture(scope="module", params=sorted(SHAPES))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("llama"))


def test_alone_the_ids_are_those_of_transformers(case: Case) -> None:
    engine = build_engine(case.config)
    for prompt in case.prompts:
        case.check(engine, [prompt])


def test_in_flight_together_the_ids_are_those_of_transformers(case: Case) -> None:
    case.check(build_engine(case.config), case.prompts)


def test_prompts_in_tiny_chunks_give_the_ids_of_transformers(case: Case) -> None:
    engine = build_engine(replace(case.config, max_batch_size=7, max_step_tokens=9))
    case.check(engine, case.prompts)
    case.check(engine, case.prompts[-1:])


def test_preempted_and_recomputed_the_ids_are_those_of_transformers(case: Case) -> None:
    engine = build_engine(
        replace(case.config, max_tokens_in_kv_cache=120, tokens_per_block=4, guaranteed_no_evict=False)
    )
    case.check(engine, case.prompts)
    assert engine.stats.preemption_count > 0


def test_static_batches_give_the_ids_of_transformers(case: Case) -> None:
    case.check(build_engine(replace(case.config, max_batch_size=3, static_batching=True)), case.prompts)
