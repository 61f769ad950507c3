"""Which batch sizes get a graph, and which of them a step uses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from python_backend.engine.config import EngineConfig
from python_backend.engine.cuda.graphs import (
    StepGraphs,
    _smallest_with_room,
    graph_sizes,
    mixed_sizes,
    whole_tiles,
)
from python_backend.engine.cuda.host_rows import HostRows
from python_backend.engine.cuda.pinned_memory import Staging
from python_backend.engine.request import GenerationRequest
from tests.engine.checkpoints import greedy_choices, random_llama, save
from tests.engine.cuda.engines import build_cuda_engine
from tests.engine.drained import answers_of

pytestmark = pytest.mark.usefixtures("few_programs")
batch_sizes = st.integers(1, 2000)


@given(batch_sizes)
def test_graph_sizes_go_up_to_the_largest_batch(most: int) -> None:
    sizes = graph_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] == most


@given(batch_sizes)
def test_graph_sizes_waste_few_padding_rows(most: int) -> None:
    size_for = _smallest_with_room(graph_sizes(most))
    for rows in range(1, most + 1):
        assert size_for[rows] - rows < max(8, rows // 4 + 1, 32 * (rows > 256))


@given(batch_sizes)
def test_a_step_uses_the_smallest_graph_that_fits(most: int) -> None:
    sizes = graph_sizes(most)
    size_for = _smallest_with_room(sizes)
    assert len(size_for) == most + 1
    for rows in range(1, most + 1):
        assert size_for[rows] == min(size for size in sizes if size >= rows)


def test_the_graph_sizes_up_to_512_are_few_enough_to_capture_in_seconds() -> None:
    assert len(graph_sizes(512)) < 40


@given(st.integers(1, 8192))
def test_steps_with_prompts_have_graphs_up_to_the_largest_step(most: int) -> None:
    sizes = mixed_sizes(most)
    assert sizes == sorted(set(sizes))
    assert all(size <= most for size in sizes)
    assert len(sizes) < 20


@given(st.integers(1, 20_000))
def test_steps_without_a_graph_are_filled_up_to_whole_tiles(rows: int) -> None:
    assert whole_tiles(rows) % 128 == 0
    assert 0 <= whole_tiles(rows) - rows < 128


def watched(graphs: StepGraphs) -> list[int]:
    """How many rows each step with prompts has that a graph runs."""
    ran, run = list[int](), graphs.run_mixed

    def run_mixed(rows: HostRows, staging: Staging) -> torch.Tensor:
        ran.append(len(rows))
        return run(rows, staging)

    graphs.run_mixed = run_mixed  # type: ignore[method-assign]
    return ran


def test_a_step_with_prompts_in_a_graph_gives_what_it_gives_launched_one_by_one(
    device: str, tmp_path: Path
) -> None:
    """Beside rows that fill it up: prompts, part of a prompt, and single tokens."""
    model = random_llama(
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=64,
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=1,
    )
    config = EngineConfig(
        str(save(model, tmp_path)),
        max_tokens_in_kv_cache=128,
        tokens_per_block=4,
        max_batch_size=4,
        max_step_tokens=16,
        check_blocks=True,
        precision="fp32",
        device=device,
    )
    prompts = [[3, 14, 15, 9, 26], [5, 35, 8, 9, 7, 9, 3, 2, 38, 46, 2, 6, 43, 38], [3]]
    answers = []
    for is_recorded in (False, True):
        engine = build_cuda_engine(config, device)
        graphs = engine._executor._graphs  # type: ignore[attr-defined]
        graphs.is_recorded = is_recorded
        ran = watched(graphs)
        for key, prompt in enumerate(prompts):
            engine.add(key, GenerationRequest(prompt, 3))
        answers.append(answers_of(engine))
        assert bool(ran) is is_recorded
    assert answers[0] == answers[1]
    for key, prompt in enumerate(prompts):
        answer, _ = answers[0][key, 0]
        assert answer == greedy_choices(model, prompt, answer)
