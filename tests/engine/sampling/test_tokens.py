from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from python_backend.engine.request import GenerationRequest, SamplingParams
from python_backend.engine.sampling.adjustments import adjusted_scores
from python_backend.engine.sampling.tokens import Choice, choose_tokens, current_top_p
from python_backend.engine.sequence import Sequence
from python_backend.wire.errors import ErrorKind
from tests.tiers import examples

NO_END = -1
GREEDY = SamplingParams()


def sequence_for(request: GenerationRequest, generated: tuple[int, ...] = (), index: int = 0) -> Sequence:
    sequence = Sequence(0, 0, request, 100, index=index)
    sequence.tokens.extend(generated)
    return sequence


def sequence_of(
    sampling: SamplingParams,
    prompt: tuple[int, ...] = (0,),
    generated: tuple[int, ...] = (),
    end_id: int | None = None,
    index: int = 0,
) -> Sequence:
    return sequence_for(GenerationRequest(list(prompt), 100, end_id, (), sampling), generated, index)


def random_logits(rows: int, vocabulary: int, seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((rows, vocabulary)) * 3).astype(np.float32)


def row_of(*logits: float) -> NDArray[np.float32]:
    return np.array([logits], np.float32)


def token_ids(logits: NDArray[np.float32], sequences: list[Sequence]) -> list[int | None]:
    return [choice.token_id for choice in choose_tokens(logits, sequences)]


def chosen(logits: NDArray[np.float32], request: GenerationRequest, *generated: int) -> Choice:
    return choose_tokens(logits, [sequence_for(request, generated)])[0]


def frequencies(logits: NDArray[np.float32], sampling: SamplingParams, draws: int) -> dict[int, float]:
    """How often each token comes out of one row of logits."""
    rows = np.broadcast_to(logits, (500, len(logits)))
    counts: Counter[int | None] = Counter()
    for start in range(0, draws, 500):
        sequences = [sequence_of(sampling, index=start + row) for row in range(500)]
        counts.update(token_ids(rows, sequences))
    return {token_id: count / draws for token_id, count in counts.items() if token_id is not None}


def expected_shares(logits: NDArray[np.float32], sampling: SamplingParams) -> dict[int, float]:
    """The definition, written out: temperature, then top_k, then the smallest nucleus that reaches top_p."""
    weights = np.exp((logits.astype(np.float64) - float(logits.max())) / sampling.temperature)
    order = np.argsort(-weights, kind="stable")[: sampling.top_k or None].tolist()
    total = sum(weights[token_id] for token_id in order)
    kept: dict[int, float] = {}
    for token_id in order:
        kept[token_id] = float(weights[token_id] / total)
        if sampling.top_p > 0 and sum(kept.values()) >= sampling.top_p:
            break
    return {token_id: share / sum(kept.values()) for token_id, share in kept.items()}


@pytest.mark.parametrize(
    ("vocabulary", "draws", "sampling"),
    [
        (12, 2500, SamplingParams(top_p=1.0, seed=1)),
        (12, 2500, SamplingParams(top_k=3, seed=3)),
        (12, 2500, SamplingParams(top_k=1000, seed=6)),
        (900, 2500, SamplingParams(top_k=5, top_p=0.8, temperature=2.0, seed=4)),
        (900, 2500, SamplingParams(temperature=0.3, top_p=0.95, seed=5)),
        (900, 10_000, SamplingParams(top_p=1.0, seed=1)),
        (900, 5000, SamplingParams(top_p=0.6, seed=2)),
    ],
    ids=str,
)
def test_tokens_are_sampled_with_their_probabilities(
    vocabulary: int, draws: int, sampling: SamplingParams
) -> None:
    logits = random_logits(1, vocabulary)[0]
    expected = expected_shares(logits, sampling)
    found = frequencies(logits, sampling, draws)
    assert found.keys() <= expected.keys()
    assert sum(abs(found.get(token_id, 0) - share) for token_id, share in expected.items()) < 0.1


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        SamplingParams(top_k=1, top_p=0.9),
        SamplingParams(temperature=0.0, top_p=0.9),
        SamplingParams(temperature=1.1e-5, top_p=1.0),
        SamplingParams(top_p=1e-9),
    ],
    ids=str,
)
def test_greedy_in_all_its_spellings_takes_the_likeliest_token(sampling: SamplingParams) -> None:
    logits = random_logits(8, 50)
    expected = logits.argmax(1).tolist()
    assert token_ids(logits, [sequence_of(sampling) for _ in range(8)]) == expected


def answer(count: int, seed: int, companions: int = 0, index: int = 0, vocabulary: int = 500) -> list[int]:
    """The first tokens of a seeded sequence among so many others."""
    sequence = sequence_of(SamplingParams(top_p=0.95, seed=seed), index=index)
    others = [
        sequence_of(SamplingParams(top_k=9, seed=50 + other, repetition_penalty=1.3))
        for other in range(companions)
    ]
    for step in range(count):
        logits = np.concatenate(
            [random_logits(companions, vocabulary, seed=99 + step), random_logits(1, vocabulary, seed=step)]
        )
        token_id = token_ids(logits, [*others, sequence])[-1]
        assert token_id is not None
        sequence.tokens.append(token_id)
    return sequence.generated_ids


@pytest.mark.parametrize("vocabulary", [500, 20_000])
def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch(vocabulary: int) -> None:
    alone = answer(20, seed=7, vocabulary=vocabulary)
    assert alone == answer(20, seed=7, companions=5, vocabulary=vocabulary)


def test_a_different_seed_or_sequence_index_gives_different_tokens() -> None:
    assert len({tuple(answer(40, seed, index=index)) for seed in (7, 2**64 - 1) for index in (0, 1)}) == 4


def test_a_token_chosen_again_is_the_same_token() -> None:
    logits = random_logits(1, 500)
    sequence = sequence_of(SamplingParams(top_p=1.0, seed=3), generated=(1, 2, 3))
    assert len({tuple(token_ids(logits, [sequence])) for _ in range(20)}) == 1


@settings(deadline=None, max_examples=examples(40))
@given(st.integers(0, 1000), st.integers(0, 4))
def test_a_rows_result_depends_on_no_other_row(seed: int, poisoned: int) -> None:
    logits = random_logits(5, 700, seed)
    logits[poisoned, seed % 700] = math.nan
    request = GenerationRequest([1], 9, 2, sampling=SamplingParams(top_p=0.9), returns_log_probs=True)
    sequences = [sequence_for(request, index=row) for row in range(5)]
    together = choose_tokens(logits, sequences)
    apart = [choose_tokens(logits[row : row + 1], sequences[row : row + 1])[0] for row in range(5)]
    assert together == apart
    assert [choice.token_id is None for choice in together] == [row == poisoned for row in range(5)]


def test_choosing_leaves_the_logits_unchanged() -> None:
    logits = random_logits(2, 40)
    before = logits.copy()
    sampling = SamplingParams(top_p=0.5, repetition_penalty=2.0, min_tokens=5)
    choose_tokens(logits, [sequence_of(sampling, end_id=3), sequence_of(GREEDY)])
    assert np.array_equal(logits, before)


def test_penalties_follow_their_formulas() -> None:
    sampling = SamplingParams(repetition_penalty=1.7, presence_penalty=0.4, frequency_penalty=0.3)
    sequence = sequence_of(sampling, prompt=(1, 2, 2), generated=(3, 3, 3, 4, 1))
    logits = random_logits(1, 12)[0]
    expected = logits.copy()
    for token_id in (1, 2, 3, 4):
        score = expected[token_id]
        expected[token_id] = score / 1.7 if score > 0 else score * 1.7
    for token_id, count in {3: 3, 4: 1, 1: 1}.items():
        expected[token_id] -= 0.4 + 0.3 * count
    found = adjusted_scores(logits, sequence)
    assert found is not None
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert token_ids(logits[None], [sequence]) == [int(expected.argmax())]


def test_penalties_of_one_row_leave_the_others_alone() -> None:
    logits = row_of(2.0, 1.0, 0.0).repeat(2, axis=0)
    punished = sequence_of(SamplingParams(repetition_penalty=9.0), prompt=(0,))
    assert token_ids(logits, [punished, sequence_of(GREEDY, prompt=(0,))]) == [1, 0]


def test_penalties_apply_to_sampled_rows() -> None:
    sampling = SamplingParams(top_p=1.0, frequency_penalty=2.0)
    sequences = [sequence_of(sampling, generated=(0,) * 20, index=index) for index in range(200)]
    assert set(token_ids(row_of(2.0, 1.9, -30.0).repeat(200, axis=0), sequences)) == {1}


def test_the_end_id_cannot_come_before_min_tokens() -> None:
    sampling = SamplingParams(min_tokens=2)
    early = sequence_of(sampling, generated=(0,), end_id=1)
    late = sequence_of(sampling, generated=(0, 0), end_id=1)
    endless = sequence_of(sampling, end_id=NO_END)
    beyond = sequence_of(sampling, end_id=3)
    logits = row_of(0.0, 5.0, 4.0).repeat(4, axis=0)
    assert token_ids(logits, [early, late, endless, beyond]) == [2, 1, 1, 1]


def test_no_one_token_stop_word_comes_before_min_tokens() -> None:
    """Models with several end ids have the others as stop words of one token."""
    request = GenerationRequest([0], 10, end_id=1, stop_sequences=((2,),), sampling=GREEDY)
    assert chosen(row_of(0.0, 5.0, 4.0), request).token_id == 0


def test_a_bias_is_added_to_the_scores_of_its_tokens() -> None:
    request = GenerationRequest([0], 10, token_bias={2: 3.0, 0: -1.0, 99: 50.0, -1: 50.0})
    assert chosen(row_of(2.0, 1.5, 0.0), request).token_id == 2


def test_a_bias_is_applied_before_the_penalties() -> None:
    request = GenerationRequest(
        [0], 10, token_bias={0: 4.0}, sampling=SamplingParams(repetition_penalty=10.0)
    )
    assert chosen(row_of(1.0, 0.6), request).token_id == 1


@pytest.mark.parametrize(
    ("generated", "expected"), [((), 1), ((1,), 1), ((1, 2), 0), ((2, 1, 2), 0), ((2, 2), 1)], ids=str
)
def test_a_token_that_would_complete_a_bad_word_is_forbidden(
    generated: tuple[int, ...], expected: int
) -> None:
    request = GenerationRequest([0], 10, bad_sequences=((1, 2, 1), (3,), ()))
    assert chosen(row_of(2.0, 3.0, 1.0, 9.0), request, *generated).token_id == expected


def test_a_bad_word_may_begin_in_the_prompt() -> None:
    request = GenerationRequest([5, 6], 10, bad_sequences=((6, 1),))
    assert chosen(row_of(2.0, 3.0), request).token_id == 0


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(top_p=0.9)], ids=str)
def test_a_request_that_forbids_every_token_gets_an_error_and_no_other_does(
    sampling: SamplingParams,
) -> None:
    greedy = GenerationRequest([0], 10, end_id=1, bad_sequences=((0,),), sampling=sampling)
    sequences = [sequence_for(greedy), sequence_of(GREEDY)]
    stuck, free = choose_tokens(row_of(1.0, 2.0).repeat(2, axis=0), sequences)
    assert stuck.token_id is None
    assert not stuck.ends_guide
    assert stuck.error is not None
    assert stuck.error.kind is ErrorKind.INVALID_REQUEST
    assert free == Choice(1)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(top_k=5)], ids=str)
def test_a_row_that_is_not_finite_has_no_token_and_affects_no_other(
    poison: float, sampling: SamplingParams
) -> None:
    logits = random_logits(3, 20)
    expected = logits.argmax(1).tolist()
    logits[1, 7] = poison
    sequences = [sequence_of(GREEDY), sequence_of(sampling), sequence_of(GREEDY)]
    assert choose_tokens(logits, sequences) == [Choice(expected[0]), Choice(), Choice(expected[2])]


@pytest.mark.parametrize("bias", [math.nan, math.inf])
def test_a_bias_that_is_nan_leaves_no_token(bias: float) -> None:
    request = GenerationRequest([0], 10, token_bias={1: bias})
    assert chosen(row_of(1.0, 2.0), request) == Choice()


def test_an_empty_batch_is_no_error() -> None:
    assert choose_tokens(np.empty((0, 20), np.float32), []) == []


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(top_k=3, temperature=0.2)], ids=str)
def test_log_probs_and_logits_are_the_models_own(sampling: SamplingParams) -> None:
    logits = random_logits(1, 30)
    request = GenerationRequest(
        [4, 5],
        9,
        sampling=sampling,
        token_bias={int(logits.argmax()): -100.0},
        returns_log_probs=True,
        returns_generation_logits=True,
    )
    choice = chosen(logits, request)
    assert choice.token_id is not None
    shares = np.exp(logits[0].astype(np.float64))
    assert choice.log_prob == pytest.approx(math.log(shares[choice.token_id] / shares.sum()), abs=1e-5)
    assert choice.logits == logits[0].tobytes()


@settings(deadline=None)
@given(
    scores=st.lists(st.integers(-20, 20), min_size=1, max_size=300),
    count=st.integers(0, 20),
    biased=st.integers(0, 299),
)
def test_top_log_probs_are_the_token_and_the_likeliest(scores: list[int], count: int, biased: int) -> None:
    logits = np.array([scores], np.float32)
    request = GenerationRequest([0], 9, token_bias={biased % len(scores): 50.0}, top_log_probs=count)
    choice = chosen(logits, request)
    assert choice.token_id == biased % len(scores)
    assert choice.top_log_probs is not None
    (first, *others) = choice.top_log_probs
    assert first[0] == choice.token_id
    order = sorted(range(len(scores)), key=lambda token_id: (-scores[token_id], token_id))
    assert [token_id for token_id, _ in others] == order[:count]
    wide = logits[0].astype(np.float64)
    expected = wide - math.log(np.exp(wide).sum())
    for token_id, log_prob in choice.top_log_probs:
        assert log_prob == pytest.approx(expected[token_id], abs=1e-5)


def test_log_probs_and_logits_are_returned_only_on_request() -> None:
    assert choose_tokens(row_of(1.0, 2.0), [sequence_of(GREEDY)]) == [Choice(1)]


DECAYING = SamplingParams(top_p=0.8, top_p_decay=0.5, top_p_min=0.15, top_p_reset_id=7)


@pytest.mark.parametrize(
    ("sampling", "generated", "expected"),
    [
        (DECAYING, (), 0.8),
        (DECAYING, (1,), 0.4),
        (DECAYING, (1, 1), 0.2),
        (DECAYING, (1,) * 30, 0.15),
        (DECAYING, (1, 1, 7), 0.8),
        (DECAYING, (7, 1), 0.4),
        (DECAYING, (7, 7, 1, 1), 0.2),
        (DECAYING, (7, *(1,) * 30), 0.15),
        (SamplingParams(top_p=0.8), (1, 1), 0.8),
        (SamplingParams(top_p=0.1, top_p_min=0.5, top_p_decay=0.5), (1, 1), 0.1),
        (SamplingParams(top_p=0.9, top_p_min=0.0, top_p_decay=0.1), (1,) * 500, 1e-6),
        (SamplingParams(top_k=5, top_p_decay=0.5), (1, 1), 1.0),
    ],
    ids=str,
)
def test_top_p_decays_with_each_token_and_comes_back_with_the_reset_token(
    sampling: SamplingParams, generated: tuple[int, ...], expected: float
) -> None:
    sequence = sequence_of(sampling, prompt=(7, 7), generated=generated)
    found = current_top_p(sampling, sequence.tokens, sequence.generated_tokens)
    assert found == pytest.approx(expected)


def test_a_decayed_top_p_narrows_the_choice() -> None:
    sampling = SamplingParams(top_p=1.0, top_p_decay=0.5, top_p_min=0.01, top_p_reset_id=3)
    logits = row_of(1.0, 0.9, 0.8, 0.7).repeat(60, axis=0)

    def found(*generated: int) -> set[int | None]:
        sequences = [sequence_of(sampling, generated=generated, index=index) for index in range(60)]
        return set(token_ids(logits, sequences))

    assert found() == {0, 1, 2, 3}
    assert found(0, 0, 0, 0, 0) == {0}
    assert found(0, 0, 0, 0, 3) == {0, 1, 2, 3}
