"""The compiled step: a sequence's logits are the same bits whatever runs beside it and however it is cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.engine.checkpoint import Checkpoint
from python_backend.engine.models import load_weights
from python_backend.engine.models.decoder import DecoderWeights
from python_backend.engine.native.microkernel import Format
from tests.engine.checkpoints import VARIANTS, VOCABULARY, random_variant, save
from tests.engine.models.dense import dense_logits
from tests.engine.native.runs import Floats, RoundedWeights, Runner, assert_same_bits
from tests.tiers import examples, few

# Its embedding is not a number, and no prompt holds it unless a test puts it there.
POISON = VOCABULARY - 1
DICE = random.Random(0)
PROMPTS = [[DICE.randrange(POISON) for _ in range(length)] for length in (50, 1, 16, 37, 3)]
# Between them: windows, biases, norms of heads and of what comes out, softcaps, odd sizes, experts.
INVARIANT = (
    "mistral, small window",
    "qwen3, tied, biases, one key head",
    "gemma2, untied, low softcaps",
    "qwen3 moe, shares made whole, some layers dense",
)


def weights_of(variant: str, directory: Path, poisoned: bool = False) -> DecoderWeights:
    model = random_variant(variant)
    if poisoned:
        with torch.no_grad():
            model.get_parameter("model.embed_tokens.weight")[POISON, 7] = torch.nan
    return load_weights(Checkpoint(save(model, directory)))


class Case:
    """One model in one format; `expected` are all logits of each prompt, alone and computed whole."""

    def __init__(self, variant: str, kind: Format, directory: Path) -> None:
        self._weights = weights_of(variant, directory / "checkpoint")
        self._kind = kind
        self._packed = directory / "packed"
        self.runner = self.another()
        self.expected = [self.runner.all_logits(prompt) for prompt in PROMPTS]

    def another(self, threads: int = 1, tokens_per_block: int = 16) -> Runner:
        return Runner(self._weights, self._kind, self._packed, threads, tokens_per_block)

    def check_together(self, runner: Runner, dice: random.Random) -> None:
        """All prompts side by side, in chunks of any size, in any order; steps are asked for some logits."""
        sequences = [runner.sequence(prompt) for prompt in PROMPTS]
        while active := [index for index, sequence in enumerate(sequences) if sequence.pending_tokens]:
            dice.shuffle(active)
            active = active[: dice.randint(1, len(active))]
            counts = [dice.randint(1, sequences[index].pending_tokens) for index in active]
            expected = np.concatenate(
                [
                    self.expected[index][sequences[index].computed_tokens :][:count]
                    for index, count in zip(active, counts, strict=True)
                ]
            )
            share = dice.choice((0.0, 0.2, 1.0))
            wanted = [row for row in range(len(expected)) if dice.random() < share]
            work = zip((sequences[index] for index in active), counts, strict=True)
            assert_same_bits(runner.step(*work, wanted=wanted), expected[wanted])
        for sequence in sequences:
            runner.forget(sequence)


@pytest.fixture(
    scope="module",
    params=[(variant, kind) for variant in INVARIANT for kind in Format],
    ids=lambda param: f"{param[0]} in {param[1].name}",
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    variant, kind = request.param
    case = Case(variant, kind, tmp_path_factory.mktemp("model"))
    yield case
    case.runner.close()


@settings(deadline=None, max_examples=examples(10))
@given(seed=st.integers(0, 10_000))
def test_batches_and_chunks_change_no_bit_of_the_logits(case: Case, seed: int) -> None:
    case.check_together(case.runner, random.Random(seed))


@pytest.mark.parametrize("chunk_tokens", few([1, 2, 3, 4, 5, 7, 16, 33], [1, 5, 33]))
def test_chunks_of_a_prompt_alone_change_no_bit_of_the_logits(case: Case, chunk_tokens: int) -> None:
    assert_same_bits(case.runner.all_logits(PROMPTS[0], chunk_tokens), case.expected[0])


@pytest.mark.parametrize("threads", few([2, 3], 1))
def test_threads_change_no_bit_of_the_logits(case: Case, threads: int) -> None:
    runner = case.another(threads)
    for seed in range(3):
        case.check_together(runner, random.Random(seed))
    runner.close()


@pytest.mark.parametrize("tokens_per_block", few([1, 4, 24, 64]))
def test_the_block_size_changes_no_bit_of_the_logits(case: Case, tokens_per_block: int) -> None:
    case.check_together(case.another(tokens_per_block=tokens_per_block), random.Random(tokens_per_block))


@pytest.mark.parametrize("variant", ["llama", "qwen3 moe, shares made whole, some layers dense"])
def test_a_nan_stays_in_its_own_sequence(variant: str, tmp_path: Path) -> None:
    weights = weights_of(variant, tmp_path / "checkpoint", poisoned=True)
    for kind in Format:
        runner = Runner(weights, kind, tmp_path / kind.name)
        expected = [runner.all_logits(prompt) for prompt in PROMPTS]
        spoiled = [*PROMPTS[3][:20], POISON, *PROMPTS[3][20:]]
        work = [runner.sequence(prompt) for prompt in (*PROMPTS[:3], spoiled, *PROMPTS[3:])]
        counts = [sequence.pending_tokens for sequence in work]
        together = np.split(runner.step(*zip(work, counts, strict=True)), np.cumsum(counts)[:-1])
        assert np.isnan(together.pop(3)[20:]).all()
        for found, alone in zip(together, expected, strict=True):
            assert_same_bits(found, alone)
        for sequence in work:
            runner.forget(sequence)
        # The blocks it leaves behind hold what is not a number: nobody may see it.
        for prompt, alone in zip(PROMPTS, expected, strict=True):
            assert_same_bits(runner.all_logits(prompt), alone)


def distance(found: Floats, expected: Floats) -> float:
    """Of a row in the middle, beside how far the expected are from their mean.

    Rounding sends a row now and then to another expert, and then it is nowhere near.
    """
    return float(np.median(np.sqrt(((found - expected) ** 2).mean(1) / expected.var(1))))


@pytest.mark.parametrize("variant", few(VARIANTS, 8))
def test_every_family_stays_near_plain_arithmetic_in_every_format(variant: str, tmp_path: Path) -> None:
    weights = weights_of(variant, tmp_path / "checkpoint")
    prompt = PROMPTS[0]
    exact = dense_logits(weights, prompt).numpy()
    for kind in Format:
        found = Runner(weights, kind, tmp_path / kind.name).all_logits(prompt)
        if kind is Format.FP32:
            assert distance(found, exact) < 1e-5
            continue
        # With the same weights, what is left is the rounding of activations to bytes.
        rounded = dense_logits(RoundedWeights(weights, kind), prompt).numpy()
        assert distance(found, rounded) < 0.08
        # Random weights have no structure that would survive rounding: real ones come far closer.
        assert distance(found, exact) < (0.1 if kind is Format.INT8 else 0.7)
