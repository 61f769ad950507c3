from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.kv.table import BlockTable, Prefix
from python_backend.engine.kv.window_claims import Window


def test_a_new_pool_is_all_free() -> None:
    pool = BlockPool(4, 16)
    assert (pool.free_blocks, pool.used_blocks, pool.capacity_tokens) == (4, 0, 64)
    pool.check()


def test_a_table_grows_by_whole_blocks() -> None:
    pool, table = BlockPool(4, 16), BlockTable()
    assert pool.grow(table, 1)
    assert len(table.blocks) == 1
    assert pool.grow(table, 16)
    assert len(table.blocks) == 1
    assert pool.grow(table, 17)
    assert len(table.blocks) == 2
    assert pool.free_blocks == 2


def test_growth_that_does_not_fit_takes_nothing() -> None:
    pool, table = BlockPool(4, 16), BlockTable()
    assert pool.grow(table, 40)
    assert not pool.grow(table, 65)
    assert len(table.blocks) == 3
    assert pool.free_blocks == 1


def test_growing_a_table_to_less_never_shrinks_it() -> None:
    pool, table = BlockPool(4, 16), BlockTable()
    pool.grow(table, 64)
    assert pool.grow(table, 1)
    assert len(table.blocks) == 4


def test_releasing_twice_is_harmless() -> None:
    pool, table = BlockPool(4, 16), BlockTable()
    pool.grow(table, 64)
    pool.release(table)
    pool.release(table)
    assert pool.free_blocks == 4
    pool.check()


def test_the_block_freed_last_is_used_next() -> None:
    pool, first, second = BlockPool(8, 1), BlockTable(), BlockTable()
    pool.grow(first, 3)
    blocks = list(first.blocks)
    pool.release(first)
    pool.grow(second, 3)
    assert second.blocks == blocks


@pytest.mark.parametrize(("blocks", "tokens"), [(0, 16), (4, 0)])
def test_a_pool_without_blocks_is_refused(blocks: int, tokens: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        BlockPool(blocks, tokens)


def test_check_detects_a_lost_block() -> None:
    pool, table = BlockPool(4, 16), BlockTable()
    pool.grow(table, 32)
    table.blocks.pop()
    with pytest.raises(AssertionError, match=r"blocks \[1\] have other holders"):
        pool.check()


def test_check_detects_a_block_held_twice() -> None:
    pool, table = BlockPool(4, 16), BlockTable()
    pool.grow(table, 32)
    table.blocks.append(table.blocks[0])
    with pytest.raises(AssertionError, match=r"blocks \[0\] have other holders"):
        pool.check()


def test_check_detects_a_block_without_a_holder() -> None:
    pool = BlockPool(4, 16)
    pool._empty.pop()
    with pytest.raises(AssertionError, match="1 lost"):
        pool.check()


def test_a_block_shared_by_two_tables_is_free_when_both_release_it() -> None:
    pool, first, second = BlockPool(4, 1), BlockTable(), BlockTable()
    pool.grow(first, 2)
    pool.share(second, Prefix(2, first.blocks))
    assert pool.grow(second, 2)
    assert (pool.used_blocks, second.reused_blocks, second.new_blocks) == (2, 2, 0)
    pool.check()
    pool.release(first)
    assert pool.used_blocks == 2
    pool.release(second)
    assert (pool.used_blocks, pool.cached_blocks) == (0, 0)
    pool.check()


def test_a_shared_block_is_copied_before_it_is_written() -> None:
    pool, first, second = BlockPool(4, 1), BlockTable(), BlockTable()
    pool.grow(first, 2)
    pool.share(second, Prefix(2, first.blocks))
    assert pool.grow(second, 2)
    (copy,) = pool.own(second, 1)
    assert (copy.source, copy.target) == (first.blocks[1], second.blocks[1])
    assert copy.source != copy.target
    assert (second.reused_blocks, second.new_blocks, pool.used_blocks) == (1, 1, 3)
    pool.check()


def test_a_published_block_is_free_and_still_found_until_it_is_reused() -> None:
    pool, table, other = BlockPool(2, 1), BlockTable(), BlockTable()
    pool.grow(table, 1)
    block = table.blocks[0]
    pool.publish(table, 0, b"one")
    pool.release(table)
    assert (pool.free_blocks, pool.used_blocks, pool.cached_blocks) == (2, 0, 1)
    assert pool.find([b"one", b"two"]) == Prefix(1, [block], [])
    pool.check()
    pool.grow(other, 2)
    assert pool.find([b"one"]).tokens == 0
    assert (pool.free_blocks, pool.cached_blocks) == (0, 0)
    pool.check()


def test_empty_blocks_are_used_before_cached_ones() -> None:
    pool, table, other = BlockPool(3, 1), BlockTable(), BlockTable()
    pool.grow(table, 1)
    pool.publish(table, 0, b"one")
    pool.release(table)
    pool.grow(other, 2)
    assert pool.find([b"one"]).tokens == 1


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    pool, table, other = BlockPool(3, 1), BlockTable(), BlockTable()
    pool.grow(table, 3)
    for index, digest in enumerate((b"one", b"two", b"three")):
        pool.publish(table, index, digest)
    pool.release(table)
    pool.grow(other, 1)
    assert pool.find([b"one", b"two", b"three"]).tokens == 2


def test_a_forgotten_block_is_not_found_but_its_other_holders_keep_it() -> None:
    pool, failed, sound = BlockPool(4, 1), BlockTable(), BlockTable()
    pool.grow(failed, 2)
    pool.publish(failed, 0, b"one")
    pool.publish(failed, 1, b"two")
    pool.share(sound, Prefix(1, failed.blocks[:1]))
    assert pool.grow(sound, 1)
    pool.release(failed, forget=True)
    assert pool.find([b"one"]).tokens == 0
    assert (len(sound.blocks), pool.used_blocks, pool.cached_blocks) == (1, 1, 0)
    pool.check()


def test_what_would_be_spare_counts_idle_blocks_that_would_be_reused() -> None:
    pool, table = BlockPool(4, 1), BlockTable()
    pool.grow(table, 2)
    pool.publish(table, 0, b"one")
    pool.publish(table, 1, b"two")
    known = pool.find([b"one", b"two"])
    assert pool.spare_after(BlockTable(), 3, known) == 1
    pool.release(table)
    assert pool.spare_after(BlockTable(), 3, known) == 1
    assert pool.spare_after(BlockTable(), 3, known, copies=1) == 0


@pytest.mark.parametrize(("room", "message"), [(0, "without room"), (3, "2 of 2 stretches")])
def test_check_detects_room_that_was_not_promised(room: int, message: str) -> None:
    pool, table = BlockPool(4, 16, window=Window(9)), BlockTable()
    pool.grow(table, 32)
    table.room = room
    with pytest.raises(AssertionError, match=message):
        pool.check()


@given(
    total_blocks=st.integers(1, 12),
    tokens_per_block=st.integers(1, 5),
    moves=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=60),
)
def test_every_block_has_one_owner_under_random_growth_and_release(
    total_blocks: int, tokens_per_block: int, moves: list[tuple[int, int]]
) -> None:
    """A move grows one of six tables to so many tokens; 0 tokens means release."""
    pool = BlockPool(total_blocks, tokens_per_block)
    tables = [BlockTable() for _ in range(6)]
    for index, tokens in moves:
        table, held, free = tables[index], len(tables[index].blocks), pool.free_blocks
        if tokens == 0:
            pool.release(table)
            assert (len(table.blocks), pool.free_blocks) == (0, free + held)
        elif pool.grow(table, tokens):
            assert len(table.blocks) == max(held, pool.blocks_for(tokens))
        else:
            assert (len(table.blocks), pool.free_blocks) == (held, free)
            assert pool.blocks_for(tokens) - held > free
        pool.check()
    for table in tables:
        pool.release(table)
    assert pool.free_blocks == total_blocks
    pool.check()
