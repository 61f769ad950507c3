"""Products with weights in groups against the numbers that their levels stand for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import gelu, silu

from python_backend.engine.cuda.experts import run_experts
from python_backend.engine.cuda.fp8 import Fp8Linear
from python_backend.engine.cuda.grouped import GroupedLinear, keep_copies, keep_grouped, make_grouped
from python_backend.engine.cuda.kernels.grouped import grouped_product, written_out
from python_backend.engine.cuda.linear import Linear
from python_backend.engine.cuda.weights import ExpertTensors
from python_backend.engine.models.decoder import ExpertShape, Grouped, Numbers
from tests.engine.cuda.cases import on_gpu

E2M1_LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.int8)
# numbers, group, inputs, whether there are offsets
CASES = [
    (Numbers.INT4, 32, 96, True),
    (Numbers.INT4, 64, 64, False),
    (Numbers.E2M1, 16, 48, False),
    (Numbers.INT8, 16, 48, True),
    (Numbers.E4M3, 32, 64, False),
    *on_gpu(
        (Numbers.INT4, 128, 4096, True), (Numbers.INT8, 4096, 4096, False), (Numbers.E4M3, 128, 512, False)
    ),
]


def random_grouped(
    numbers: Numbers, group: int, shape: tuple[int, ...], has_offsets: bool, seed: int = 0
) -> Grouped:
    dice = np.random.default_rng(seed)
    if numbers is Numbers.E4M3:
        levels = dice.integers(0, 0x78, shape).astype(np.uint8) | (dice.integers(0, 2, shape) << 7).astype(
            np.uint8
        )
    elif numbers is Numbers.E2M1:
        levels = E2M1_LEVELS[dice.integers(0, 8, shape)] * dice.choice([-1, 1], shape).astype(np.int8)
    else:
        most = 8 if numbers is Numbers.INT4 else 128
        levels = dice.integers(-most, most, shape).astype(np.int8)
    groups = (*shape[:-1], shape[-1] // group)
    scales = (dice.random(groups) * 0.01 + 0.01).astype(np.float32)
    # None of them so small that a half could not hold it.
    offsets = dice.choice([-1, 1], groups) * (dice.random(groups) * 0.05 + 0.001) if has_offsets else None
    return Grouped(numbers, levels, scales, None if offsets is None else offsets.astype(np.float32))


def as_kept(matrix: Grouped) -> torch.Tensor:
    """What the levels stand for, with scales as the device has them: in halfs where groups are narrow."""
    if matrix.group >= 64:
        return torch.from_numpy(matrix.dequantized())
    offsets = None if matrix.offsets is None else matrix.offsets.astype(np.float16).astype(np.float32)
    scales = matrix.scales.astype(np.float16).astype(np.float32)
    return torch.from_numpy(Grouped(matrix.numbers, matrix.levels, scales, offsets).dequantized())


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    scale = float(expected.abs().max())
    return float((found.float().cpu() - expected.float().cpu()).abs().max()) < 2e-5 * scale


@pytest.mark.parametrize(("numbers", "group", "inputs", "has_offsets"), CASES)
def test_a_product_is_that_of_the_numbers_that_levels_stand_for(
    numbers: Numbers, group: int, inputs: int, has_offsets: bool, device: str
) -> None:
    matrix = random_grouped(numbers, group, (40, inputs), has_offsets)
    kept = keep_grouped(matrix, torch.device(device))
    assert kept is not None
    weight = as_kept(matrix)
    # A GPU adds the offset without rounding the product first.
    torch.testing.assert_close(written_out(kept, torch.float32).cpu(), weight, rtol=0, atol=1e-7)
    torch.manual_seed(0)
    rows, bias = torch.randn(5, inputs), torch.randn(40)
    found = grouped_product(rows.to(device), kept, bias.to(device))
    assert near(found, rows @ weight.t() + bias)
    parts = grouped_product(rows.to(device), kept, in_parts=True)
    assert near(parts.sum(0), rows @ weight.t())


def test_many_rows_are_multiplied_by_a_copy_if_there_is_room_for_those_of_all_matrices(device: str) -> None:
    matrix = random_grouped(Numbers.INT4, 32, (40, 64), has_offsets=True)
    grouped = [make_grouped(matrix, None, torch.device(device)) for _ in range(2)]
    linears = [linear for linear in grouped if isinstance(linear, GroupedLinear)]
    plain = Linear(torch.randn(8, 64).to(device))
    assert not keep_copies([plain, *linears], torch.float32, 2 * 40 * 64 * 4 - 1)
    assert keep_copies([plain, *linears], torch.float32, 2 * 40 * 64 * 4)
    torch.manual_seed(0)
    rows, hidden = torch.randn(130, 64), torch.zeros(130, 40)
    expected = rows @ as_kept(matrix).t()
    assert near(linears[0](rows.to(device)), expected)
    delta = linears[1].onto(hidden.to(device), rows.to(device))
    assert delta is not None
    assert near(delta, expected)


@pytest.mark.parametrize(
    ("numbers", "gated", "is_gelu"),
    [(Numbers.INT4, True, False), (Numbers.INT8, False, False), *on_gpu((Numbers.E2M1, True, True))],
)
def test_one_row_passes_norm_product_activation_and_residual_at_once(
    numbers: Numbers, gated: bool, is_gelu: bool, device: str
) -> None:
    matrix = random_grouped(numbers, 32, (24, 96), has_offsets=True)
    torch.manual_seed(0)
    row, norm, bias = torch.randn(96), torch.rand(96), torch.randn(24)
    linear = make_grouped(matrix, bias.to(device), torch.device(device))
    assert isinstance(linear, GroupedLinear)
    residual = torch.randn(12 if gated else 24)
    normed = row * torch.rsqrt(row.square().mean() + 1e-5) * norm
    expected = as_kept(matrix) @ normed + bias
    if gated:
        gate, up = expected.chunk(2)
        expected = (gelu(gate, approximate="tanh") if is_gelu else silu(gate)) * up
    expected = expected + residual
    out = residual.to(device)
    linear.times_row(
        row.to(device), out, norm=(norm.to(device), 1e-5), residual=out, gated=gated, is_gelu=is_gelu
    )
    assert near(out, expected)


@pytest.mark.parametrize("numbers", [Numbers.INT4, Numbers.E2M1])
@pytest.mark.parametrize("has_offsets", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 33, 70, 200, 1500])
@pytest.mark.gpu
def test_a_product_in_bf16_is_near_the_one_in_full(
    rows: int, has_offsets: bool, numbers: Numbers, device: str
) -> None:
    matrix = random_grouped(numbers, 128, (512, 1024), has_offsets)
    linear = make_grouped(matrix, None, torch.device(device))
    assert linear is not None
    torch.manual_seed(0)
    x = torch.randn(rows, 1024).to(device, torch.bfloat16)
    expected = x.float() @ as_kept(matrix).to(device).t()
    of_first_row = x.new_empty(512)
    linear.times_row(x[0], of_first_row)
    assert (of_first_row.float() - expected[0]).norm() / expected[0].norm() < 0.01
    for found in (linear(x), linear.onto(torch.zeros_like(x), x)):
        assert found is not None
        summed = found.sum(0) if found.dim() == 3 else found
        assert (summed.float() - expected).norm() / expected.norm() < 0.01


def test_fp8_with_a_scale_for_each_row_is_multiplied_as_fp8(device: str) -> None:
    matrix = random_grouped(Numbers.E4M3, 64, (32, 64), has_offsets=False)
    linear = make_grouped(matrix, None, torch.device("cpu"))
    assert isinstance(linear, Fp8Linear)
    assert torch.equal(linear.dequantized(), torch.from_numpy(matrix.dequantized()))


def test_groups_too_narrow_for_the_tensor_cores_are_written_out() -> None:
    assert make_grouped(random_grouped(Numbers.INT4, 8, (16, 32), False), None, torch.device("cpu")) is None


@pytest.mark.parametrize("is_grouped", [True, False])
def test_experts_in_groups_with_biases_a_shared_one_and_clamped_activations(
    is_grouped: bool, device: str
) -> None:
    shape = ExpertShape(count=3, per_token=2, intermediate=32, renormalizes=True, shared=2)
    hidden, limit = 48, 0.8
    torch.manual_seed(0)
    gate_up = random_grouped(Numbers.INT4, 16, (5, 64, hidden), False, seed=1)
    down = random_grouped(Numbers.E2M1, 16, (5, hidden, 32), False, seed=2)
    router, router_bias = torch.randn(4, hidden), torch.randn(4)
    biases = torch.randn(5, 64), torch.randn(5, hidden)
    rows = torch.randn(6, hidden)

    def placed(matrix: Grouped):  # type: ignore[no-untyped-def]
        return keep_grouped(matrix, torch.device(device)) if is_grouped else as_kept(matrix).to(device)

    tensors = ExpertTensors(
        router.to(device),
        placed(gate_up),
        placed(down),
        router_bias.to(device),
        biases[0].to(device),
        biases[1].to(device),
    )
    found = run_experts(rows.to(device), tensors, shape, False, limit)
    scores = rows @ router.t() + router_bias
    shares, chosen = scores[:, :3].softmax(-1).topk(2)
    shares = shares / shares.sum(-1, keepdim=True)
    expected = torch.zeros_like(rows)
    for index, row in enumerate(rows):
        all_shared = [(expert, scores[index, 3].sigmoid()) for expert in (3, 4)]
        for expert, share in [*zip(chosen[index].tolist(), shares[index], strict=True), *all_shared]:
            gate, up = (as_kept(gate_up)[expert] @ row + biases[0][expert]).chunk(2)
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            inner = gate * torch.sigmoid(1.702 * gate) * (up + 1)
            expected[index] += share * (as_kept(down)[expert] @ inner + biases[1][expert])
    assert near(found, expected)
