"""What is typed after `inflight plan`, read into values; a mistake names what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.commands.option_values import Mistake, tier_shares
from launcher.commands.plan.traffic import trace_named
from launcher.commands.simulate.options import by_name, numbers, objectives
from loadtest.traces import Trace, tiers_by_chance
from python_backend.wire.tiers import Tier, tier_named
from simulator.planning.profiles import PRECISION_BYTES, Profile
from simulator.planning.whatifs import WhatIf
from simulator.planning.wish import EXAMPLE_PRICES, Survives, Traffic, Wish, day

_MODEL = "llama-8b"
_OBJECTIVES = ("interactive=ttft:1s,itl:50ms", "standard=ttft:3s,itl:100ms", "batch=ttft:30s")


@dataclass(frozen=True)
class Asked:
    trace: str
    rate: float | None
    night: float
    models: Sequence[str]  # NAME[=RATE[:FILE]]
    slo: Sequence[str]
    tiers: str
    prices: Sequence[str]
    precision: str
    zones: int
    survives: str
    seed: int
    data_dir: Path | None = None
    config: Path | None = None


def wishes(asked: Asked, known: Sequence[Profile]) -> list[Wish]:
    """One for each model: with its own peak and trace, or those that hold for all."""
    texts = asked.models or [_MODEL]
    names = [text.partition("=")[0] for text in texts]
    models = sorted({each.model for each in known})
    for name in names:
        if name not in models:
            raise Mistake(f"--model {name}: no profile; there are {', '.join(models)}")
        if names.count(name) > 1:
            raise Mistake(f"--model {name}: given twice")
    return [_wish(name, text, asked, known) for name, text in zip(names, texts, strict=True)]


def _wish(name: str, text: str, asked: Asked, known: Sequence[Profile]) -> Wish:
    rate, _, file = text.partition("=")[2].partition(":")
    peak = numbers(f"--model {name}", rate)[0] if rate else asked.rate
    trace = _trace(file or asked.trace, asked)
    own = len(trace.requests) / max(trace.duration_s, 1e-9)
    hours = (1.0,) if asked.night == 1.0 else day(asked.night)
    return Wish(
        name,
        Traffic(trace, peak or own, hours),
        objectives(asked.slo or _OBJECTIVES),
        _prices(asked.prices, known),
        _precisions(asked.precision),
        asked.zones,
        _survives(asked.survives),
        seed=asked.seed,
    )


def _trace(file: str, asked: Asked) -> Trace:
    trace = trace_named(file, asked.seed, asked.data_dir, asked.config)
    trace = trace.with_tiers(tiers_by_chance(tier_shares(asked.tiers), asked.seed))
    try:
        for name in {each.tier for each in trace.requests}:
            tier_named(name or Tier.STANDARD.label)
    except ValueError as error:
        raise Mistake(str(error)) from None
    return trace


def _prices(texts: Sequence[str], known: Sequence[Profile]) -> dict[str, float]:
    if not texts:
        return dict(EXAMPLE_PRICES)
    gpus = sorted({each.gpu for each in known})
    found = {name: numbers("--price", value)[0] for name, value in by_name("--price", texts).items()}
    for name in found:
        if name not in gpus:
            raise Mistake(f"--price {name}: no profile; there are {', '.join(gpus)}")
    return found


def _precisions(text: str) -> tuple[str, ...]:
    found = tuple(part for part in text.split(",") if part)
    for each in found:
        if each not in PRECISION_BYTES:
            raise Mistake(f"--precision {each}: allowed are {', '.join(PRECISION_BYTES)}")
    return found


def _survives(text: str) -> Survives:
    try:
        return Survives(text)
    except ValueError:
        allowed = ", ".join(each.value for each in Survives)
        raise Mistake(f"--survives {text}: allowed are {allowed}") from None


def what_ifs(texts: Sequence[str]) -> list[WhatIf]:
    if "all" in texts:
        return list(WhatIf)
    try:
        return [WhatIf(each) for each in texts]
    except ValueError:
        allowed = ", ".join(each.value for each in WhatIf)
        raise Mistake(f"--what-if {', '.join(texts)}: allowed are {allowed}, all") from None
