"""Guessed tokens where steps overlap otherwise: answers stay what they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from python_backend.engine.config import EngineConfig
from python_backend.engine.engine import Engine
from python_backend.engine.request import GenerationRequest, SamplingParams
from tests.engine.checkpoints import random_llama, save
from tests.engine.cuda.engines import build_cuda_engine
from tests.engine.drained import events_of
from tests.engine.steps.test_speculation import REPEATED, answers, settled

PROMPT = REPEATED[:8]
# Not greedy: such a small model says one thing again and again then.
AS_MODEL_SAYS = SamplingParams(top_p=1.0, seed=11)
DRAWING = GenerationRequest(PROMPT, 8, sampling=AS_MODEL_SAYS, returns_log_probs=True)


pytestmark = pytest.mark.usefixtures("few_programs")


def engine_of(tmp_path: Path, device: str) -> Engine:
    """One layer: this is about what happens around the model."""
    tiny = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1}
    config = EngineConfig(
        str(save(random_llama(num_attention_heads=2, num_key_value_heads=1, **tiny), tmp_path)),
        max_tokens_in_kv_cache=128,
        tokens_per_block=4,
        max_batch_size=8,
        max_step_tokens=24,
        check_blocks=True,
        precision="fp32",
        device=device,
        speculates=True,
    )
    engine = settled(build_cuda_engine(config, device))
    assert engine._speculator is not None
    engine._speculator._costs.observe(16, 0.0, 0, 0.0)  # whatever can be guessed is
    return engine


def rounded(found: dict[tuple[int, int], tuple[Any, ...]]) -> dict[tuple[int, int], tuple[Any, ...]]:
    """Log probabilities depend on the rest of the batch, in their last bits."""
    return {name: (ids, [round(each, 3) for each in probs], end) for name, (ids, probs, end) in found.items()}


def test_an_answer_is_the_same_when_it_is_guessed(tmp_path: Path, device: str) -> None:
    """From an earlier one, with which it begins; a third differs from both after a few tokens."""
    engine = engine_of(tmp_path, device)
    engine.add(0, DRAWING)
    first = rounded(answers(events_of(engine)))[0, 0]
    assert engine.gauges().drafted_tokens == 0
    other = replace(DRAWING, bad_sequences=((first[0][5],),))
    engine.add(1, DRAWING)
    engine.add(2, other)
    found = rounded(answers(events_of(engine)))
    assert found[1, 0] == first
    assert found[2, 0][0][:5] == first[0][:5]
    assert found[2, 0][0][5] != first[0][5]
    gauges = engine.gauges()
    assert 0 < gauges.accepted_drafts < gauges.drafted_tokens
    assert gauges.generated_tokens > gauges.sequence_steps
