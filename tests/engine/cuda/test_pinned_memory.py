"""Arrays on their way to the device arrive whole, whatever is staged after them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from python_backend.engine.cuda.pinned_memory import Staging
from tests.tiers import examples


@pytest.fixture
def target(device: str) -> torch.device:
    return torch.device(device)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.uint8, np.bool_])
def test_an_array_arrives_with_its_type_and_shape(target: torch.device, dtype: type) -> None:
    staging = Staging(target, 1024)
    array: NDArray[Any] = np.arange(12).reshape(3, 4).astype(dtype)
    staging.upload(np.ones(3, np.uint8))  # what follows must be aligned all the same
    arrived = staging.upload(array.T)
    assert arrived.device.type == target.type
    assert arrived.shape == (4, 3)
    np.testing.assert_array_equal(arrived.cpu().numpy(), array.T)


def test_an_uploaded_array_stays_when_its_staging_memory_is_reused(target: torch.device) -> None:
    staging = Staging(target, 64, steps=2)
    arrived = []
    for step in range(7):
        staging.begin_step()
        arrived += [staging.upload(np.full(8, 10 * step + part, np.int32)) for part in range(2)]
    assert [set(tensor.tolist()) for tensor in arrived] == [
        {10 * step + part} for step in range(7) for part in range(2)
    ]


def test_arrays_beyond_a_steps_staging_memory_arrive(target: torch.device) -> None:
    staging = Staging(target, 64)
    staging.begin_step()
    arrays = [np.arange(10, dtype=np.int32) + part for part in range(5)]
    for array, arrived in zip(arrays, [staging.upload(array) for array in arrays], strict=True):
        assert arrived.tolist() == array.tolist()


def test_an_array_can_be_uploaded_to_where_a_graph_reads_it(target: torch.device) -> None:
    staging = Staging(target, 64)
    rows = torch.zeros(6, dtype=torch.int32, device=target)
    staging.upload_into(rows[2:4], np.array([7, 8], np.int32))
    assert rows.tolist() == [0, 0, 7, 8, 0, 0]


def test_an_empty_array_can_be_staged(target: torch.device) -> None:
    assert Staging(target, 64).upload(np.array([], np.int32)).shape == (0,)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.one_of(st.none(), st.integers(0, 40)), max_size=30))
def test_arrays_staged_side_by_side_never_overlap(moves: list[int | None]) -> None:
    """None begins a step; a number is the length of an array."""
    staging = Staging(torch.device("cpu"), 256, steps=3)
    staged: list[tuple[torch.Tensor, int]] = []
    for number, length in enumerate(moves):
        if length is None:
            staging.begin_step()
            staged.clear()
        else:
            staged.append((staging._staged(np.full(length, number, np.int32)), number))
        assert all((tensor == value).all() for tensor, value in staged)
