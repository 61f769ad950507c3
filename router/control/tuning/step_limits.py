"""What holds for the steps of an engine, and why, in sentences: it decides itself, before each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from python_backend.wire.tiers import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from python_backend.costs.step_cost import LearnedStepCost
    from python_backend.wire.engine_report import EngineReport


_FULL = 0.95


def explained(report: EngineReport) -> dict[str, Any]:
    """For people and programs; what changes with every step without changing anything is left out."""
    learned = report.learned
    return {
        "sentence": _limits(report) if learned is None else f"{_limits(report)}. {_cost(learned)}",
        "binds": binding(report),
        "max_batch_size": report.max_batch_size,
        "most_batch_size": report.most_batch_size,
        "max_step_tokens": report.max_step_tokens,
        "most_step_tokens": report.most_step_tokens,
        "inter_token_ms": dict(report.inter_token_ms),
        "cost": None if learned is None else _numbers(learned),
    }


def binding(report: EngineReport) -> str:
    """What keeps the engine from doing more at once, in one line."""
    paused = f"; {report.paused} paused" if report.paused else ""
    running = report.active - report.waiting
    if report.inter_token_ms and report.max_batch_size < report.most_batch_size:
        return f"inter-token binds: {report.max_batch_size} of {report.most_batch_size} in the batch{paused}"
    if report.used_blocks > _FULL * report.total_blocks:
        return f"the KV cache binds: {report.used_blocks} of {report.total_blocks} blocks in use{paused}"
    batch = f"{running} of {report.most_batch_size} in the batch{paused}"
    return f"the batch binds: {batch}" if running >= report.max_batch_size else f"nothing binds: {batch}"


def _limits(report: EngineReport) -> str:
    now = (report.max_batch_size, report.max_step_tokens)
    most = (report.most_batch_size, report.most_step_tokens)
    all_of_it = f"up to {most[0]} sequences and {most[1]} tokens in a step, as configured"
    if not report.inter_token_ms:
        return f"{all_of_it}: no inter-token objective is set"
    if report.learned is None:
        return f"{all_of_it}: the cost of its steps is not learned yet"
    asked = f"{_asked(report.inter_token_ms)} between tokens"
    if now == most:
        return f"{all_of_it}: that keeps {asked}, or no request of the tier is running"
    when = "" if report.active else " when requests last ran"
    return (
        f"up to {now[0]} of {most[0]} sequences and {now[1]} of {most[1]} tokens in a step{when}, "
        f"to keep {asked}"
    )


def _asked(inter_token_ms: Mapping[str, float]) -> str:
    """By time; of several the tightest among those that run counts."""
    tiers: dict[float, list[str]] = {}
    for tier in Tier:
        if (asked_ms := inter_token_ms.get(tier.label)) is not None:
            tiers.setdefault(asked_ms, []).append(tier.label)
    times = ", ".join(f"{asked_ms:g} ms ({', '.join(tiers[asked_ms])})" for asked_ms in sorted(tiers))
    return times if len(tiers) == 1 else f"the tightest of the running tiers: {times}"


def _cost(learned: LearnedStepCost) -> str:
    cost = learned.cost
    parts = [
        f"{value:.3g} ms {words}"
        for value, words in (
            (cost.prefill_token_ms, "per prompt token"),
            (cost.decode_sequence_ms, "per sequence"),
            (cost.kv_kilotoken_ms, "per 1,000 cached tokens"),
        )
        if value > 0
    ]
    sentence = f"A step takes {' + '.join([f'{cost.base_ms:.3g} ms', *parts])}"
    if learned.is_frozen:
        return f"{sentence}: the last good cost; current predictions are {learned.error:.0%} off"
    return f"{sentence}: learned from {learned.samples:,} steps, {learned.error:.0%} off on average"


def _numbers(learned: LearnedStepCost) -> dict[str, Any]:
    cost = learned.cost
    return {
        "base_ms": float(f"{cost.base_ms:.3g}"),
        "prefill_token_ms": float(f"{cost.prefill_token_ms:.3g}"),
        "decode_sequence_ms": float(f"{cost.decode_sequence_ms:.3g}"),
        "kv_kilotoken_ms": float(f"{cost.kv_kilotoken_ms:.3g}"),
        "samples": learned.samples,
        "error": round(learned.error, 3),
        "is_frozen": learned.is_frozen,
    }
