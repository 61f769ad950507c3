"""The whole engine against transformers: the same ids, however the work is cut and batched."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from python_backend.engine.build import build_engine
from python_backend.engine.config import EngineConfig
from python_backend.engine.engine import Engine
from python_backend.engine.request import GenerationRequest
from tests.engine.checkpoints import VARIANTS, VOCABULARY, greedy_choices, random_model, random_variant, save
from tests.engine.gguf_files import QUANTIZABLE, round_weights, write_gguf
from tests.tiers import few

NEW_TOKENS = 16
PROMPT_LENGTHS = (1, 15, 16, 17, 40, 90)
# One of each family, the one with most about it: these go through every way of cutting the work.
EACH_FAMILY = (
    "llama, grouped heads, tied",
    "mistral, small window",
    "qwen2, tied, upper layers windowed",
    "qwen3, tied, biases, one key head",
    "smollm3, tied, layers without rope windowed",
    "gemma2, untied, low softcaps",
    "gemma3",
    "phi3, longrope",
    "mixtral, windowed, tied",
    "qwen3 moe, shares made whole, some layers dense",
)


class Case:
    """A checkpoint on disk, some prompts, and transformers to judge the answers."""

    def __init__(self, variant: str, directory: Path, device: str) -> None:
        self._model = random_variant(variant)
        self.config = exact(save(self._model, directory), device)
        dice = random.Random(variant)
        self.prompts = [[dice.randrange(VOCABULARY) for _ in range(length)] for length in PROMPT_LENGTHS]

    def check(self, engine: Engine, prompts: list[list[int]]) -> None:
        """Sends the prompts all at once; every answer must be transformers' own, token for token."""
        for prompt, answer in zip(prompts, answers(engine, prompts), strict=True):
            assert len(answer) == NEW_TOKENS
            assert answer == greedy_choices(self._model, prompt, answer)


def exact(checkpoint: Path, device: str) -> EngineConfig:
    # On a GPU each batch size costs a graph.
    most = 64 if device == "cpu" else 8
    return EngineConfig(
        str(checkpoint),
        max_tokens_in_kv_cache=4096,
        max_batch_size=most,
        threads=1,
        precision="fp32",
        device=device,
    )


def answers(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    for key, prompt in enumerate(prompts):
        engine.add(key, GenerationRequest(prompt, NEW_TOKENS))
    found: list[list[int]] = [[] for _ in prompts]
    while engine.has_work:
        for event in engine.step():
            found[event.key] += event.token_ids
        engine.pool.check()
    return found


@pytest.fixture(scope="module", params=EACH_FAMILY)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, device: str) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("checkpoint"), device)


def test_the_ids_are_those_of_transformers_for_one_request_alone(case: Case) -> None:
    engine = build_engine(case.config)
    for prompt in case.prompts:
        case.check(engine, [prompt])


@pytest.mark.parametrize("variant", few(VARIANTS, EACH_FAMILY))
def test_the_ids_are_those_of_transformers_for_requests_in_flight_together(
    variant: str, tmp_path: Path, device: str
) -> None:
    case = Case(variant, tmp_path, device)
    case.check(build_engine(case.config), case.prompts)


def test_prompts_in_tiny_chunks_give_the_ids_of_transformers(case: Case) -> None:
    engine = build_engine(replace(case.config, max_batch_size=7, max_step_tokens=9))
    case.check(engine, case.prompts)
    case.check(engine, case.prompts[-1:])


def test_preempted_and_recomputed_answers_have_the_ids_of_transformers(case: Case) -> None:
    engine = build_engine(
        replace(case.config, max_tokens_in_kv_cache=120, tokens_per_block=4, guaranteed_no_evict=False)
    )
    case.check(engine, case.prompts)
    if engine.pool.window is None:
        assert engine.gauges().preemptions > 0


@pytest.mark.parametrize("guaranteed_no_evict", [False, True])
@pytest.mark.parametrize(
    "case", ["gemma2, untied, low softcaps", "gemma3", "gpt-oss", "mistral, small window"], indirect=True
)
def test_layers_with_windows_that_keep_those_alone_give_the_ids_of_transformers(
    case: Case, guaranteed_no_evict: bool
) -> None:
    """Contexts of up to twelve windows, in a cache that has not even room for one of them in all layers."""
    if case.config.device != "cpu":
        pytest.skip("a GPU keeps a tile more than the window: tests/engine/cuda does the same with that")
    engine = build_engine(
        replace(
            case.config,
            max_tokens_in_kv_cache=72,
            tokens_per_block=4,
            max_batch_size=7,
            max_step_tokens=12,
            guaranteed_no_evict=guaranteed_no_evict,
            check_blocks=True,
        )
    )
    assert engine.limits.max_sequence_tokens >= max(PROMPT_LENGTHS) + NEW_TOKENS > 72
    case.check(engine, case.prompts)
    assert (engine.gauges().preemptions > 0) != guaranteed_no_evict
    reused = engine.pool.reused_blocks
    case.check(engine, case.prompts[-1:])
    before = engine.pool.new_blocks
    case.check(engine, [[*case.prompts[-1], 5]])
    assert engine.pool.reused_blocks > reused, "the last window and all of the other layers are found"
    assert engine.pool.new_blocks - before < 8 * engine.pool.blocks_per_stretch, "its prompt is not computed"


# Static batches differ in who computes together alone, and only experts look across rows.
@pytest.mark.parametrize("case", ["llama, grouped heads, tied", "mixtral, windowed, tied"], indirect=True)
def test_static_batches_give_the_ids_of_transformers(case: Case) -> None:
    case.check(build_engine(replace(case.config, max_batch_size=3, static_batching=True)), case.prompts)


@pytest.mark.parametrize(
    "kind", few([GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.Q8_0], 1)
)
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_a_gguf_file_gives_the_ids_of_its_safetensors_twin(
    family: str, kind: GGMLQuantizationType, tmp_path: Path, device: str
) -> None:
    model = random_model(family, **QUANTIZABLE)
    round_weights(model, kind)
    prompts = [[1, 2, 3], list(range(40))]
    found = [
        answers(build_engine(exact(path, device)), prompts)
        for path in (save(model, tmp_path / "twin"), write_gguf(model, tmp_path / "model.gguf", kind))
    ]
    assert found[0] == found[1]
