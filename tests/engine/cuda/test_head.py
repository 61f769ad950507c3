"""Logits of a vocabulary that has a copy in int8."""

from __future__ import annotations

import math

import pytest
import torch

from python_backend.engine.cuda import head
from python_backend.engine.cuda.head import ByteHead, Head, quantize_to_int8
from tests.engine.cuda.cases import on_gpu

VOCABULARY, HIDDEN = 256, 1024


def random_matrix(device: str) -> torch.Tensor:
    torch.manual_seed(0)
    matrix = torch.randn(VOCABULARY, HIDDEN) / math.sqrt(HIDDEN)
    return matrix.to(device, dtype_on(device))


def dtype_on(device: str) -> torch.dtype:
    return torch.float32 if device == "cpu" else torch.bfloat16


@pytest.mark.parametrize("entries_at_once", [50, 8192])
def test_entries_are_off_by_half_a_level_at_most(
    entries_at_once: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "_ENTRIES_AT_ONCE", entries_at_once)
    matrix = random_matrix(device)
    levels, scales = quantize_to_int8(matrix)
    off = (levels.float() * scales[:, None] - matrix.float()).abs()
    assert (off <= scales[:, None] * 0.5001).all()
    assert (levels.abs().amax(dim=1) == 127).all()


def test_an_entry_of_zeros_stays_zero() -> None:
    levels, scales = quantize_to_int8(torch.zeros(2, 16))
    assert levels.abs().max() == 0
    assert scales.isfinite().all()


@pytest.mark.parametrize("rows", [1, 3, *on_gpu(2, 64)])
def test_logits_of_few_rows_are_those_of_the_copy_in_bytes(rows: int, device: str) -> None:
    of_bytes = ByteHead(random_matrix(device))
    x = torch.randn(rows, HIDDEN).to(device, dtype_on(device))
    logits = torch.empty(rows, VOCABULARY, device=device)
    of_bytes.write_logits(x, logits)
    expected = x.float() @ (of_bytes.levels.float() * of_bytes.scales[:, None]).t()
    assert torch.allclose(logits, expected, atol=1e-4)


@pytest.mark.parametrize("rows", [65, *on_gpu(512)])
def test_logits_of_many_rows_are_those_of_the_matrix_itself(rows: int, device: str) -> None:
    matrix = random_matrix(device)
    x = torch.randn(rows, HIDDEN).to(device, dtype_on(device))
    found, expected = (torch.empty(rows, VOCABULARY, device=device) for _ in range(2))
    ByteHead(matrix).write_logits(x, found)
    Head(matrix).write_logits(x, expected)
    assert torch.equal(found, expected)
