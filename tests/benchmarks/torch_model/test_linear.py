from __future__ import annotations

import pytest
import torch

from benchmarks.torch_model.linear import Linear, packing_pays


@pytest.mark.parametrize("rows", [1, 2, 7, 33])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("pack", [False, True])
def test_packed_and_unpacked_products_are_those_of_torch(rows: int, has_bias: bool, pack: bool) -> None:
    if pack and not packing_pays(0):
        pytest.skip("this build of torch cannot pack weights")
    torch.manual_seed(0)
    weight, bias, x = torch.randn(24, 16), torch.randn(24) if has_bias else None, torch.randn(rows, 16)
    expected = torch.nn.functional.linear(x, weight, bias)
    assert torch.allclose(Linear(weight, bias, pack=pack)(x), expected, atol=1e-5)


def test_weights_that_would_fill_the_memory_are_not_packed() -> None:
    assert not packing_pays(1 << 60)
