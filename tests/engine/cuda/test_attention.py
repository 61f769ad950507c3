"""Paged attention against attention written out in torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from python_backend.engine.cuda.kernels import prefill_attention as prefill_kernel
from python_backend.engine.cuda.kernels.decode_attention import (
    MAX_PARTS,
    DecodeTiling,
    Workspace,
    decode_attention,
    decode_work,
    most_work,
)
from python_backend.engine.cuda.kernels.prefill_attention import (
    PrefillTiling,
    PrefillWorkspace,
    most_cut_tiles,
    prefill_attention,
    prefill_tiles,
    prefill_tiling,
)
from tests.engine.cuda.cases import examples, on_gpu

DECODE = DecodeTiling(16, 4, 2)
PREFILL = PrefillTiling(16, 16, 4, 1)


@dataclass(frozen=True)
class Shape:
    kv_heads: int = 2
    group: int = 2
    head_dim: int = 32
    tokens_per_block: int = 16
    window: int | None = None
    softcap: float | None = None
    dtype: torch.dtype = torch.float32
    in_fp8: bool = False

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def kept_as(self) -> torch.dtype:
        return torch.float8_e4m3fn if self.in_fp8 else self.dtype

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.head_dim)


class Cache:
    """Blocks of sequences in no order, NaN wherever no token is, and old entries at the ends of tables."""

    def __init__(self, shape: Shape, lengths: list[int], device: str) -> None:
        self.shape, self.device = shape, device
        size = shape.tokens_per_block
        blocks_of = [-(-length // size) for length in lengths]
        free = np.random.default_rng(7).permutation(sum(blocks_of)).tolist()
        table = np.full((len(lengths), max(blocks_of) + 2), 2**30, np.int32)
        cache_shape = (len(free) + 1, shape.kv_heads, size, shape.head_dim)
        keys, values = torch.full(cache_shape, math.nan), torch.full(cache_shape, math.nan)
        self.dense: list[tuple[torch.Tensor, torch.Tensor]] = []
        dice = torch.Generator().manual_seed(3)
        for slot, length in enumerate(lengths):
            key, value = torch.randn(2, length, shape.kv_heads, shape.head_dim, generator=dice)
            self.dense.append((key, value))
            for index in range(blocks_of[slot]):
                table[slot, index] = block = free.pop()
                part = slice(index * size, min(length, (index + 1) * size))
                keys[block, :, : part.stop - part.start] = key[part].transpose(0, 1)
                values[block, :, : part.stop - part.start] = value[part].transpose(0, 1)
        self.keys, self.values = keys.to(device, shape.kept_as), values.to(device, shape.kept_as)
        self.tables = torch.from_numpy(table).to(device)

    def queries(self, rows: int) -> torch.Tensor:
        """A view of rows that are longer than the queries, as the fused projection writes them."""
        shape = self.shape
        dice = torch.Generator().manual_seed(5)
        fused = torch.randn(rows, (shape.heads + 2 * shape.kv_heads) * shape.head_dim, generator=dice)
        fused = fused.to(self.device, shape.dtype)
        return fused.view(rows, -1, shape.head_dim)[:, : shape.heads]

    def expected(self, query: torch.Tensor, slot: int, position: int) -> torch.Tensor:
        """One row's result, (heads * head_dim)."""
        shape = self.shape
        first = 0 if shape.window is None else max(0, position - shape.window + 1)
        key, value = (part[first : position + 1].to(shape.kept_as).float() for part in self.dense[slot])
        key, value = (part.repeat_interleave(shape.group, dim=1) for part in (key, value))
        scores = torch.einsum("hd,thd->ht", query.float().cpu(), key) * shape.scale
        if shape.softcap is not None:
            scores = shape.softcap * torch.tanh(scores / shape.softcap)
        return torch.einsum("ht,thd->hd", scores.softmax(-1), value).flatten()


def close(got: torch.Tensor, expected: list[torch.Tensor]) -> None:
    tolerance = 2e-5 if got.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.float().cpu(), torch.stack(expected), rtol=tolerance, atol=tolerance)


def check_decode(
    shape: Shape, lengths: list[int], device: str, splits: int = 1, tiling: DecodeTiling | None = DECODE
) -> None:
    cache = Cache(shape, lengths, device)
    slots = list(range(len(lengths)))[::-1]
    queries = cache.queries(len(slots))
    out = torch.full((len(slots), shape.heads * shape.head_dim), math.nan, device=device, dtype=shape.dtype)
    work = cut(len(slots), splits)
    workspace = Workspace(len(work), shape.heads, shape.kv_heads, shape.head_dim, torch.device(device))
    workspace.partials.fill_(math.nan)
    for in_two_passes in (True, False, False):  # what one leaves behind does not disturb the next
        decode_attention(
            out,
            queries,
            cache.keys,
            cache.values,
            cache.tables,
            torch.tensor(slots, dtype=torch.int32, device=device),
            torch.tensor([lengths[slot] - 1 for slot in slots], dtype=torch.int32, device=device),
            torch.from_numpy(work).to(device),
            workspace,
            shape.scale,
            shape.window,
            shape.softcap,
            tiling,
            in_two_passes,
        )
    close(out, [cache.expected(queries[row], slot, lengths[slot] - 1) for row, slot in enumerate(slots)])


def cut(rows: int, parts: int) -> NDArray[np.int32]:
    """Work in which every row has so many parts, and that has two items of nobody."""
    found = [(row, part, parts) for row in range(rows) for part in range(parts)]
    return np.array([*found, (-1, -1, -1), (-1, -1, -1)], np.int32)


def check_prefill(
    shape: Shape, chunks: list[tuple[int, int]], device: str, tiling: PrefillTiling | None = PREFILL
) -> None:
    """Each chunk is (start, tokens) of a sequence that ends with it."""
    cache = Cache(shape, [start + tokens for start, tokens in chunks], device)
    starts, tokens = np.array(chunks, np.int32).T
    first_rows = np.concatenate([[0], np.cumsum(tokens)]).astype(np.int32)
    queries = cache.queries(int(first_rows[-1]))
    out = torch.full((len(queries), shape.heads * shape.head_dim), math.nan, device=device, dtype=shape.dtype)
    tiling = tiling or prefill_tiling(shape.head_dim, shape.group, shape.dtype)
    tiles = prefill_tiles(starts, tokens, shape.group, tiling, shape.kv_heads)
    prefill_attention(
        out,
        queries,
        cache.keys,
        cache.values,
        cache.tables,
        torch.arange(len(chunks), dtype=torch.int32, device=device),
        torch.from_numpy(first_rows).to(device),
        torch.from_numpy(starts.copy()).to(device),
        torch.from_numpy(tiles).to(device),
        PrefillWorkspace(shape.heads, shape.kv_heads, shape.head_dim, shape.dtype, torch.device(device)),
        shape.scale,
        shape.window,
        shape.softcap,
        tiling,
    )
    rows = [(slot, start + n) for slot, (start, count) in enumerate(chunks) for n in range(count)]
    close(out, [cache.expected(queries[row], slot, position) for row, (slot, position) in enumerate(rows)])


@pytest.mark.parametrize("splits", [1, 5, *on_gpu(2)])
def test_decode_reads_rows_of_any_length_in_any_number_of_splits(device: str, splits: int) -> None:
    check_decode(Shape(), [1, 15, 16, 17, 70], device, splits)


@pytest.mark.parametrize("group", [3, *on_gpu(1, 4)])
def test_decode_shares_a_kv_head_among_a_group_of_any_size(device: str, group: int) -> None:
    check_decode(Shape(group=group), [5, 40], device)


@pytest.mark.parametrize("head_dim", [80, *on_gpu(64, 96)])
def test_decode_accepts_head_dims_that_are_not_powers_of_two(device: str, head_dim: int) -> None:
    check_decode(Shape(head_dim=head_dim), [20, 33], device, splits=2)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("window", [9, *on_gpu(1, 32, 500)])
def test_decode_sees_no_further_back_than_its_window(device: str, window: int, splits: int) -> None:
    check_decode(Shape(window=window), [3, 40, 64], device, splits)


def test_decode_soft_caps_scores(device: str) -> None:
    check_decode(Shape(softcap=0.5), [3, 40], device, splits=2)


@pytest.mark.parametrize(
    ("tokens_per_block", "tile_tokens"),
    [(16, 64), (64, 16), (24, 16), *on_gpu((32, 32), (128, 64), (96, 64))],
)
def test_a_decode_tile_may_be_smaller_or_bigger_than_a_block(
    device: str, tokens_per_block: int, tile_tokens: int
) -> None:
    check_decode(
        Shape(tokens_per_block=tokens_per_block), [70, 129], device, tiling=DecodeTiling(tile_tokens, 4, 2)
    )


def test_decode_rows_may_share_the_dummy_slot(device: str) -> None:
    shape = Shape()
    cache = Cache(shape, [30, 1], device)
    queries = cache.queries(3)
    out = torch.empty(3, shape.heads * shape.head_dim, device=device)
    slots = torch.tensor([0, 1, 1], dtype=torch.int32, device=device)
    positions = torch.tensor([29, 0, 0], dtype=torch.int32, device=device)
    decode_attention(
        out,
        queries,
        cache.keys,
        cache.values,
        cache.tables,
        slots,
        positions,
        torch.from_numpy(cut(3, 1)).to(device),
        Workspace(5, shape.heads, shape.kv_heads, shape.head_dim, torch.device(device)),
        shape.scale,
        None,
        None,
    )
    close(out, [cache.expected(queries[0], 0, 29), *(cache.expected(queries[row], 1, 0) for row in (1, 2))])


def test_prefill_continues_several_sequences_from_their_positions(device: str) -> None:
    check_prefill(Shape(), [(0, 21), (40, 5), (15, 1), (16, 32)], device)


@pytest.mark.parametrize("group", [3, *on_gpu(1, 4)])
def test_prefill_shares_a_kv_head_among_a_group_of_any_size(device: str, group: int) -> None:
    check_prefill(Shape(group=group), [(0, 9), (20, 14)], device)


@pytest.mark.parametrize("copies_tiles", [True, False])
@pytest.mark.parametrize("head_dim", [80, *on_gpu(64, 96)])
def test_prefill_accepts_head_dims_that_are_not_powers_of_two(
    device: str, head_dim: int, copies_tiles: bool
) -> None:
    check_prefill(Shape(head_dim=head_dim), [(3, 20)], device, PREFILL._replace(copies_tiles=copies_tiles))


@pytest.mark.parametrize("window", [9, *on_gpu(1, 32, 500)])
def test_prefill_sees_no_further_back_than_its_window(device: str, window: int) -> None:
    check_prefill(Shape(window=window), [(0, 20), (50, 20)], device)


def test_prefill_soft_caps_scores(device: str) -> None:
    check_prefill(Shape(softcap=0.5), [(0, 20), (33, 4)], device)


@pytest.mark.parametrize("copies_tiles", [True, False])
@pytest.mark.parametrize(
    ("tokens_per_block", "tile_tokens"),
    [(16, 64), (24, 16), *on_gpu((32, 32), (64, 16), (128, 64), (96, 64))],
)
def test_a_prefill_tile_may_be_smaller_or_bigger_than_a_block(
    device: str, tokens_per_block: int, tile_tokens: int, copies_tiles: bool
) -> None:
    tiling = PrefillTiling(32, tile_tokens, 4, 1, copies_tiles)
    check_prefill(Shape(tokens_per_block=tokens_per_block), [(60, 30), (0, 65)], device, tiling)


@pytest.mark.gpu  # triton-lang's interpreter cannot multiply bf16
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_bf16_attention_is_as_exact_as_its_digits(device: str, head_dim: int) -> None:
    shape = Shape(group=4, head_dim=head_dim, tokens_per_block=64, dtype=torch.bfloat16)
    check_decode(shape, [1, 64, 300, 1000], device, splits=1, tiling=None)
    check_decode(shape, [1, 64, 300, 1000], device, splits=7, tiling=None)
    check_prefill(shape, [(0, 300), (200, 129), (64, 1)], device, tiling=None)


@pytest.mark.parametrize("head_dim", [80, *on_gpu(64, 128)])
def test_decode_reads_fp8_as_the_numbers_that_it_stands_for(device: str, head_dim: int) -> None:
    check_decode(Shape(head_dim=head_dim, in_fp8=True), [1, 17, 70], device, splits=2)


@pytest.mark.parametrize("copies_tiles", [True, False])
@pytest.mark.parametrize("head_dim", [80, *on_gpu(64, 128)])
def test_prefill_reads_fp8_as_the_numbers_that_it_stands_for(
    device: str, head_dim: int, copies_tiles: bool
) -> None:
    tiling = PREFILL._replace(copies_tiles=copies_tiles)
    check_prefill(Shape(head_dim=head_dim, in_fp8=True), [(3, 20), (0, 5)], device, tiling)


def test_rows_of_fp8_too_short_to_be_copied_by_the_device_are_loaded(device: str) -> None:
    check_prefill(Shape(head_dim=24, in_fp8=True), [(3, 20)], device)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_bf16_queries_over_fp8_are_as_exact_as_over_bf16(device: str, head_dim: int) -> None:
    shape = Shape(group=4, head_dim=head_dim, tokens_per_block=64, dtype=torch.bfloat16, in_fp8=True)
    check_decode(shape, [1, 64, 300, 1000], device, splits=1, tiling=None)
    check_decode(shape, [1, 64, 300, 1000], device, splits=7, tiling=None)
    check_prefill(shape, [(0, 300), (200, 129), (64, 1)], device, tiling=None)


shapes = st.builds(
    Shape,
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 5),
    head_dim=st.sampled_from([32, 48, 64]),
    tokens_per_block=st.sampled_from([16, 32]),
    window=st.none() | st.integers(1, 40),
    softcap=st.none() | st.floats(0.5, 20),
    in_fp8=st.booleans(),
)


@settings(max_examples=examples(compiled=50, interpreted=6), deadline=None)
@given(shape=shapes, lengths=st.lists(st.integers(1, 60), min_size=1, max_size=3), splits=st.integers(1, 6))
def test_decode_equals_attention_written_out(
    device: str, shape: Shape, lengths: list[int], splits: int
) -> None:
    check_decode(shape, lengths, device, splits)


# Rows that only fill a tile up have no keys: what is divided there is not stored, but the interpreter warns.
@pytest.mark.filterwarnings("ignore:invalid value encountered in divide")
@settings(max_examples=examples(compiled=50, interpreted=4), deadline=None)
@given(
    shape=shapes,
    chunks=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), min_size=1, max_size=3),
)
def test_prefill_equals_attention_written_out(
    device: str, shape: Shape, chunks: list[tuple[int, int]]
) -> None:
    check_prefill(shape, chunks, device)


def test_attention_over_few_rows_is_split_and_over_many_is_not() -> None:
    def parts(rows: int) -> set[int]:
        work = decode_work(np.full(rows, 4000, np.int32), 8, most_work(rows, 8))
        return {int(parts) for row, _, parts in work if row >= 0}

    assert [parts(rows) for rows in (1, 8, 16, 256)] == [{24}, {3}, {1}, {1}]


def test_a_long_context_among_short_ones_is_cut_into_parts_of_its_own() -> None:
    positions = np.array([100_000, *[600] * 31], np.int32)
    work = decode_work(positions, 8, most_work(32, 8))
    parts = {row: int(count) for row, _, count in work.tolist() if row >= 0}
    assert 16 <= parts[0] <= MAX_PARTS
    assert {parts[row] for row in range(1, 32)} == {1}


@given(st.lists(st.integers(0, 20_000), min_size=25, max_size=80))
def test_of_many_rows_the_long_ones_are_cut_and_the_longest_parts_go_first(positions: list[int]) -> None:
    lengths = np.array(positions) + 1
    work = decode_work(lengths.astype(np.int32) - 1, 8, most_work(len(lengths), 8))
    work = work[work[:, 0] >= 0]
    each = lengths[work[:, 0]] / work[:, 2]
    assert each.tolist() == sorted(each, reverse=True)
    assert each[0] <= max(768, lengths.sum() / 48 + 1)
    assert all(parts == 1 for row, _, parts in work if lengths[row] <= 768)


@given(
    st.lists(st.integers(0, 300_000), min_size=1, max_size=80),
    st.sampled_from([1, 2, 8, 32]),
)
def test_decode_work_names_every_part_of_every_row_once_and_fits_its_list(
    positions: list[int], kv_heads: int
) -> None:
    size = most_work(len(positions), kv_heads)
    work = decode_work(np.array(positions, np.int32), kv_heads, size)
    assert work.shape == (size, 3)
    told = work[work[:, 0] >= 0].tolist()
    assert told == work[: len(told)].tolist()
    found = dict[int, int]()
    for row, part, parts in told:
        assert part == found.get(row, 0)
        assert 1 <= parts <= MAX_PARTS
        found[row] = part + 1
    assert found == {row: parts for row, _, parts in told}
    assert sorted(found) == list(range(len(positions)))


def test_prefill_tiles_cover_each_query_once_and_begin_with_the_longest_contexts() -> None:
    starts, tokens = np.array([0, 100, 7], np.int32), np.array([33, 16, 1], np.int32)
    tiles = prefill_tiles(starts, tokens, group=4, tiling=PrefillTiling(64, 64, 4, 2), kv_heads=2)
    whole = [[1, 0], [0, 32], [0, 16], [0, 0], [2, 0]]
    assert tiles.tolist() == [[*tile, 0, 1] for tile in whole]
    assert tiles.dtype == np.int32
    assert prefill_tiles(starts[:0], tokens[:0], 4, PREFILL, 2).shape == (0, 4)


@given(
    chunks=st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 600)), min_size=1, max_size=40),
    kv_heads=st.sampled_from([1, 2, 8, 32]),
)
def test_tiles_of_few_rows_on_long_contexts_are_cut_and_fit_their_workspace(
    chunks: list[tuple[int, int]], kv_heads: int
) -> None:
    starts, tokens = np.array(chunks, np.int32).T
    tiling = PrefillTiling(128, 64, 4, 2)
    tiles = prefill_tiles(starts, tokens, 4, tiling, kv_heads)
    assert len(tiles) <= max(most_cut_tiles(kv_heads), int((-(-tokens // 32)).sum()))
    parts = dict[tuple[int, int], int]()
    for chunk, first, part, count in tiles.tolist():
        assert part == parts.get((chunk, first), 0)
        parts[chunk, first] = part + 1
        assert part < count
        assert count == 1 or len(tiles) <= most_cut_tiles(kv_heads)
    assert len(parts) == (-(-tokens // 32)).sum()


def test_a_short_turn_on_a_long_context_is_cut_for_the_whole_device() -> None:
    starts, tokens = np.array([100_000], np.int32), np.array([16], np.int32)
    assert len(prefill_tiles(starts, tokens, 4, PrefillTiling(128, 64, 4, 2), kv_heads=8)) == 32


@pytest.mark.parametrize("window", [None, *on_gpu(9)])
def test_prefill_puts_the_parts_of_its_tiles_together(
    device: str, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_kernel, "_LEAST_PART_TOKENS", 16)
    check_prefill(Shape(window=window), [(40, 5), (0, 3), (60, 2)], device)


def test_more_query_heads_than_a_tile_has_rows_get_a_larger_tile(device: str) -> None:
    check_prefill(Shape(kv_heads=1, group=20), [(3, 4)], device, None)
