"""Families whose layers are mixtures of experts."""

from __future__ import annotations

from dataclasses import replace

from python_backend.engine.models.blueprint import Blueprint, layer_types, with_windows
from python_backend.engine.models.config import Config
from python_backend.engine.models.decoder import Activation, ExpertShape
from python_backend.engine.models.dense_families import llama, mistral
from python_backend.engine.models.layout import ExpertLayout


def mixtral(config: Config) -> Blueprint:
    plain = mistral(config)
    experts = ExpertShape(
        count=config["num_local_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate=plain.shape.intermediate,
        renormalizes=True,
    )
    places = ExpertLayout(("block_sparse_moe", "mlp"), lambda index: True, "w1", "w3", "w2")
    return _with_experts(plain, experts, places)


def qwen3_moe(config: Config) -> Blueprint:
    plain = mistral(config if config.get("use_sliding_window") else config.changed(sliding_window=None))
    experts, places = _experts_of_qwen(config)
    return _with_experts(replace(plain, layout=replace(plain.layout, has_head_norms=True)), experts, places)


def qwen2_moe(config: Config) -> Blueprint:
    """Beside the chosen experts there is one for every row, as wide as several of them."""
    plain = llama(config)
    is_sliding = config.get("use_sliding_window")
    types = layer_types(config, lambda index: index % 2 == 0 and index < config["max_window_layers"])
    shape = with_windows(plain.shape, types, config.get("sliding_window") if is_sliding else None)
    layout = replace(plain.layout, has_qkv_bias=bool(config["qkv_bias"]))
    experts, places = _experts_of_qwen(config)
    width = config["shared_expert_intermediate_size"]
    return _with_experts(
        Blueprint(shape, layout),
        replace(experts, shared=-(-width // experts.intermediate)),
        replace(places, shared="shared_expert", shared_width=width),
    )


def _experts_of_qwen(config: Config) -> tuple[ExpertShape, ExpertLayout]:
    experts = ExpertShape(
        count=config.get("num_experts") or config["num_local_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate=config["moe_intermediate_size"],
        renormalizes=bool(config.get("norm_topk_prob")),
    )
    dense, step = config.get("mlp_only_layers") or [], config["decoder_sparse_step"]
    return experts, ExpertLayout(("mlp",), lambda index: index not in dense and (index + 1) % step == 0)


def gpt_oss(config: Config) -> Blueprint:
    """Every other layer has a window; attention has sinks, and everything a bias."""
    plain = llama(config)
    types = layer_types(config, lambda index: index % 2 == 0)
    shape = replace(
        with_windows(plain.shape, types, config["sliding_window"]),
        activation=Activation.CLAMPED_SWIGLU,
        activation_limit=config["swiglu_limit"],
        weighs_in_fp32=True,
    )
    experts = ExpertShape(
        count=config["num_local_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate=shape.intermediate,
        renormalizes=True,
    )
    places = ExpertLayout(("mlp",), lambda index: True, router="router", has_biases=True, takes_turns=True)
    return _with_experts(Blueprint(shape, replace(plain.layout, has_sinks=True)), experts, places)


def _with_experts(plain: Blueprint, experts: ExpertShape, places: ExpertLayout) -> Blueprint:
    return Blueprint(replace(plain.shape, experts=experts), replace(plain.layout, experts=places))
