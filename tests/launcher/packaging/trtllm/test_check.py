"""Our configs against NVIDIA's contract, and broken copies of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.packaging.trtllm.check import MODELS, check_models
from launcher.packaging.trtllm.edition import EDITIONS, NEWEST
from launcher.packaging.trtllm.findings import Finding, Verdict, by_weight, is_fit
from launcher.packaging.trtllm.repository import read_models
from python_backend.wire.parameters import FOREIGN_KEYS, NEUTRAL_VALUES
from tests.tiers import examples

ROOT = Path(__file__).parents[4]
Spoil = Callable[[dict[str, Any]], object]


def ours() -> dict[str, Any]:
    return read_models([ROOT / "model_repository", ROOT / "ensembles"])


def findings_of(spoil: Spoil) -> list[Finding]:
    models = ours()
    spoil(models)
    return check_models(models, NEWEST)


def tensor(models: dict[str, Any], model: str, name: str) -> Any:
    return next(each for each in (*models[model].input, *models[model].output) if each.name == name)


def drop(models: dict[str, Any], model: str, side: str, name: str) -> None:
    rows = getattr(models[model], side)
    rows.remove(next(each for each in rows if each.name == name))


def parameter(key: str, value: str) -> Spoil:
    def spoil(models: dict[str, Any]) -> None:
        models["tensorrt_llm"].parameters[key].string_value = value

    return spoil


def setting(path: str, value: Any) -> Spoil:
    """`path` begins with the model."""

    def spoil(models: dict[str, Any]) -> None:
        model, *inner, last = path.split(".")
        place = models[model]
        for name in inner:
            place = getattr(place, name)
        setattr(place, last, value)

    return spoil


def test_our_repository_passes_the_check() -> None:
    found = check_models(ours(), NEWEST)
    assert is_fit(found)
    assert {finding.verdict for finding in found} == {Verdict.DIFFERS, Verdict.IGNORED}


def test_types_left_to_the_engine_may_be_any_it_supports() -> None:
    def spoil(models: dict[str, Any]) -> None:
        tensor(models, "tensorrt_llm", "encoder_input_features").data_type = 14  # BF16
        for model in ("tensorrt_llm", "ensemble"):
            tensor(models, model, "context_logits").data_type = 10  # FP16

    found = findings_of(spoil)
    assert is_fit(found)
    assert any("encoder_input_features is TYPE_BF16" in each.what for each in found)


def test_our_additions_to_the_contract_are_reported_as_ignored() -> None:
    ignored = [each for each in check_models(ours(), NEWEST) if each.verdict is Verdict.IGNORED]
    words = " ".join(each.what for each in ignored)
    assert "finish_reason" in words
    assert "inflight_runtime" in words
    assert all("may stay" in each.remedy or each.model == "embeddings" for each in ignored)


def test_the_edition_knows_every_key_of_the_contract() -> None:
    contract = FOREIGN_KEYS - {"inflight_epoch"} | set(NEUTRAL_VALUES)
    assert contract <= set(EDITIONS["26.07"].keys)


@pytest.mark.parametrize(
    ("model", "spoil", "words"),
    [
        ("tensorrt_llm", lambda models: models.pop("tensorrt_llm"), "the model is missing"),
        ("tensorrt_llm", setting("tensorrt_llm.backend", "python"), "backend is 'python'"),
        (
            "tensorrt_llm",
            setting("tensorrt_llm.runtime", "model.py"),
            "is loaded instead of NVIDIA's library",
        ),
        ("preprocessing", setting("preprocessing.backend", "tensorrtllm"), "backend is 'tensorrtllm'"),
        ("ensemble", setting("ensemble.platform", ""), "platform is ''"),
        ("tensorrt_llm", setting("tensorrt_llm.max_batch_size", 0), "max_batch_size is 0"),
        (
            "tensorrt_llm",
            lambda models: drop(models, "tensorrt_llm", "input", "input_lengths"),
            "input input_lengths is missing",
        ),
        (
            "tensorrt_llm",
            lambda models: drop(models, "tensorrt_llm", "output", "sequence_length"),
            "output sequence_length is missing",
        ),
        (
            "tensorrt_llm",
            lambda models: setattr(tensor(models, "tensorrt_llm", "early_stopping"), "data_type", 8),
            "early_stopping is TYPE_INT32",
        ),
        (
            "tensorrt_llm",
            lambda models: setattr(tensor(models, "tensorrt_llm", "context_logits"), "data_type", 8),
            "context_logits is TYPE_INT32",
        ),
        (
            "ensemble",
            lambda models: setattr(tensor(models, "tensorrt_llm", "context_logits"), "data_type", 10),
            "context_logits is TYPE_FP32 in ensemble and TYPE_FP16 as context_logits of tensorrt_llm",
        ),
        (
            "tensorrt_llm",
            lambda models: tensor(models, "tensorrt_llm", "output_ids").dims.append(-1),
            "output_ids has dims [-1, -1, -1]",
        ),
        (
            "tensorrt_llm",
            lambda models: tensor(models, "tensorrt_llm", "seed").ClearField("reshape"),
            "seed: reshape differs",
        ),
        (
            "tensorrt_llm",
            lambda models: models["tensorrt_llm"].input.add(name="mine", data_type=6, dims=[1]),
            "input mine is not part of the contract, and required",
        ),
        ("tensorrt_llm", parameter("gpt_model_type", "paged"), "gpt_model_type is 'paged'"),
        ("tensorrt_llm", parameter("gpt_model_type", ""), "gpt_model_type is not set"),
        ("tensorrt_llm", parameter("gpt_model_path", "${engine_dir}"), "gpt_model_path is not set"),
        ("tensorrt_llm", parameter("decoding_mode", "lookahead"), "lookahead_window_size is not set"),
        (
            "tensorrt_llm",
            lambda models: models["tensorrt_llm"].parameters.pop("xgrammar_tokenizer_info_path"),
            "xgrammar_tokenizer_info_path is absent",
        ),
        ("tensorrt_llm", parameter("guided_decoding_backend", "llguidance"), "is 'llguidance'"),
        (
            "tensorrt_llm",
            lambda models: setattr(models["tensorrt_llm"].instance_group[0], "count", 2),
            "several instances",
        ),
        (
            "preprocessing",
            setting("preprocessing.dynamic_batching.default_queue_policy.default_timeout_microseconds", 9),
            "a queue timeout",
        ),
        (
            "preprocessing",
            lambda models: setattr(
                models["preprocessing"].dynamic_batching.priority_queue_policy[1],
                "default_timeout_microseconds",
                9,
            ),
            "a queue timeout",
        ),
        (
            "postprocessing",
            setting("postprocessing.dynamic_batching.preserve_ordering", True),
            "preserve_ordering",
        ),
        (
            "postprocessing",
            lambda models: setattr(models["postprocessing"].instance_group[0], "count", 2),
            "may change their order: nothing keeps it",
        ),
        (
            "ensemble",
            lambda models: setattr(tensor(models, "postprocessing", "TOP_TOKEN_IDS"), "optional", False),
            "waits for _TOP_TOKEN_IDS",
        ),
        (
            "ensemble",
            lambda models: models["ensemble"].ensemble_scheduling.step.pop(),
            "no step postprocessing",
        ),
        (
            "ensemble",
            lambda models: models["ensemble"].ensemble_scheduling.step[1].input_map.pop("input_lengths"),
            "is not given its input input_lengths",
        ),
        (
            "ensemble",
            lambda models: (
                models["ensemble"].ensemble_scheduling.step[1].input_map.update({"top_q": "top_p"})
            ),
            "has no input top_q",
        ),
        (
            "ensemble",
            lambda models: (
                models["ensemble"].ensemble_scheduling.step[2].output_map.update({"TEXT": "text_output"})
            ),
            "has no output TEXT",
        ),
    ],
)
def test_a_config_that_will_fail_is_found_with_a_remedy(model: str, spoil: Spoil, words: str) -> None:
    failing = [each for each in findings_of(spoil) if each.verdict is Verdict.FAILS]
    assert any(each.model == model and words in each.what for each in failing), failing
    assert all(each.remedy for each in failing)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (parameter("max_beam_width", "two"), "max_beam_width is 'two', and is treated as 1"),
        (parameter("enable_kv_cache_reuse", "yes"), "enable_kv_cache_reuse is 'yes', and is treated as true"),
        (parameter("batch_scheduler_policy", "fair"), "is treated as guaranteed_no_evict"),
        (parameter("gpt_model_type", "V1"), "batches statically"),
        (parameter("decoding_mode", "greedy"), "decoding_mode is 'greedy', and is treated as unset"),
        (parameter("guided_decoding_backend", "xgrammar"), "xgrammar_tokenizer_info_path is not"),
        (setting("tensorrt_llm.model_transaction_policy.decoupled", False), "not decoupled"),
        (
            setting("tensorrt_llm.dynamic_batching.default_queue_policy.max_queue_size", 8),
            "max_queue_size 8 applies twice",
        ),
        (
            lambda models: setattr(models["tensorrt_llm"].instance_group[0], "kind", 1),
            "gpu_device_ids selects the GPUs",
        ),
        (
            lambda models: drop(models, "tensorrt_llm", "input", "lookahead_ngram_size"),
            "input lookahead_ngram_size is missing",
        ),
        (
            lambda models: setattr(tensor(models, "tensorrt_llm", "seed"), "optional", False),
            "input seed is required here",
        ),
        (
            lambda models: setattr(tensor(models, "tensorrt_llm", "input_ids"), "allow_ragged_batch", False),
            "input_ids: allow_ragged_batch is not true",
        ),
    ],
)
def test_a_config_that_will_differ_is_reported_and_still_fit(spoil: Spoil, words: str) -> None:
    found = findings_of(spoil)
    assert is_fit(found)
    assert any(words in each.what for each in found if each.verdict is Verdict.DIFFERS), found


@settings(deadline=None, max_examples=examples(12))
@given(st.sampled_from(MODELS), st.sampled_from(["input", "output"]), st.integers(0, 100))
def test_any_missing_tensor_is_reported(model: str, side: str, which: int) -> None:
    models = ours()
    rows = getattr(models[model], side)
    contract = NEWEST.contract(model)
    shipped = {each.name for each in (contract.inputs if side == "input" else contract.outputs)}
    names = [each.name for each in rows if each.name in shipped]
    name = names[which % len(names)]
    drop(models, model, side, name)
    found = check_models(models, NEWEST)
    assert any(f"{side} {name} is missing" in each.what for each in found if each.model == model)


def test_the_gravest_findings_come_first() -> None:
    found = by_weight(findings_of(parameter("gpt_model_type", "paged")))
    of_engine = [each.verdict for each in found if each.model == "tensorrt_llm"]
    assert of_engine[0] is Verdict.FAILS
