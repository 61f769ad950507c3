"""The GPU's mixture of experts against the one that torch computes expert by expert."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import gelu, silu, softmax

from python_backend.engine.cuda.experts import choose_blocks, rows_of_each_kind, run_experts
from python_backend.engine.cuda.kernels.experts import arrange, route
from python_backend.engine.cuda.weights import ExpertTensors
from python_backend.engine.models.decoder import ExpertShape
from tests.engine.cuda.cases import examples, on_gpu


def made(shape: ExpertShape, hidden: int, device: str) -> ExpertTensors:
    torch.manual_seed(0)
    return ExpertTensors(
        router=torch.randn(shape.count, hidden).to(device),
        gate_up=(torch.randn(shape.count, 2 * shape.intermediate, hidden) / hidden**0.5).to(device),
        down=(torch.randn(shape.count, hidden, shape.intermediate) / shape.intermediate**0.5).to(device),
    )


def one_by_one(rows: torch.Tensor, experts: ExpertTensors, shape: ExpertShape, is_gelu: bool) -> torch.Tensor:
    shares, chosen = softmax(rows @ experts.router.t(), dim=-1).sort(dim=-1, descending=True, stable=True)
    shares, chosen = shares[:, : shape.per_token], chosen[:, : shape.per_token]
    if shape.renormalizes:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    together = torch.zeros_like(rows)
    for index, row in enumerate(rows):
        for expert, share in zip(chosen[index].tolist(), shares[index], strict=True):
            gate, up = (experts.gate_up[expert] @ row).chunk(2)
            activated = gelu(gate, approximate="tanh") if is_gelu else silu(gate)
            together[index] += share * (experts.down[expert] @ (activated * up))
    return together


@pytest.mark.parametrize(
    ("rows", "hidden", "shape", "is_gelu"),
    [
        (1, 48, ExpertShape(8, 2, 40, renormalizes=True), True),
        (13, 33, ExpertShape(10, 4, 17, renormalizes=False), False),
        (3, 32, ExpertShape(1, 1, 32, renormalizes=True), False),
        *on_gpu(
            (1, 32, ExpertShape(4, 1, 32, renormalizes=False), False),
            (7, 40, ExpertShape(8, 2, 24, renormalizes=True), False),
            (40, 64, ExpertShape(4, 2, 48, renormalizes=False), True),
            (13, 33, ExpertShape(60, 4, 17, renormalizes=False), False),
            (40, 32, ExpertShape(60, 4, 32, renormalizes=True), False),
            (5, 32, ExpertShape(4, 4, 32, renormalizes=False), False),
        ),
    ],
)
def test_each_row_is_the_weighted_sum_of_its_experts(
    rows: int, hidden: int, shape: ExpertShape, is_gelu: bool, device: str
) -> None:
    experts = made(shape, hidden, device)
    x = torch.randn(rows, hidden).to(device)
    expected = one_by_one(x, experts, shape, is_gelu)
    assert torch.allclose(run_experts(x, experts, shape, is_gelu), expected, atol=1e-4)


def test_all_rows_may_choose_the_same_expert_and_leave_the_others_empty(device: str) -> None:
    shape = ExpertShape(8, 1, 32, renormalizes=False)
    experts = made(shape, 32, device)
    experts.router.zero_()
    experts.router[5, 0] = 9.0
    x = torch.randn(38, 32).to(device)
    x[:, 0] = 1.0
    assert torch.allclose(
        run_experts(x, experts, shape, False), one_by_one(x, experts, shape, False), atol=1e-4
    )


def test_many_rows_per_expert_are_multiplied_in_larger_blocks(device: str) -> None:
    shape = ExpertShape(2, 1, 32, renormalizes=True)
    assert choose_blocks(150, shape.count, torch.float32)[0].m == 64
    experts = made(shape, 32, device)
    x = torch.randn(150, 32).to(device)
    assert torch.allclose(
        run_experts(x, experts, shape, True), one_by_one(x, experts, shape, True), atol=1e-4
    )


def test_of_equal_experts_the_lower_ids_are_chosen(device: str) -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 1.0, 3.0], [0.0] * 5]).to(device)
    chosen, shares = route(logits, 4, renormalizes=True)
    assert chosen.tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]
    assert torch.allclose(shares[1].cpu(), torch.full((4,), 0.25))


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_row_of_nan_chooses_experts_that_exist(device: str) -> None:
    chosen, _ = route(torch.full((1, 5), float("nan"), device=device), 2, renormalizes=False)
    assert all(0 <= expert < 5 for expert in chosen.flatten().tolist())


@settings(deadline=None, max_examples=examples(compiled=50, interpreted=6))
@given(
    experts=st.integers(1, 20),
    chosen=st.lists(st.integers(-1, 1000), min_size=1, max_size=600),
    block_m=st.sampled_from([16, 64]),
)
def test_expert_tiles_cover_each_pair_that_has_an_expert_once_under_it(
    experts: int, chosen: list[int], block_m: int, device: str
) -> None:
    ids = torch.tensor([each if each < 0 else each % experts for each in chosen], dtype=torch.int32)
    order, tiles = arrange(ids.to(device), experts, block_m)
    covered = []
    for expert, first, end in tiles.t().tolist():
        if expert < 0:
            continue
        assert 0 < end - first <= block_m
        pairs = order[first:end].tolist()
        assert all(ids[pair] == expert for pair in pairs)
        covered += pairs
    assert sorted(covered) == [pair for pair, each in enumerate(chosen) if each >= 0]


@given(pairs=st.integers(1, 100_000), experts=st.integers(1, 256))
def test_both_expert_products_use_the_same_tiles(pairs: int, experts: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        gate_up, down = choose_blocks(pairs, experts, dtype)
        assert gate_up.m == down.m


@pytest.mark.parametrize("max_rows", [1, 300, 8192])
def test_no_number_of_rows_needs_a_kernel_that_was_not_warmed_up(max_rows: int) -> None:
    shape = ExpertShape(128, 8, 768, renormalizes=True)

    def kind(rows: int) -> tuple[object, bool]:
        return choose_blocks(rows * 8, 128, torch.bfloat16), rows * 8 <= 512

    named = rows_of_each_kind(shape, max_rows, torch.bfloat16)
    assert len(named) <= 4
    assert {kind(rows) for rows in named} == {kind(rows) for rows in range(1, max_rows + 1)}
