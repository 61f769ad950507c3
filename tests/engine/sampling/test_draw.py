from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from python_backend.engine.sampling.draw import chance, draw
from tests.tiers import examples

ALMOST_ONE = math.nextafter(1.0, 0.0)


def random_scores(vocabulary: int, seed: int = 0, spread: float = 3.0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(vocabulary) * spread).astype(np.float32)


def piled(
    scores: NDArray[np.float32], temperature: float, top_k: int, top_p: float, min_p: float = 0.0
) -> list[tuple[int, float]]:
    """The definition, written out with a full sort: the tokens kept, and how high their shares pile up."""
    weights = np.exp((scores.astype(np.float64) - float(scores.max())) / temperature)
    likely = int(np.count_nonzero(weights >= min_p))
    order = np.argsort(-scores, kind="stable")[:likely][: top_k or None]
    pile = np.cumsum(weights[order])
    kept = min(int(np.searchsorted(pile, top_p * pile[-1])) + 1, len(pile))
    return list(zip(order[:kept].tolist(), (pile[:kept] / pile[kept - 1]).tolist(), strict=True))


def drawn(
    scores: NDArray[np.float32],
    temperature: float,
    top_k: int,
    top_p: float,
    point: float,
    min_p: float = 0.0,
) -> int:
    return draw(scores, float(scores.max()), temperature, top_k, top_p, point, min_p)


@settings(deadline=None, max_examples=examples(60))
@given(
    vocabulary=st.sampled_from([1, 7, 300, 2_000, 9_000]),
    seed=st.integers(0, 10_000),
    spread=st.sampled_from([0.05, 1.0, 4.0, 12.0]),
    temperature=st.sampled_from([1e-4, 0.2, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 2, 9, 60, 700, 100_000]),
    top_p=st.sampled_from([1e-7, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 1e-3, 0.1, 0.7, 1.0]),
    point=st.floats(0, 1, exclude_max=True),
)
def test_the_drawn_token_is_the_one_that_a_full_sort_finds(
    vocabulary: int,
    seed: int,
    spread: float,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    point: float,
) -> None:
    scores = random_scores(vocabulary, seed, spread)
    shares = np.exp((scores.astype(np.float64) - float(scores.max())) / temperature)
    assume(not np.any(np.abs(shares[shares < 1] - min_p) < 1e-4 * min_p))  # a matter of rounding
    pile = piled(scores, temperature, top_k, top_p, min_p)
    found = drawn(scores, temperature, top_k, top_p, point, min_p)
    # Of neighbours whose border lies where `point` does, to the precision of fp32, either will do.
    borders = [0.0, *(height for _, height in pile)]
    near = {
        token
        for (token, top), bottom in zip(pile, borders, strict=False)
        if bottom - 2e-5 <= point <= top + 2e-5
    }
    assert found in near


@pytest.mark.parametrize("vocabulary", [300, 40_000])
@pytest.mark.parametrize(("top_k", "top_p"), [(4, 1.0), (0, 0.5), (30, 0.7), (0, 1.0)])
@pytest.mark.parametrize("point", [0.0, ALMOST_ONE])
@pytest.mark.parametrize("seed", range(5))
def test_the_ends_of_the_probability_scale_stay_inside_the_kept_tokens(
    vocabulary: int, top_k: int, top_p: float, point: float, seed: int
) -> None:
    scores = random_scores(vocabulary, seed)
    kept = [token for token, _ in piled(scores, 1.0, top_k, top_p)]
    found = drawn(scores, 1.0, top_k, top_p, point)
    assert found in kept
    if point == 0:
        assert found == kept[0]


@pytest.mark.parametrize("vocabulary", [50, 5_000])
@pytest.mark.parametrize("point", [0.0, 0.3, 0.9, ALMOST_ONE])
def test_a_forbidden_token_is_never_drawn(vocabulary: int, point: float) -> None:
    scores = random_scores(vocabulary, spread=0.01)
    scores[1::2] = -math.inf
    assert drawn(scores, 5.0, 0, 1.0, point) % 2 == 0
    assert drawn(scores, 5.0, 0, 0.99, point) % 2 == 0
    assert drawn(scores, 5.0, vocabulary - 1, 1.0, point) % 2 == 0


def test_of_equally_likely_tokens_top_k_keeps_the_lower_ids() -> None:
    scores = np.zeros(5_000, np.float32)
    found = {drawn(scores, 1.0, 3, 1.0, point) for point in np.linspace(0, 0.999, 50).tolist()}
    assert found == {0, 1, 2}


def test_random_points_are_spread_evenly_over_positions_sequences_and_seeds() -> None:
    along = {
        "positions": [chance(7, 0, position) for position in range(4_000)],
        "indices": [chance(7, index, 0) for index in range(4_000)],
        "seeds": [chance(seed, 0, 0) for seed in range(4_000)],
        "high seeds": [chance(seed << 52, 3, 9) for seed in range(4_000)],
    }
    for name, numbers in along.items():
        assert 0 <= min(numbers) <= max(numbers) < 1
        counts, _ = np.histogram(numbers, 40, (0, 1))
        # The 99.99 % point of chi squared with 39 degrees of freedom is 82.
        assert float(((counts - 100) ** 2 / 100).sum()) < 82, name
        assert abs(float(np.corrcoef(numbers[:-1], numbers[1:])[0, 1])) < 0.06, name


def test_sequences_of_one_seed_are_uncorrelated() -> None:
    first, second = ([chance(1, index, position) for position in range(2_000)] for index in (0, 1))
    assert not set(first) & set(second)
    assert abs(float(np.corrcoef(first, second)[0, 1])) < 0.08


def test_the_whole_range_of_a_64_bit_seed_is_used() -> None:
    assert len({chance(seed, 0, 0) for seed in (0, 2**32 - 1, 2**32, 2**63, 2**64 - 1)}) == 5
