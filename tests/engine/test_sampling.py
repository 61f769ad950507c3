from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from python_backend.engine.sampling import choose_tokens, draw_among
from python_backend.engine.sequence import GenerationRequest, SamplingParams, Sequence

NO_END = -1


def sequence_of(
    sampling: SamplingParams,
    prompt: tuple[int, ...] = (0,),
    generated: tuple[int, ...] = (),
    end_id: int | None = None,
) -> Sequence:
    sequence = Sequence(0, 0, GenerationRequest(list(prompt), 100, end_id, (), sampling), 100)
    sequence.tokens += generated
    return sequence


def random_logits(rows: int, vocabulary: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


def frequencies(logits: torch.Tensor, sampling: SamplingParams, draws: int = 20_000) -> dict[int, float]:
    """How often each token comes out of one row of logits."""
    sequence = sequence_of(sampling)
    counts: Counter[int | None] = Counter()
    for _ in range(draws // 500):
        counts.update(choose_tokens(logits.repeat(500, 1), [sequence] * 500))
    return {token_id: count / draws for token_id, count in counts.items() if token_id is not None}


def expected_shares(logits: torch.Tensor, sampling: SamplingParams) -> dict[int, float]:
    """The definition, written out: temperature, then top_k, then the smallest nucleus that reaches top_p."""
    shares = torch.softmax(logits / sampling.temperature, 0)
    order = shares.argsort(descending=True).tolist()
    if sampling.top_k:
        order = order[: sampling.top_k]
    total = sum(shares[token_id].item() for token_id in order)
    kept: dict[int, float] = {}
    for token_id in order:
        kept[token_id] = shares[token_id].item() / total
        if sampling.top_p > 0 and sum(kept.values()) >= sampling.top_p:
            break
    return {token_id: share / sum(kept.values()) for token_id, share in kept.items()}


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(top_p=1.0, seed=1),
        SamplingParams(top_p=0.6, seed=2),
        SamplingParams(top_k=3, seed=3),
        SamplingParams(top_k=5, top_p=0.8, temperature=2.0, seed=4),
        SamplingParams(temperature=0.3, top_p=0.95, seed=5),
        SamplingParams(top_k=1000, seed=6),
    ],
    ids=str,
)
@pytest.mark.parametrize("vocabulary", [12, 400])
def test_tokens_come_as_often_as_their_shares_say(sampling: SamplingParams, vocabulary: int) -> None:
    logits = random_logits(1, vocabulary)[0]
    expected = expected_shares(logits, sampling)
    found = frequencies(logits, sampling)
    assert found.keys() <= expected.keys()
    assert sum(abs(found.get(token_id, 0) - share) for token_id, share in expected.items()) < 0.08


def test_a_few_candidates_and_the_whole_vocabulary_lead_to_the_same_token() -> None:
    rows, vocabulary = 300, 1000
    scaled = random_logits(rows, vocabulary)
    scaled -= scaled.max(1, keepdim=True).values
    dice = torch.Generator().manual_seed(1)
    chance = torch.rand(rows, generator=dice)
    top_p = torch.where(torch.arange(rows) % 3 == 0, 1.0, torch.rand(rows, generator=dice))
    top_k = torch.where(
        torch.arange(rows) % 2 == 0, vocabulary, torch.randint(1, 200, (rows,), generator=dice)
    )
    few = draw_among(64, scaled, top_k, top_p, chance)
    every = draw_among(vocabulary, scaled, top_k, top_p, chance)
    assert (every >= 0).all()
    told = few >= 0
    assert 100 < told.sum() < rows
    assert torch.equal(few[told], every[told])


@pytest.mark.parametrize("chance", [0.0, 0.999999999])
@pytest.mark.parametrize("sampling", [SamplingParams(top_k=4), SamplingParams(top_p=0.5)], ids=str)
def test_the_ends_of_the_scale_stay_inside_what_is_kept(sampling: SamplingParams, chance: float) -> None:
    logits = random_logits(1, 300)
    top_k, top_p = torch.tensor([sampling.top_k or 300]), torch.tensor([sampling.top_p or 1.0])
    scaled = logits - logits.max()
    token_id = int(draw_among(300, scaled, top_k, top_p, torch.tensor([chance])))
    assert token_id in expected_shares(logits[0], sampling)


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(), SamplingParams(top_k=1, top_p=0.9), SamplingParams(temperature=0.0, top_p=0.9)],
    ids=str,
)
def test_greedy_in_all_its_spellings_takes_the_likeliest(sampling: SamplingParams) -> None:
    logits = random_logits(8, 50)
    expected = logits.argmax(1).tolist()
    assert choose_tokens(logits, [sequence_of(sampling) for _ in range(8)]) == expected


def test_a_very_cold_temperature_takes_the_likeliest() -> None:
    logits = random_logits(8, 50)
    expected = logits.argmax(1).tolist()
    cold = SamplingParams(temperature=1.1e-5, top_p=1.0)
    assert choose_tokens(logits, [sequence_of(cold) for _ in range(8)]) == expected


def test_a_tiny_top_p_takes_the_likeliest() -> None:
    logits = random_logits(8, 50)
    expected = logits.argmax(1).tolist()
    assert choose_tokens(logits, [sequence_of(SamplingParams(top_p=1e-9)) for _ in range(8)]) == expected


def draws(count: int, seed: int, companions: int) -> list[int | None]:
    """The first tokens of a seeded sequence among so many others."""
    sequence = sequence_of(SamplingParams(top_p=0.95, seed=seed))
    others = [sequence_of(SamplingParams(top_k=9, seed=50 + index)) for index in range(companions)]
    found = []
    for step in range(count):
        logits = torch.cat([random_logits(1, 500, seed=step), random_logits(companions, 500, seed=99 + step)])
        found.append(choose_tokens(logits, [sequence, *others])[0])
    return found


def test_a_seed_gives_the_same_tokens_alone_and_in_company() -> None:
    assert draws(40, seed=7, companions=0) == draws(40, seed=7, companions=5)


def test_another_seed_gives_other_tokens() -> None:
    assert draws(40, seed=7, companions=0) != draws(40, seed=8, companions=0)


def test_the_whole_range_of_a_64_bit_seed_is_used() -> None:
    assert draws(40, seed=2**64 - 1, companions=0) != draws(40, seed=2**32 - 1, companions=0)


def test_penalties_follow_their_formulas() -> None:
    sampling = SamplingParams(repetition_penalty=1.7, presence_penalty=0.4, frequency_penalty=0.3)
    sequence = sequence_of(sampling, prompt=(1, 2, 2), generated=(3, 3, 3, 4, 1))
    logits = random_logits(1, 12)
    expected = logits[0].clone()
    for token_id in (1, 2, 3, 4):
        score = expected[token_id].item()
        expected[token_id] = score / 1.7 if score > 0 else score * 1.7
    for token_id, count in {3: 3, 4: 1, 1: 1}.items():
        expected[token_id] -= 0.4 + 0.3 * count
    chosen = choose_tokens(logits, [sequence])
    assert torch.allclose(logits[0], expected, atol=1e-6)
    assert chosen == [int(expected.argmax())]


def test_penalties_of_one_row_leave_the_others_alone() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    punished = sequence_of(SamplingParams(repetition_penalty=9.0), prompt=(0,))
    assert choose_tokens(logits, [punished, sequence_of(SamplingParams(), prompt=(0,))]) == [1, 0]


def test_penalties_apply_to_sampled_rows_too() -> None:
    logits = torch.tensor([[2.0, 1.9, -30.0]]).repeat(200, 1)
    sampling = SamplingParams(top_p=1.0, frequency_penalty=2.0)
    sequence = sequence_of(sampling, generated=(0,) * 20)
    assert set(choose_tokens(logits, [sequence] * 200)) == {1}


def test_the_end_id_cannot_come_before_min_tokens() -> None:
    logits = torch.tensor([[0.0, 5.0, 4.0]])
    sampling = SamplingParams(min_tokens=2)
    early = sequence_of(sampling, generated=(0,), end_id=1)
    late = sequence_of(sampling, generated=(0, 0), end_id=1)
    endless = sequence_of(sampling, end_id=NO_END)
    beyond = sequence_of(sampling, end_id=3)
    assert choose_tokens(logits.repeat(4, 1), [early, late, endless, beyond]) == [2, 1, 1, 1]


def test_no_single_token_that_ends_an_answer_comes_before_min_tokens() -> None:
    """Models with several end ids have the others as stop words of one token."""
    logits = torch.tensor([[0.0, 5.0, 4.0]])
    request = GenerationRequest(
        [0], 10, end_id=1, stop_sequences=((2,),), sampling=SamplingParams(min_tokens=1)
    )
    assert choose_tokens(logits, [Sequence(0, 0, request, 10)]) == [0]


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(top_k=5)], ids=str)
def test_a_row_that_is_not_all_numbers_has_no_token_and_spoils_no_other(
    poison: float, sampling: SamplingParams
) -> None:
    logits = random_logits(3, 20)
    expected = logits.argmax(1).tolist()
    logits[1, 7] = poison
    sequences = [sequence_of(SamplingParams()), sequence_of(sampling), sequence_of(SamplingParams())]
    assert choose_tokens(logits, sequences) == [expected[0], None, expected[2]]


def test_nothing_to_choose_is_no_error() -> None:
    assert choose_tokens(torch.empty(0, 20), []) == []
