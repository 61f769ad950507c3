"""What fits on a GPU is decided from numbers, and what does not is refused with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.engine.checkpoint import Checkpoint
from python_backend.engine.cuda.fp8 import Fp8Linear, make_fp8
from python_backend.engine.cuda.head import ByteHead, Head
from python_backend.engine.cuda.linear import Linear
from python_backend.engine.cuda.memory import (
    GIB,
    MemoryFound,
    allocated_bytes,
    blocks_that_fit,
    free_unused,
    require_room_for_weights,
    weight_bytes,
)
from python_backend.engine.cuda.weights import DeviceWeights, Mlp, place_weights
from python_backend.engine.models import load_weights
from python_backend.engine.models.decoder import Activation, DecoderShape, ExpertShape
from python_backend.wire.errors import ErrorKind, InflightError
from tests.engine.checkpoints import random_model, save

LLAMA_8B = DecoderShape(
    layers=32,
    hidden=4096,
    intermediate=14336,
    heads=32,
    kv_heads=8,
    head_dim=128,
    vocabulary=128256,
    max_positions=131072,
    norm_epsilon=1e-5,
    activation=Activation.SILU,
    query_scale=128**-0.5,
    ropes=(),
    rope_of_layer=(0,) * 32,
    windows=(None,) * 32,
)
MIXTRAL = replace(
    LLAMA_8B, vocabulary=32000, experts=ExpertShape(8, per_token=2, intermediate=14336, renormalizes=True)
)


@settings(deadline=None)
@given(
    free=st.integers(0, 1000),
    step=st.integers(0, 1000),
    block=st.integers(1, 100),
    fraction=st.floats(0.01, 1),
    max_tokens=st.none() | st.integers(1, 4000),
)
def test_cache_blocks_stay_within_the_fraction_and_the_limit(
    free: int, step: int, block: int, fraction: float, max_tokens: int | None
) -> None:
    try:
        blocks = blocks_that_fit(MemoryFound(2000, free, step), block, 16, fraction, max_tokens)
    except InflightError:
        assert 2 * block > (free - step) * fraction - 1, "one block, and the one for rows of nobody"
        return
    assert blocks >= 1
    assert (blocks + 1) * block <= (free - step) * fraction
    if max_tokens is not None:
        assert blocks <= max(1, max_tokens // 16)
    else:
        assert (blocks + 2) * block > (free - step) * fraction - 1, "no room is left that could be used"


def test_a_cache_limit_below_a_block_is_one_block() -> None:
    assert blocks_that_fit(MemoryFound(100, 100, 0), 1, 64, 0.9, max_tokens=10) == 1


def test_a_gpu_without_memory_for_keys_and_values_is_refused_with_the_numbers() -> None:
    found = MemoryFound(total=24 * GIB, free=GIB, step=GIB + GIB // 2)
    with pytest.raises(InflightError) as refusal:
        blocks_that_fit(found, 1 << 20, 64, 0.9, None)
    assert refusal.value.kind is ErrorKind.ENGINE_FAILED
    assert refusal.value.message == (
        "the model does not fit on this GPU: after the weights 1.00 of 24.0 GiB are free and a step needs "
        "1.50 GiB; kv_cache_free_gpu_mem_fraction 0.9 of the rest is less than one KV block; raise that "
        "fraction, lower inflight_max_step_tokens or inflight_max_batch_size, choose a "
        "smaller inflight_precision (fp8) or a larger GPU"
    )


def test_a_cache_smaller_than_requested_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    found = MemoryFound(total=24 * GIB, free=2 * GIB, step=GIB)
    assert blocks_that_fit(found, 1 << 20, 64, 1.0, 10**9) == 1023
    assert "max_tokens_in_paged_kv_cache is 1000000000; 65472 tokens fit" in caplog.text


def test_weights_that_do_not_fit_are_refused_before_they_are_loaded() -> None:
    require_room_for_weights(GIB, GIB, 2 * GIB)
    with pytest.raises(InflightError, match=r"its weights take 15\.0 GiB, and 11\.5 of 12\.0 GiB are free"):
        require_room_for_weights(15 * GIB, 23 * GIB // 2, 12 * GIB)


@pytest.mark.parametrize(("precision", "bytes_a_weight"), [("fp32", 4), ("bf16", 2), ("fp8", 1)])
def test_the_weight_bytes_of_an_8b_llama_are_known(precision: str, bytes_a_weight: int) -> None:
    in_layers, in_embeddings = 32 * 4096 * (6144 + 4096 + 3 * 14336), 128256 * 4096
    found = weight_bytes(LLAMA_8B, precision)
    of_entries = {"fp32": 4, "bf16": 2, "fp8": 3}[precision]  # 2, and a copy in int8
    exactly = in_layers * bytes_a_weight + in_embeddings * of_entries
    assert exactly <= found <= exactly * 1.001


def test_experts_keep_their_precision_under_fp8() -> None:
    in_experts = 32 * 8 * 3 * 4096 * 14336
    in_bf16, in_fp8 = weight_bytes(MIXTRAL, "bf16"), weight_bytes(MIXTRAL, "fp8")
    assert in_fp8 > 2 * in_experts
    in_attention, of_vocabulary = 32 * 4096 * (6144 + 4096), 32000 * 4096
    saved = in_attention - of_vocabulary  # of which there is a copy
    assert in_bf16 - in_fp8 == pytest.approx(saved, rel=0.01), "attention alone shrinks"


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8"])
@pytest.mark.parametrize("family", ["Llama", "Mixtral"])
def test_predicted_weight_bytes_are_those_of_the_placed_matrices(
    family: str, precision: str, tmp_path: Path
) -> None:
    weights = load_weights(Checkpoint(save(random_model(family, tie_word_embeddings=True), tmp_path)))
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    placed = place_weights(
        weights,
        lambda array: torch.from_numpy(array).to(dtype),
        make_fp8 if precision == "fp8" else Linear,
        lambda done, total: None,
        make_head=ByteHead if precision == "fp8" else Head,
    )
    assert weight_bytes(weights.shape, precision) == matrix_bytes(placed)


@pytest.mark.gpu
def test_unreferenced_gpu_memory_is_freed(device: str) -> None:
    free_unused()
    before = allocated_bytes(0)
    kept: list[object] = [torch.empty(1 << 20, device=device)]
    kept.append(kept)  # as objects of an engine that know each other
    assert allocated_bytes(0) == before + (4 << 20)
    del kept
    free_unused()
    assert allocated_bytes(0) == before


def matrix_bytes(placed: DeviceWeights) -> int:
    total = placed.embeddings.nbytes
    if isinstance(placed.head, ByteHead):
        total += placed.head.levels.nbytes + placed.head.scales.nbytes
    for layer in placed.layers:
        mlp = layer.mlp
        products = [layer.qkv, layer.attention_out]
        if isinstance(mlp, Mlp):
            products += [mlp.gate_up, mlp.down]
        else:
            assert isinstance(mlp.gate_up, torch.Tensor)
            assert isinstance(mlp.down, torch.Tensor)
            total += mlp.router.nbytes + mlp.gate_up.nbytes + mlp.down.nbytes
        total += sum(product.weight.nbytes for product in products)
        total += sum(product.scales.nbytes for product in products if isinstance(product, Fp8Linear))
    return total
