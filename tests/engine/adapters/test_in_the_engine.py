"""Adapters in a real engine on the CPU: the same ids as the model that they were merged into."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from python_backend.engine.build import build_engine
from python_backend.engine.config import EngineConfig
from python_backend.engine.engine import Engine
from python_backend.engine.request import GenerationRequest
from python_backend.wire.errors import ErrorKind, InflightError
from tests.engine.adapters.random_adapters import ATTENTION, EVERYTHING, FUSED, write_adapter
from tests.engine.checkpoints import VOCABULARY, random_variant, save
from tests.engine.drained import drain
from tests.tiers import few

PROMPT = [(7 * i + 3) % VOCABULARY for i in range(23)]
NEW_TOKENS = 12


def engine_of(checkpoint: Path, directory: Path, precision: str = "fp32", **changes: Any) -> Engine:
    config = EngineConfig(
        str(checkpoint),
        max_tokens_in_kv_cache=2048,
        precision=precision,
        packed_cache_dir=str(checkpoint / "packed"),
        threads=2,
        check_blocks=True,
        adapters_dir=str(directory),
        max_adapters=3,
        max_adapter_rank=16,
    )
    return build_engine(replace(config, **changes))


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """By whole passes: transformers' own caches of windows are none of this test's business."""
    from tests.engine.checkpoints import all_logits

    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(all_logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def request(adapter: str = "", prompt: list[int] = PROMPT, count: int = NEW_TOKENS) -> GenerationRequest:
    return GenerationRequest(list(prompt), count, adapter=adapter)


@pytest.mark.parametrize(
    ("variant", "modules"),
    few(
        [
            ("llama", EVERYTHING),
            ("llama, biases", EVERYTHING),
            ("qwen3", EVERYTHING),
            ("gemma2", EVERYTHING),
            ("phi3, tied, part of the head turns", FUSED),
            ("phi3", FUSED),
            ("mixtral", ATTENTION),
        ],
        3,
    ),
)
def test_an_adapter_gives_the_ids_of_the_model_it_is_merged_into(
    tmp_path: Path, variant: str, modules: tuple[str, ...]
) -> None:
    model = random_variant(variant)
    checkpoint = save(model, tmp_path / "model")
    merged = write_adapter(model, tmp_path / "adapters" / "a", modules=modules)
    engine = engine_of(checkpoint, tmp_path / "adapters")
    engine.add(1, request("a"))
    engine.add(2, request())
    answers = drain(engine)
    assert answers[1][0] == greedy(merged, PROMPT, NEW_TOKENS)
    assert answers[2][0] == greedy(model, PROMPT, NEW_TOKENS)
    assert answers[1][0] != answers[2][0]


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """A checkpoint, adapters of many kinds, and what each makes of the model."""
    directory = tmp_path_factory.mktemp("stand")
    model = random_variant("llama, grouped heads, tied")
    adapters = directory / "adapters"
    merged = {
        "": model,
        "all": write_adapter(model, adapters / "all", seed=1),
        "thin": write_adapter(model, adapters / "thin", rank=1, modules=("q_proj", "v_proj"), seed=2),
        "wide": write_adapter(model, adapters / "wide", rank=13, seed=3, use_rslora=True, lora_alpha=4),
        "mixed": write_adapter(
            model,
            adapters / "mixed",
            seed=4,
            layers=(1,),
            rank_pattern={"q_proj": 9},
            alpha_pattern={"down_proj": 3},
        ),
        "other": write_adapter(model, adapters / "other", seed=5, modules=("down_proj", "gate_proj")),
    }
    return save(model, directory / "model"), adapters, merged


@pytest.mark.parametrize("name", few(["all", "thin", "wide", "mixed", "other"], ["mixed"]))
def test_ranks_scales_and_chosen_modules_are_those_of_the_file(
    stand: tuple[Path, Path, dict[str, Any]], name: str
) -> None:
    checkpoint, adapters, merged = stand
    engine = engine_of(checkpoint, adapters)
    engine.add(1, request(name))
    assert drain(engine)[1][0] == greedy(merged[name], PROMPT, NEW_TOKENS)


@pytest.mark.parametrize("precision", few(["fp32", "int8", "int4"], ["int8"]))
def test_a_batch_of_many_adapters_gives_each_what_it_gets_alone(
    stand: tuple[Path, Path, dict[str, Any]], precision: str
) -> None:
    """To the last bit: so the ids of sampled answers are the same as well."""
    checkpoint, adapters, merged = stand
    prompts = [[(5 * i + start) % VOCABULARY for i in range(9 + 6 * start)] for start in range(4)]
    names = ["all", "", "thin", "wide"]
    wanted = [(name, prompt) for prompt in prompts for name in names]
    together = engine_of(checkpoint, adapters, precision, max_step_tokens=64, max_batch_size=16)
    for key, (name, prompt) in enumerate(wanted):
        together.add(key, replace(request(name, prompt), returns_generation_logits=True))
    found = drain(together)
    alone = engine_of(checkpoint, adapters, precision, threads=1)
    for key, (name, prompt) in enumerate(wanted):
        alone.add(key, request(name, prompt))
        assert drain(alone)[key][0] == found[key][0]
        if precision == "fp32":
            assert found[key][0] == greedy(merged[name], prompt, NEW_TOKENS)


def test_more_adapters_than_places_take_turns(stand: tuple[Path, Path, dict[str, Any]]) -> None:
    checkpoint, adapters, merged = stand
    engine = engine_of(checkpoint, adapters, max_adapters=2)
    names = ["all", "thin", "wide", "mixed", "other", "all", "", "other", "thin"]
    for key, name in enumerate(names):
        engine.add(key, request(name))
    answers = drain(engine)
    for key, name in enumerate(names):
        assert answers[key][0] == greedy(merged[name], PROMPT, NEW_TOKENS), name
    assert engine.gauges().adapters == 2
    assert engine.gauges().adapter_loads >= 5


def test_keys_and_values_are_not_shared_between_adapters(stand: tuple[Path, Path, dict[str, Any]]) -> None:
    checkpoint, adapters, merged = stand
    engine = engine_of(checkpoint, adapters)
    prompt = [(3 * i) % VOCABULARY for i in range(80)]
    reused = []
    for key, name in enumerate(["", "all", "all", "wide", "", "wide"]):
        before = engine.gauges().reused_blocks
        engine.add(key, request(name, prompt))
        assert drain(engine)[key][0] == greedy(merged[name], prompt, NEW_TOKENS)
        reused.append(engine.gauges().reused_blocks - before)
    assert reused == [0, 0, 4, 0, 4, 4]


def test_an_adapter_that_is_written_anew_is_another_one(tmp_path: Path) -> None:
    model = random_variant("llama")
    checkpoint, place = save(model, tmp_path / "model"), tmp_path / "adapters" / "a"
    write_adapter(model, place, seed=1)
    engine = engine_of(checkpoint, tmp_path / "adapters")
    prompt = [(3 * i) % VOCABULARY for i in range(40)]
    engine.add(1, request("a", prompt))
    drain(engine)
    for path in place.iterdir():
        path.unlink()
    merged = write_adapter(model, place, seed=2)
    engine.drop_adapter("a")
    assert engine.gauges().adapters == 0
    engine.add(2, request("a", prompt))
    assert drain(engine)[2][0] == greedy(merged, prompt, NEW_TOKENS)


def test_a_dropped_adapter_stays_until_its_sequences_have_ended(
    stand: tuple[Path, Path, dict[str, Any]],
) -> None:
    checkpoint, adapters, merged = stand
    engine = engine_of(checkpoint, adapters)
    engine.add(1, request("all"))
    while engine.gauges().scheduled == 0:
        engine.step()
    engine.drop_adapter("all")
    assert engine.gauges().adapters == 1
    engine.add(2, request("all", PROMPT[:9]))
    answers = drain(engine)
    assert len(answers[1][0]) > 0
    assert answers[2][0] == greedy(merged["all"], PROMPT[:9], NEW_TOKENS)


def test_an_adapter_that_is_not_there_ends_its_request_alone(
    stand: tuple[Path, Path, dict[str, Any]],
) -> None:
    checkpoint, adapters, _ = stand
    engine = engine_of(checkpoint, adapters)
    engine.add(1, request("nobody"))
    engine.add(2, request())
    events = {}
    while engine.has_work:
        for event in engine.step():
            if event.is_last:
                events[event.key] = event
    assert "adapter nobody not found" in (events[1].error or "")
    assert events[2].error is None


@pytest.mark.parametrize("name", ["../model", "a/b", "", ".hidden"])
def test_a_name_that_leads_elsewhere_is_refused(stand: tuple[Path, Path, dict[str, Any]], name: str) -> None:
    checkpoint, adapters, _ = stand
    engine = engine_of(checkpoint, adapters)
    if not name:
        return
    with pytest.raises(InflightError, match="inflight_adapter") as refused:
        engine.add(1, request(name))
    assert refused.value.kind is ErrorKind.INVALID_REQUEST
    assert not engine.has_work


def test_an_engine_without_places_refuses_adapters_by_name(tmp_path: Path) -> None:
    checkpoint = save(random_variant("llama"), tmp_path / "model")
    engine = engine_of(checkpoint, tmp_path, max_adapters=0)
    with pytest.raises(InflightError, match="inflight_max_adapters") as refused:
        engine.add(1, request("a"))
    assert refused.value.kind is ErrorKind.UNSUPPORTED
