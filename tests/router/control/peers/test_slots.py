"""Which part of a release's slots is whose."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.control.peers.slots import IDLE, Load, Part, fair_slots, part_of

LOADS = st.dictionaries(
    st.sampled_from("abcde"),
    st.builds(Load, st.integers(0, 80), st.integers(0, 200), st.integers(0, 5000)),
    min_size=1,
)


def slots(*wanted: int, of: int = 32) -> list[int]:
    loads = {str(number): Load(each, 0, 0) for number, each in enumerate(wanted)}
    return [fair_slots(name, loads, of) for name in loads]


@pytest.mark.parametrize(
    ("wanted", "parts"),
    [
        ((0,), [32]),
        ((40,), [32]),
        ((0, 0), [16, 16]),
        ((30, 0), [31, 0]),
        ((100, 100), [16, 16]),
        ((4, 100), [4, 28]),
        ((100, 100, 100), [11, 11, 10]),
        ((8, 8), [16, 16]),
    ],
)
def test_slots_are_divided_by_what_each_router_wants(wanted: tuple[int, ...], parts: list[int]) -> None:
    assert slots(*wanted) == parts


@settings(deadline=None)
@given(LOADS, st.integers(0, 128))
def test_the_routers_shares_add_up_to_the_slots(loads: dict[str, Load], of: int) -> None:
    parts = {name: fair_slots(name, loads, of) for name in loads}
    assert sum(parts.values()) <= of
    if sum(load.wanted for load in loads.values()) >= of:
        assert sum(parts.values()) == of
    else:
        assert all(parts[name] >= load.wanted for name, load in loads.items())
        assert of - sum(parts.values()) < len(loads)


@settings(deadline=None)
@given(LOADS, st.integers(1, 128), st.integers(0, 10_000))
def test_no_router_starts_more_than_others_leave_free(
    loads: dict[str, Load], of: int, kv_tokens: int
) -> None:
    for name in loads:
        part = part_of(name, loads, of, kv_tokens)
        others = [load for other, load in loads.items() if other != name]
        assert part.slots >= 1
        assert part.slots == 1 or part.slots + sum(load.running for load in others) <= of
        assert part.kv_tokens is not None
        assert not part.kv_tokens or part.kv_tokens + sum(load.kv_tokens for load in others) <= kv_tokens


def test_a_router_new_to_a_full_release_gets_freed_slots_up_to_a_fair_share() -> None:
    def after(running: int) -> tuple[Part, Part]:
        loads = {"old": Load(running, 50, 100 * running), "new": Load(32 - running, 50, 0)}
        return part_of("old", loads, 32, 4000), part_of("new", loads, 32, 4000)

    assert after(32) == (Part(16, 2000), Part(1, 800))
    assert after(24) == (Part(16, 2000), Part(8, 1600))
    assert after(16) == (Part(16, 2000), Part(16, 2000))


def test_a_release_without_slots_or_cache_has_none_to_share() -> None:
    loads = {"a": IDLE, "b": IDLE}
    assert part_of("a", loads, 0, 100) == Part(0, 100)
    assert part_of("a", loads, 4, None) == Part(2, None)
