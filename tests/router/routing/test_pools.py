"""Who answers and who computes prompts, for all that replicas may have to do."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from python_backend.wire.pools import DECODE, POOLS, PREFILL
from router.routing.pools import answering, prompt_place
from router.routing.replica_choice import Opening, most_tokens

LEAST = 512


@dataclass(frozen=True)
class Place:
    name: str
    pool: str
    outstanding_tokens: int = 0
    begun: int = 0


PLACES = st.lists(
    st.builds(
        Place,
        st.text("abcdefgh", min_size=1),
        st.sampled_from(POOLS),
        st.integers(0, 9000),
        st.integers(0, 5),
    ),
    max_size=8,
    unique_by=lambda place: place.name,
)
TEXTS = st.binary(max_size=8)


@given(PLACES)
def test_whoever_is_there_for_prompts_answers_only_where_nobody_else_does(able: list[Place]) -> None:
    found = answering(able)
    assert bool(found) == bool(able)
    others = [place for place in able if place.pool != PREFILL]
    assert list(found) == (others or able)


@given(PLACES, st.builds(Opening, TEXTS, st.integers(1, 100_000)))
def test_a_prompt_goes_elsewhere_only_if_it_is_long_and_both_pools_are_there(
    able: list[Place], opening: Opening
) -> None:
    place = prompt_place(able, opening, LEAST)
    takers = [each.outstanding_tokens for each in able if each.pool == DECODE]
    if place is None:
        idle = [each for each in able if each.pool == PREFILL and each.outstanding_tokens == 0]
        assert opening.tokens < LEAST or not takers or not idle
        return
    assert place in able
    assert place.pool == PREFILL
    assert opening.tokens >= LEAST
    assert place.outstanding_tokens <= most_tokens(min(takers), opening.tokens)


@given(PLACES, st.builds(Opening, TEXTS, st.just(LEAST)), st.randoms())
def test_the_place_of_a_prompt_does_not_depend_on_the_order_of_replicas(
    able: list[Place], opening: Opening, random: object
) -> None:
    shuffled = sorted(able, key=lambda place: hash((place.name, repr(random))))
    assert prompt_place(able, opening, LEAST) == prompt_place(shuffled, opening, LEAST)


def test_the_same_opening_goes_to_the_same_replica_whose_cache_may_hold_it() -> None:
    able = [Place(name, PREFILL) for name in "abcd"] + [Place("z", DECODE)]
    openings = [Opening(bytes([number]), LEAST) for number in range(64)]
    chosen = [prompt_place(able, opening, LEAST) for opening in openings]
    assert len(set(chosen)) == 4
    assert chosen == [prompt_place(able, opening, LEAST) for opening in openings]


def test_a_prompt_is_computed_where_it_is_answered_while_those_for_prompts_have_more_to_do() -> None:
    busy, free = Place("p", PREFILL, 20_000), Place("d", DECODE, 100)
    opening = Opening(b"", 4096)
    assert prompt_place([busy, free], opening, LEAST) is None
    assert prompt_place([busy, Place("d", DECODE, 20_000)], opening, LEAST) == busy
