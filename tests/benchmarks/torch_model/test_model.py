"""Chunks through torch's decoder and its cache, against the same decoder over a whole prompt at once."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks.torch_model.model import TorchModel
from python_backend.engine.checkpoint import Checkpoint
from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.kv.table import BlockCopy
from python_backend.engine.models import load_weights
from python_backend.engine.request import GenerationRequest
from python_backend.engine.scheduling.plan import Chunk
from python_backend.engine.sequence import Sequence
from tests.engine.checkpoints import VOCABULARY, random_variant, save
from tests.engine.models.dense import dense_logits

DICE = random.Random(0)
PROMPTS = [[DICE.randrange(VOCABULARY) for _ in range(length)] for length in (30, 5, 17)]


class Case:
    def __init__(self, variant: str, directory: Path) -> None:
        weights = load_weights(Checkpoint(save(random_variant(variant), directory)))
        self.pool = BlockPool(40, 4)
        self.model = TorchModel(weights, self.pool.total_blocks, self.pool.tokens_per_block, threads=1)
        self.expected = [dense_logits(weights, prompt).numpy() for prompt in PROMPTS]

    def sequence(self, number: int) -> Sequence:
        sequence = Sequence(number, number, GenerationRequest(PROMPTS[number], 1), 1)
        assert self.pool.grow(sequence.table, len(sequence.tokens))
        return sequence


@pytest.fixture(scope="module", params=["mixtral, windowed, tied", "qwen3 moe", "gemma3"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("model"))


def test_wanted_rows_come_in_the_order_of_the_chunks(case: Case) -> None:
    sequences = [case.sequence(number) for number in range(3)]
    dice = random.Random(1)
    while active := [sequence for sequence in sequences if sequence.pending_tokens]:
        dice.shuffle(active)
        chunks = [
            Chunk(each, each.computed_tokens, dice.randint(1, min(9, each.pending_tokens))) for each in active
        ]
        places = [
            (chunk.sequence.key, position) for chunk in chunks for position in range(chunk.start, chunk.end)
        ]
        wanted = sorted(dice.sample(range(len(places)), dice.randint(1, len(places))))
        logits = case.model.forward(chunks, [], wanted)
        for row, found in zip(wanted, logits, strict=True):
            key, position = places[row]
            np.testing.assert_allclose(found, case.expected[key][position], rtol=1e-3, atol=2e-3)
        for chunk in chunks:
            chunk.sequence.computed_tokens = chunk.end
    for sequence in sequences:
        case.pool.release(sequence.table)


def test_a_copied_block_equals_its_source(case: Case) -> None:
    sequence = case.sequence(0)
    case.model.forward([Chunk(sequence, 0, 20)], [], [])
    copies = []
    for index, source in enumerate(sequence.table.blocks[:5]):
        target = case.pool.total_blocks - 1 - index
        assert target not in sequence.table.blocks
        sequence.table.blocks[index] = target
        copies.append(BlockCopy(source, target))
    (logits,) = case.model.forward([Chunk(sequence, 20, 10)], copies, [9])
    np.testing.assert_allclose(logits, case.expected[0][29], rtol=1e-3, atol=2e-3)
    for index, copy in enumerate(copies):
        sequence.table.blocks[index] = copy.source
    case.pool.release(sequence.table)
