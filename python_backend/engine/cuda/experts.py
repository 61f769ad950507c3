"""Mixture of experts on the GPU, with nothing that depends on which experts the rows choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from python_backend.engine.cuda.kernels.expert_products import multiply_down, multiply_gate_up
from python_backend.engine.cuda.kernels.experts import FEW_PAIRS, Blocks, arrange, route

if TYPE_CHECKING:
    from python_backend.engine.cuda.weights import ExpertTensors
    from python_backend.engine.models.decoder import ExpertShape


def run_experts(
    rows: torch.Tensor,
    experts: ExpertTensors,
    shape: ExpertShape,
    is_gelu: bool,
    limit: float | None = None,
) -> torch.Tensor:
    """(rows, hidden) through the experts that each row chooses, summed up by share.

    With a `limit` their activation is the clamped one.
    """
    blocks, down_blocks = choose_blocks(len(rows) * shape.passes, shape.total, rows.dtype)
    logits = _router_logits(rows, experts.router)
    if experts.router_bias is not None:
        logits += experts.router_bias
    chosen, shares = route(logits, shape.per_token, shape.renormalizes, shape.shared)
    order, tiles = arrange(chosen, shape.total, blocks.m)
    gated = multiply_gate_up(
        rows, experts.gate_up, experts.gate_up_bias, order, tiles, shape.passes, is_gelu, limit, blocks
    )
    weighed = multiply_down(gated, experts.down, experts.down_bias, shares, order, tiles, down_blocks)
    if shape.passes == 1:
        return weighed
    return weighed.view(len(rows), shape.passes, -1).sum(dim=1)


def choose_blocks(pairs: int, experts: int, dtype: torch.dtype) -> tuple[Blocks, Blocks]:
    """Blocks of the gate_up and of the down product; both share the tiles, and so `m`.

    Few pairs an expert: reading the weights is all there is, and a program has few of their rows so that many
    programs read at once. Many pairs: the blocks are what the tensor cores like.
    """
    per_expert = pairs / experts
    if dtype == torch.float32:
        small = Blocks(m=16 if per_expert <= 16 else 64, n=32, k=32, warps=4, stages=2)
        return small, small
    if per_expert <= 16:
        return Blocks(16, 32, 128, warps=4, stages=4), Blocks(16, 64, 128, warps=4, stages=4)
    if per_expert <= 96:
        return Blocks(64, 64, 64, warps=4, stages=4), Blocks(64, 128, 64, warps=4, stages=4)
    return Blocks(128, 128, 64, warps=8, stages=3), Blocks(128, 128, 64, warps=8, stages=4)


def rows_of_each_kind(shape: ExpertShape, max_rows: int, dtype: torch.dtype) -> list[int]:
    """Numbers of rows that between them need every kernel there is: to have them compiled before serving."""
    kinds: dict[tuple[int, bool], int] = {}
    for rows in range(1, max_rows + 1):
        pairs = rows * shape.passes
        kinds.setdefault((choose_blocks(pairs, shape.total, dtype)[0].m, pairs <= FEW_PAIRS), rows)
    return list(kinds.values())


def _router_logits(rows: torch.Tensor, router: torch.Tensor) -> torch.Tensor:
    """In fp32: rounded logits would make ties, and ties choose other experts."""
    if rows.dtype == torch.float32:
        return torch.mm(rows, router.t())
    if rows.is_cuda:
        return torch.mm(rows, router.t(), out_dtype=torch.float32)
    return torch.mm(rows.float(), router.float().t())
