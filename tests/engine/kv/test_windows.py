"""Layers with a window beside layers that look at everything, in one pool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.kv.layout import kv_layout
from python_backend.engine.kv.table import BlockTable
from python_backend.engine.kv.window_claims import Window, WindowClaims


def computed(pool: BlockPool, tokens: int, digests: list[bytes]) -> BlockTable:
    """A table whose tokens were computed one after the other, and published."""
    table = BlockTable()
    assert pool.grow(table, tokens)
    for end in range(1, tokens + 1):
        pool.reach(table, end)
        if end % pool.tokens_per_block == 0:
            index = end // pool.tokens_per_block - 1
            pool.publish(table, index, digests[index])
        pool.slide(table, end)
        pool.check()
    return table


def test_windowed_layers_hold_their_window_and_the_others_everything() -> None:
    pool = BlockPool(40, 4, window=Window(6, tables=2, is_all=False, step_tokens=4))
    table = computed(pool, 40, [bytes([index]) for index in range(10)])
    assert len(table.blocks) == 10
    assert [len(each) for each in table.recent] == [0] * 8 + [2, 2]
    assert pool.used_blocks == 10 + 2 * 2
    pool.release(table)
    pool.check()
    assert (pool.used_blocks, table.gone, table.room) == (0, 0, 0)


def test_blocks_of_a_window_come_when_they_are_computed_and_are_promised_before() -> None:
    pool, table, other = BlockPool(16, 4, window=Window(6, is_all=False)), BlockTable(), BlockTable()
    assert pool.grow(table, 40)
    assert (pool.used_blocks, pool.spare_blocks) == (10, 2)  # 4 stretches are the most that one window takes
    assert not pool.grow(other, 8)
    assert pool.grow(other, 4)
    assert pool.spare_blocks == 0
    pool.reach(table, 8)
    pool.reach(other, 1)
    assert (pool.used_blocks, pool.spare_blocks) == (14, 0)
    pool.check()


def test_a_prefix_is_known_where_its_last_window_is() -> None:
    pool, digests = BlockPool(40, 4, window=Window(6, is_all=False)), [bytes([index]) for index in range(10)]
    table = computed(pool, 40, digests)
    found = pool.find(digests)
    assert (found.tokens, found.gone) == (40, 8)
    assert (list(found.blocks), list(found.recent)) == (table.blocks, table.recent[8:])
    assert pool.find(digests[:5]).tokens == 20, "what was let go is found until its blocks are needed"


def test_a_prefix_whose_last_window_is_gone_is_known_as_far_as_an_earlier_one_is() -> None:
    pool, digests = BlockPool(40, 4, window=Window(6, is_all=False)), [bytes([index]) for index in range(10)]
    table = computed(pool, 40, digests)
    pool.forget(digests[6:8])
    assert pool.find(digests).tokens == 40
    assert pool.find(digests[:9]).tokens == 24
    pool.release(table)
    pool.check()


def test_a_table_that_begins_with_a_prefix_holds_only_the_window_of_it() -> None:
    pool, digests = BlockPool(40, 4, window=Window(6, is_all=False)), [bytes([index]) for index in range(10)]
    first, second = computed(pool, 40, digests), BlockTable()
    pool.share(second, pool.find(digests[:5]))
    assert pool.grow(second, 24)
    assert second.blocks[:5] == first.blocks[:5]
    assert [len(each) for each in second.recent] == [0, 0, 0, 1, 1]
    pool.reach(second, 21)
    pool.check()
    pool.release(first)
    pool.release(second)
    pool.check()
    assert pool.used_blocks == 0


def test_a_fork_is_refused_where_the_leader_has_let_go_of_what_it_would_see() -> None:
    pool = BlockPool(40, 4, window=Window(6, is_all=False))
    leader = computed(pool, 20, [bytes([index]) for index in range(10)])
    forked = pool.fork(leader, 20)
    assert forked is not None
    assert (forked.gone, len(forked.blocks), len(forked.recent)) == (3, 5, 2)
    assert pool.fork(leader, 16) is None


def test_copies_are_made_in_every_table() -> None:
    pool = BlockPool(40, 4, window=Window(6, tables=2, is_all=False))
    leader, other = computed(pool, 18, [bytes([index]) for index in range(10)]), BlockTable()
    forked = pool.fork(leader, 17)
    assert forked is not None
    pool.share(other, forked)
    assert pool.grow(other, 20)
    copies = pool.own(other, 4)
    assert [copy.source for copy in copies] == [leader.blocks[4], *leader.recent[4]]
    assert [copy.target for copy in copies] == [other.blocks[4], *other.recent[4]]
    pool.check()


def test_what_is_forgotten_while_nobody_holds_it_is_empty() -> None:
    pool = BlockPool(4, 2, window=Window(2))
    table = computed(pool, 6, [b"one", b"two", b"three"])
    assert pool.cached_blocks == 2
    pool.forget([b"one", b"unknown"])
    pool.check()
    assert (pool.cached_blocks, pool.free_blocks) == (1, 3)
    pool.release(table, forget=True)
    assert pool.cached_blocks == 1


def test_a_pool_for_windows_alone_holds_sequences_longer_than_itself() -> None:
    pool = BlockPool(4, 4, window=Window(6))
    assert pool.capacity_tokens > 10**9
    table = computed(pool, 400, [index.to_bytes(2, "big") for index in range(100)])
    assert pool.used_blocks == 2
    assert pool.grow(BlockTable(), 0)
    pool.release(table)
    assert BlockPool(3, 4, window=Window(6)).capacity_tokens == 12


@given(
    window=st.builds(Window, st.integers(1, 20), st.integers(1, 3), st.booleans(), st.integers(0, 12)),
    tokens_per_block=st.integers(1, 5),
    total_blocks=st.integers(4, 60),
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    data=st.data(),
)
def test_what_is_promised_is_there_however_sequences_take_turns(
    window: Window, tokens_per_block: int, total_blocks: int, lengths: list[int], data: st.DataObject
) -> None:
    """Steps of up to `step_tokens` tokens; nothing is let go before a step is over."""
    pool = BlockPool(total_blocks, tokens_per_block, window=window)
    running = {table: (0, length) for length in lengths if pool.grow(table := BlockTable(), length)}
    while running:
        ends: dict[BlockTable, int] = {}
        left = max(window.step_tokens, 1)
        for table, (done, length) in running.items():
            most = min(length - done, left)
            count = data.draw(st.integers(0 if ends else min(most, 1), most))
            if count:
                ends[table] = done + count
                left -= count
                pool.reach(table, done + count)
        pool.check()
        for table, end in ends.items():
            pool.slide(table, end)
            running[table] = (end, running[table][1])
            if end == running[table][1]:
                pool.release(table)
                del running[table]
        pool.check()
    assert pool.used_blocks == 0


@given(
    window_tokens=st.integers(1, 20),
    tokens_per_block=st.integers(1, 5),
    known=st.lists(st.booleans(), max_size=20),
)
def test_the_longest_prefix_whose_window_is_known_is_found(
    window_tokens: int, tokens_per_block: int, known: list[bool]
) -> None:
    claims = WindowClaims(Window(window_tokens), tokens_per_block)
    possible = [
        count
        for count in range(len(known) + 1)
        if all(known[claims.first_seen(count * tokens_per_block) : count])
    ]
    assert claims.longest_seen(len(known), known.__getitem__) == max(possible)


GEMMA_3_1B = [None if index % 6 == 5 else 512 for index in range(26)]
GEMMA_3_12B = [None if index % 6 == 5 else 1024 for index in range(48)]
GPT_OSS_20B = [128 if index % 2 == 0 else None for index in range(24)]


@pytest.mark.parametrize(
    ("windows", "tables", "longest_tokens", "times"),
    [
        (GEMMA_3_1B, 1 + 6, 32_768, 5.8),
        (GEMMA_3_12B, 1 + 5, 32_768, 5.0),
        (GEMMA_3_12B, 1 + 5, 131_072, 5.7),
        (GPT_OSS_20B, 1 + 1, 131_072, 1.9),
    ],
)
def test_long_sequences_take_a_fraction_of_the_memory_that_all_layers_would_take(
    windows: list[int | None], tables: int, longest_tokens: int, times: float
) -> None:
    """In memory for a million tokens of all layers."""
    layout = kv_layout(windows, longest_tokens, step_tokens=2 * 4096)
    blocks = (1 << 20) // 64 * len(windows) // layout.block_layers
    assert layout.table_count == tables
    assert layout.block_layers == windows.count(None)
    pool = BlockPool(blocks, 64, window=layout.window)
    whole = (1 << 20) // longest_tokens * longest_tokens
    assert pool.tokens_held(longest_tokens) / whole == pytest.approx(times, abs=0.15)


def test_every_layer_has_a_place_of_its_own() -> None:
    layout = kv_layout(GEMMA_3_1B, 32_768, 512)
    places = set(zip(layout.tables, layout.slots, strict=True))
    assert len(places) == 26
    assert {table for table, window in zip(layout.tables, GEMMA_3_1B, strict=True) if window is None} == {0}
    assert max(layout.slots) < layout.block_layers


@pytest.mark.parametrize(
    ("windows", "longest_tokens"),
    [([None, None], 100), ([8, None, None], 100), ([8] + [None] * 9, 100), ([100, None], 100)],
)
def test_layers_stay_together_where_windows_would_save_nothing(
    windows: list[int | None], longest_tokens: int
) -> None:
    layout = kv_layout(windows, longest_tokens, 512)
    assert (layout.table_count, layout.block_layers, layout.window) == (1, len(windows), None)


def test_layers_that_all_have_windows_share_one_table() -> None:
    layout = kv_layout([8, 6], 100, 512)
    assert (layout.table_count, layout.block_layers) == (1, 2)
    assert layout.window == Window(8, step_tokens=512)
