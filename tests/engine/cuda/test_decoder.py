"""The decoder alone: whichever way a row takes through it, its logits are the same."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from python_backend.engine.cuda.decoder import CudaDecoder
from python_backend.engine.cuda.fp8 import Fp8Linear, make_fp8
from python_backend.engine.cuda.head import Head
from python_backend.engine.cuda.kernels.decode_attention import decode_work
from python_backend.engine.cuda.kernels.prefill_attention import prefill_tiles, prefill_tiling
from python_backend.engine.cuda.kv_cache import KvCache
from python_backend.engine.cuda.linear import Linear
from python_backend.engine.cuda.step import PrefillChunks, StepRows
from python_backend.engine.cuda.weights import DeviceWeights, Layer, Mlp
from python_backend.engine.models.decoder import Activation, DecoderShape, Rope

SHAPE = DecoderShape(
    layers=2,
    hidden=32,
    intermediate=48,
    heads=2,
    kv_heads=1,
    head_dim=16,
    vocabulary=40,
    max_positions=32,
    norm_epsilon=1e-5,
    activation=Activation.SILU,
    query_scale=0.25,
    ropes=(Rope(np.logspace(0, -3, 8, dtype=np.float32)),),
    rope_of_layer=(0, 0),
    windows=(None, 3),
)
TOKENS_PER_BLOCK = 4
TOKENS = [3, 1, 4, 39, 5, 9, 2]
_MOST_WORK = 8

Make = Callable[[torch.Tensor, "torch.Tensor | None"], Linear]


class Decoding:
    """A decoder with a cache for one sequence, which has slot 0; rows beside it belong to nobody."""

    def __init__(self, weights: DeviceWeights, device: str) -> None:
        self._device = torch.device(device)
        self._decoder = CudaDecoder(SHAPE, weights, SHAPE.max_positions)
        self._decoder.make_room(_MOST_WORK, 0)
        blocks = SHAPE.max_positions // TOKENS_PER_BLOCK
        self.cache = KvCache(SHAPE, blocks, TOKENS_PER_BLOCK, torch.float32, self._device)
        tables = torch.stack([torch.arange(blocks), torch.full((blocks,), blocks)])
        self._tables = tables[None].int().to(device)

    def _numbers(self, *values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self._device)

    def _run(self, rows: StepRows) -> torch.Tensor:
        wanted = len(rows.token_ids) if rows.wanted_rows is None else len(rows.wanted_rows)
        logits = torch.full((wanted, SHAPE.vocabulary), torch.nan, device=self._device)
        found = self._decoder.forward(rows, self.cache, self._tables)
        assert len(found) == wanted
        if wanted:
            self._decoder.write_logits(found, logits)
        return logits.cpu()

    def prefill(self, tokens: list[int], wanted: list[int] | None = None) -> torch.Tensor:
        counts, starts = np.array([len(tokens)], np.int32), np.zeros(1, np.int32)
        group = SHAPE.heads // SHAPE.kv_heads
        tiling = prefill_tiling(SHAPE.head_dim, group, torch.float32)
        tiles = prefill_tiles(starts, counts, group, tiling, SHAPE.kv_heads)
        chunks = PrefillChunks(
            self._numbers(0),
            self._numbers(0, len(tokens)),
            self._numbers(0),
            torch.from_numpy(tiles).to(self._device),
        )
        return self._run(
            StepRows(
                self._numbers(*tokens),
                self._numbers(*[0] * len(tokens)),
                self._numbers(*range(len(tokens))),
                None,
                chunks,
                None if wanted is None else self._numbers(*wanted),
            )
        )

    def decode(self, token: int, position: int, idle_rows: int = 0, is_wanted: bool = True) -> torch.Tensor:
        positions = np.array([position, *[0] * idle_rows], np.int32)
        work = decode_work(positions, SHAPE.kv_heads, _MOST_WORK)
        rows = StepRows(
            self._numbers(token, *[0] * idle_rows),
            self._numbers(0, *[1] * idle_rows),
            torch.from_numpy(positions).to(self._device),
            torch.from_numpy(work).to(self._device),
            wanted_rows=None if is_wanted else self._numbers(),
        )
        return self._run(rows)


def random_weights(
    device: str, make: Make = Linear, has_biases: bool = False, has_out_norms: bool = False
) -> DeviceWeights:
    """The same ones for the same arguments, whatever `make` does with them."""
    dice = torch.Generator().manual_seed(0)

    def random(*sides: int) -> torch.Tensor:
        return (torch.randn(sides, generator=dice) / math.sqrt(sides[-1])).to(device)

    def linear(outputs: int, inputs: int) -> Linear:
        matrix, bias = random(outputs, inputs), random(outputs)
        return make(matrix, bias if has_biases else None)

    def norm() -> torch.Tensor:
        return 1 + random(SHAPE.hidden)

    def layer() -> Layer:
        attended = SHAPE.heads * SHAPE.head_dim
        return Layer(
            attention_norm=norm(),
            qkv=linear(attended + 2 * SHAPE.kv_heads * SHAPE.head_dim, SHAPE.hidden),
            head_norms=None,
            attention_out=linear(SHAPE.hidden, attended),
            attention_out_norm=norm() if has_out_norms else None,
            mlp_norm=norm(),
            mlp=Mlp(linear(2 * SHAPE.intermediate, SHAPE.hidden), linear(SHAPE.hidden, SHAPE.intermediate)),
            mlp_out_norm=norm() if has_out_norms else None,
        )

    embeddings = random(SHAPE.vocabulary, SHAPE.hidden) * 4
    layers = [layer() for _ in range(SHAPE.layers)]
    return DeviceWeights(embeddings, layers, norm(), Head(random(SHAPE.vocabulary, SHAPE.hidden)))


def through_fp8(matrix: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """In full, the numbers that fp8 stands for."""
    quantized = make_fp8(matrix, bias)
    assert isinstance(quantized, Fp8Linear)
    return Linear(quantized.dequantized(), bias)


def are_close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(found, expected, atol=2e-4, rtol=1e-4)


def test_only_wanted_rows_pass_the_last_layer_with_the_same_logits(device: str) -> None:
    weights = random_weights(device)
    all_rows = Decoding(weights, device).prefill(TOKENS)
    wanted = Decoding(weights, device).prefill(TOKENS, [1, 4, 6])
    assert are_close(wanted, all_rows[[1, 4, 6]])
    assert all_rows.std() > 0.1


def test_keys_and_values_are_written_even_where_no_logits_are_wanted(device: str) -> None:
    weights = random_weights(device)
    wanted, unwanted = Decoding(weights, device), Decoding(weights, device)
    wanted.prefill(TOKENS[:5])
    wanted.decode(TOKENS[5], 5)
    assert unwanted.prefill(TOKENS[:5], []).shape == (0, SHAPE.vocabulary)
    assert unwanted.decode(TOKENS[5], 5, is_wanted=False).shape == (0, SHAPE.vocabulary)
    for kind in ("keys", "values"):
        for layer, expected in zip(getattr(unwanted.cache, kind), getattr(wanted.cache, kind), strict=True):
            assert torch.equal(layer, expected)
            assert expected[1, 0, 1].abs().max() > 0, "position 5 is in the second block"


@pytest.mark.parametrize("idle_rows", [0, 1])
@pytest.mark.parametrize(
    "weights_of",
    [
        pytest.param(random_weights, id="plain", marks=pytest.mark.gpu),
        pytest.param(lambda device: random_weights(device, has_biases=True), id="biases"),
        pytest.param(lambda device: random_weights(device, has_out_norms=True), id="norms on both sides"),
    ],
)
def test_a_single_row_gives_the_logits_it_gives_in_a_batch(
    weights_of: Callable[[str], DeviceWeights], idle_rows: int, device: str
) -> None:
    weights = weights_of(device)
    expected = Decoding(weights, device).prefill(TOKENS)[-1]
    decoding = Decoding(weights, device)
    decoding.prefill(TOKENS[:-1])
    assert are_close(decoding.decode(TOKENS[-1], len(TOKENS) - 1, idle_rows)[0], expected)


def test_a_single_row_is_not_computed_by_the_general_products(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(linear: Linear, rows: torch.Tensor) -> torch.Tensor:
        raise AssertionError("a single row goes through the fused products")

    for kind in (Linear, Fp8Linear):
        monkeypatch.setattr(kind, "__call__", refuse)
    for make in (Linear, make_fp8):
        decoding = Decoding(random_weights(device, make), device)
        assert decoding.decode(TOKENS[0], 0).isfinite().all()


@pytest.mark.parametrize("narrowest", [0, SHAPE.hidden + 1], ids=["every product", "some products"])
def test_a_single_row_through_fp8_is_that_of_the_dequantised_weights(narrowest: int, device: str) -> None:
    def where_wide(make: Make) -> Make:
        return lambda matrix, bias: (make if len(matrix) >= narrowest else Linear)(matrix, bias)

    quantized = Decoding(random_weights(device, where_wide(make_fp8), has_biases=True), device)
    in_full = Decoding(random_weights(device, where_wide(through_fp8), has_biases=True), device)
    assert are_close(quantized.decode(TOKENS[0], 0), in_full.decode(TOKENS[0], 0))
