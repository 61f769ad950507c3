from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.engine.kv import prefix_cache
from python_backend.engine.kv.prefix_cache import (
    Chains,
    EvictionOrder,
    Keep,
    PrefixCache,
    keep_of,
    root_hash,
)
from python_backend.engine.request import GenerationRequest, Retention, RetentionRange


def hashes_of(token_ids: list[int], salt: str = "") -> list[bytes]:
    hashes = [root_hash(salt)]
    Chains(2).extend(hashes, array("i", token_ids))
    return hashes[1:]


def test_only_full_blocks_have_a_hash() -> None:
    assert [len(hashes_of([1] * count)) for count in range(6)] == [0, 0, 1, 1, 2, 2]


def test_a_hash_stands_for_all_tokens_up_to_it() -> None:
    assert hashes_of([1, 2, 3, 4])[0] == hashes_of([1, 2, 5, 6])[0]
    assert hashes_of([1, 2, 3, 4])[1] != hashes_of([5, 6, 3, 4])[1]
    assert hashes_of([1, 1, 1, 1])[0] != hashes_of([1, 1, 1, 1])[1]


def test_hashes_can_be_computed_incrementally() -> None:
    hashes = [root_hash("")]
    for count in range(1, 10):
        Chains(2).extend(hashes, array("i", range(count)))
    assert hashes[1:] == hashes_of(list(range(9)))


@given(
    st.lists(st.tuples(st.integers(0, 700), st.integers(0, 3)), min_size=1, max_size=5),
    st.none() | st.integers(0, 200),
)
def test_what_is_remembered_of_long_prompts_changes_no_hash(
    turns: list[tuple[int, int]], shared_blocks: int | None
) -> None:
    chains = Chains(2)
    for kept, changed in turns:
        token_ids = array("i", [*range(kept), *[changed] * (700 - kept)])
        fresh, remembered = [root_hash("")], [root_hash("")]
        for end in range(0, 701, 2) if shared_blocks is None else [700]:
            Chains(2).extend(fresh, token_ids[:end], shared_blocks, "salt")
        chains.extend(remembered, token_ids, shared_blocks, "salt")
        assert remembered == fresh
        assert len(remembered) == 351


def test_what_is_remembered_of_long_prompts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "_MOST_PAGES", 3)
    chains = Chains(2)
    for first in range(10):
        chains.extend([root_hash("")], array("i", range(first, first + 500)))
    assert len(chains._pages) == 3


def test_different_salts_have_no_hash_in_common() -> None:
    assert not set(hashes_of([1, 2, 3, 4], "one")) & set(hashes_of([1, 2, 3, 4], "two"))


def test_the_retention_range_of_a_blocks_first_token_decides_how_long_it_is_kept() -> None:
    retention = Retention(
        (RetentionRange(0, 4, 90), RetentionRange(6, None, 10, 500)), decode_priority=5, decode_duration_ms=7
    )
    request = GenerationRequest([0] * 10, 1, retention=retention)
    assert keep_of(request, 2) == Keep(90)
    assert keep_of(request, 4) is None
    assert keep_of(request, 8) == Keep(10, 500)
    assert keep_of(request, 10) == Keep(5, 7)


def resting(*keeps: Keep | None) -> PrefixCache:
    """A cache in which block i was published, kept as told, and left alone in turn."""
    cache = PrefixCache(blocks=100)
    for block, keep in enumerate(keeps):
        cache.publish(block, bytes([block]))
        if keep is not None:
            cache.keep(block, keep)
        cache.rest(block)
    return cache


def evicted(cache: PrefixCache) -> list[int]:
    return [cache.evict()[0] for _ in range(cache.idle_blocks)]


def test_the_least_recently_used_block_is_evicted_first() -> None:
    cache = resting(None, None, None)
    cache.wake(0)
    cache.rest(0)
    assert evicted(cache) == [1, 2, 0]


def test_the_lowest_priority_is_evicted_first() -> None:
    assert evicted(resting(None, Keep(80), Keep(10), None)) == [2, 0, 3, 1]


def test_after_its_retention_a_block_is_ordinary_and_keeps_its_age() -> None:
    cache = resting(None, Keep(80, duration_ms=5), None, Keep(10, duration_ms=5))
    cache.advance_to(4_999_999)
    assert evicted(resting(None, Keep(80, 5), None, Keep(10, 5))) == [3, 0, 2, 1]
    cache.advance_to(5_000_000)
    assert evicted(cache) == [0, 1, 2, 3]


def test_the_retention_restarts_when_a_kept_block_is_used_again() -> None:
    cache = resting(Keep(80, duration_ms=5), None)
    cache.advance_to(4_000_000)
    cache.wake(0)
    cache.rest(0)
    cache.advance_to(8_000_000)
    assert evicted(cache) == [1, 0]


def test_the_latest_request_with_a_retention_for_a_block_decides() -> None:
    cache = resting(Keep(80), None)
    cache.wake(0)
    cache.keep(0, Keep(1))
    cache.rest(0)
    assert evicted(cache) == [0, 1]


def test_an_evicted_block_is_not_found() -> None:
    cache = resting(None, None)
    cache.evict()
    assert cache.find(b"\x00") is None
    assert cache.find(b"\x01") == 1
    cache.check()


def test_of_two_equal_blocks_the_first_published_is_found() -> None:
    cache = PrefixCache(blocks=100)
    cache.publish(3, b"same")
    cache.publish(4, b"same")
    assert cache.find(b"same") == 3
    assert 4 not in cache
    cache.forget(4)
    assert cache.find(b"same") == 3


moves = st.tuples(st.integers(0, 15), st.integers(0, 3), st.none() | st.integers(0, 30))


@settings(deadline=None)
@given(st.lists(moves, max_size=200))
def test_the_eviction_order_is_that_of_a_sorted_list(moves: list[tuple[int, int, int | None]]) -> None:
    """A move adds or removes a block, evicts one every fifth time, and lets a nanosecond pass."""
    order, idle, use = EvictionOrder(), dict[int, tuple[int, int, int | None]](), 0
    for now_ns, (block, priority, duration_ns) in enumerate(moves):
        order.expire(now_ns)
        for other, (_, last_use, expires_ns) in idle.items():
            if expires_ns is not None and expires_ns <= now_ns:
                idle[other] = (35, last_use, None)
        if now_ns % 5 == 4 and idle:
            first = min(idle, key=lambda other: idle[other][:2])
            assert order.pop() == first
            del idle[first]
        elif block in idle:
            order.remove(block)
            del idle[block]
        else:
            expires_ns = None if duration_ns is None else now_ns + duration_ns
            order.add(block, priority * 30, expires_ns)
            idle[block] = (priority * 30, use, expires_ns)
            use += 1
        assert sorted(order.blocks) == sorted(idle)


def test_the_eviction_order_does_not_grow_with_use() -> None:
    order = EvictionOrder()
    for _ in range(10_000):
        order.add(1, 50, 10**15)
        order.remove(1)
    for _ in range(10_000):
        order.add(1, 50, 10**15)
        order.pop()
    assert len(order._order) + len(order._expiries) < 300
