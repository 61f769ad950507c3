"""Adapters in the GPU's engine: what they add to products, and the ids of models they are merged into."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from python_backend.engine.adapters.adapter import Adapter, Pair, Part, part_sizes
from python_backend.engine.config import EngineConfig
from python_backend.engine.cuda.adapters import CudaAdapters
from python_backend.engine.models.decoder import Activation, DecoderShape
from python_backend.engine.request import GenerationRequest
from tests.engine.adapters.random_adapters import EVERYTHING, write_adapter
from tests.engine.checkpoints import greedy_choices, random_variant, save
from tests.engine.cuda.cases import on_gpu
from tests.engine.cuda.engines import build_cuda_engine
from tests.engine.drained import drain

NEW_TOKENS = 3
VOCABULARY = 64
pytestmark = pytest.mark.usefixtures("few_programs")

# What each adapter has, and its rank; of the eighteen after them each has one part of the lowest.
SOME = [(3, (Part.QUERY, Part.KEY, Part.VALUE, Part.DOWN)), (17, (Part.KEY, Part.DOWN)), (16, (Part.VALUE,))]
ADAPTERS = [*SOME, *[(1, (Part.QUERY,))] * 18]
BATCHES = {
    "interleaved": [1, -1, 0, 2, 0, 1, -1, 0],
    "of nobody": [-1, -1],
    "a prompt beside single rows": [2, 0, -1, *[1] * 35, -1],
    "more adapters than a tile has rows": list(range(3, 21)),
}


def shape_of(hidden: int, intermediate: int) -> DecoderShape:
    return DecoderShape(
        layers=2,
        hidden=hidden,
        intermediate=intermediate,
        heads=4,
        kv_heads=1,
        head_dim=16,
        vocabulary=64,
        max_positions=16,
        norm_epsilon=1e-5,
        activation=Activation.SILU,
        query_scale=1.0,
        ropes=(),
        rope_of_layer=(0, 0),
        windows=(None, None),
    )


def random_adapter(shape: DecoderShape, rank: int, parts: tuple[Part, ...], seed: int) -> Adapter:
    """In the second layer alone."""
    dice, layer = np.random.default_rng(seed), dict[Part, Pair]()
    for part in parts:
        inputs, outputs = part_sizes(shape)[part]
        shrink = dice.standard_normal((rank, inputs), np.float32) / inputs**0.5
        layer[part] = Pair(shrink, dice.standard_normal((outputs, rank), np.float32))
    return Adapter(str(seed), rank, ({}, layer), b"")


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [(shape_of(48, 80), torch.float32), *on_gpu((shape_of(4096, 14336), torch.bfloat16))],
)
@pytest.mark.parametrize("batch", BATCHES)
def test_each_row_gets_what_its_own_adapter_adds(
    batch: str, shape: DecoderShape, dtype: torch.dtype, device: str
) -> None:
    memory = CudaAdapters(shape, len(ADAPTERS), 64, dtype, torch.device(device))
    adapters = [random_adapter(shape, *what, seed) for seed, what in enumerate(ADAPTERS)]
    for place, adapter in enumerate(adapters):
        memory.put(place, adapter)
    places = BATCHES[batch]
    rows = memory.of_rows(torch.tensor(places, dtype=torch.int32, device=device), memory.rank)
    torch.manual_seed(0)
    for first, parts in ((Part.QUERY, (Part.QUERY, Part.KEY, Part.VALUE)), (Part.DOWN, (Part.DOWN,))):
        inputs = torch.randn(len(places), part_sizes(shape)[first][0], dtype=dtype, device=device)
        widths = [part_sizes(shape)[part][1] for part in parts]
        before = torch.randn(len(places), sum(widths), dtype=dtype, device=device)
        out = before.clone()
        rows.add(1, first, inputs, out)
        wanted = before.float().cpu()
        for place, row, added in zip(places, inputs.float().cpu(), wanted, strict=True):
            for part, onto in zip(parts, added.split(widths), strict=True):
                if place >= 0 and part in adapters[place].layers[1]:
                    shrink, expand = map(torch.from_numpy, adapters[place].layers[1][part])
                    onto += expand @ (shrink @ row)
        tolerance = 1e-4 if dtype == torch.float32 else 0.1
        assert torch.allclose(out.float().cpu(), wanted, atol=tolerance, rtol=tolerance), first


def test_a_batch_of_adapters_gives_the_ids_of_the_models_they_are_merged_into(
    device: str, tmp_path: Path
) -> None:
    model = random_variant("gemma2", vocab_size=VOCABULARY, intermediate_size=16, num_hidden_layers=2)
    checkpoint = save(model, tmp_path / "model")
    merged = {
        "": model,
        "one": write_adapter(model, tmp_path / "one", 3, EVERYTHING, seed=1, strength=0.1),
        "two": write_adapter(model, tmp_path / "two", 17, EVERYTHING, seed=2, strength=0.1),
        "three": write_adapter(model, tmp_path / "three", 8, ("v_proj",), seed=3, layers=(1,)),
    }
    config = EngineConfig(
        str(checkpoint),
        max_tokens_in_kv_cache=128,
        tokens_per_block=4,
        max_batch_size=4,
        max_step_tokens=12,
        precision="fp32",
        device=device,
        adapters_dir=str(tmp_path),
        max_adapters=2,
        max_adapter_rank=32,
    )
    engine = build_cuda_engine(config, device)
    wanted = {
        key: (name, [(3 * i + key) % VOCABULARY for i in range(2 + key)])
        for key, name in enumerate(["one", "", "two", "three", "one"])
    }
    for key, (name, prompt) in wanted.items():
        engine.add(key, GenerationRequest(prompt, NEW_TOKENS, adapter=name))
    answers = drain(engine)
    for key, (name, prompt) in wanted.items():
        assert len(answers[key][0]) == NEW_TOKENS, answers[key]
        assert answers[key][0] == greedy_choices(merged[name], prompt, answers[key][0]), name
    engine.add(9, GenerationRequest(wanted[2][1], NEW_TOKENS, adapter="two"))
    assert drain(engine)[9] == answers[2], "alone as in the batch"
