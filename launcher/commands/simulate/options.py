"""What is typed after `inflight simulate`, read into values; a mistake names what is allowed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

from launcher.commands.option_values import ITL, TTFT, Mistake, objectives_by_tier
from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier
from router.core.objective import Objective
from simulator.scenario import MODEL, Admission

_COEFFICIENTS = ("base", "prefill", "decode", "kv")
_SERIES = re.compile(r"^inflight_engine_step_cost_seconds\{([^}]*)\} (\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def objectives(texts: Sequence[str]) -> dict[Tier, Objective]:
    """`interactive=ttft:1s,itl:50ms`, or without a tier for all of them."""
    found = {}
    for tier, terms in objectives_by_tier(texts, (TTFT, ITL)).items():
        try:
            found[tier] = Objective(MODEL, tier, terms.get(TTFT), terms.get(ITL))
        except ValueError as error:
            raise Mistake(f"--slo: {error}") from None
    return found


def numbers(option: str, text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        raise Mistake(f"{option} {text}: expected numbers above 0, separated by commas")
    return values


def admissions(text: str) -> list[Admission]:
    try:
        return [Admission(part) for part in text.split(",")]
    except ValueError:
        allowed = ", ".join(each.value for each in Admission)
        raise Mistake(f"--policy {text}: allowed are {allowed}, separated by commas") from None


def at_least(option: str, value: int, other: str, least: int) -> int:
    if value < least:
        raise Mistake(f"{option} {value}: must not be less than {other} ({least})")
    return value


def by_name(option: str, texts: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE`, each."""
    found = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not equals or not value:
            raise Mistake(f"{option} {text}: expected TENANT=VALUE")
        found[name] = value
    return found


def check_tenants(option: str, named: Iterable[str], there: set[str]) -> None:
    """That all of them are in the trace, or else nothing would come of it."""
    for name in named:
        if name not in there:
            some = ", ".join(sorted(there - {""})[:5])
            raise Mistake(
                f"{option}: there is no tenant {name!r} in the trace; there are {some or 'none'}"
                f"{', ...' if len(there) > 5 else ''}"
            )


def cost(text: str, model: str | None = None) -> StepCost:
    """Four numbers, a JSON file with them, or the address of a Triton server's metrics."""
    if text.startswith(("http://", "https://")):
        has_path = urlsplit(text).path not in ("", "/")
        return _cost_of_metrics(text if has_path else f"{text.rstrip('/')}/metrics", model)
    if Path(text).is_file():
        return _cost_of_file(Path(text))
    parts = text.split(",")
    if len(parts) not in (3, 4):
        raise Mistake(
            f"--cost {text}: there is no such file; allowed: a file, the address of Triton's metrics, or "
            "milliseconds as BASE,PREFILL,DECODE[,KV]"
        )
    return _step_cost(text, dict(zip(_COEFFICIENTS, parts, strict=False)))


def _cost_of_file(path: Path) -> StepCost:
    """What `StepCost` calls them, or an engine's report with a learned cost in it."""
    try:
        found = json.loads(path.read_text())
        found = found.get("learned") or found
        found = found.get("cost") or found
        values = {name: found[f"{_long(name)}_ms"] for name in _COEFFICIENTS if f"{_long(name)}_ms" in found}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise Mistake(f"--cost {path}: {error}") from None
    return _step_cost(str(path), values)


def _long(name: str) -> str:
    return {"prefill": "prefill_token", "decode": "decode_sequence", "kv": "kv_kilotoken"}.get(name, name)


def _cost_of_metrics(url: str, model: str | None) -> StepCost:
    try:
        with urlopen(url, timeout=5) as answer:
            text = answer.read().decode()
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        raise Mistake(
            f"--cost {url}: {why}; allowed: the metrics address that `inflight up` prints"
        ) from None
    costs: dict[str, dict[str, float]] = {}
    for labels, value in _SERIES.findall(text):
        named = dict(_LABEL.findall(labels))
        costs.setdefault(named.get("model", ""), {})[named.get("coefficient", "")] = 1000 * float(value)
    if model is None and len(costs) > 1:
        raise Mistake(
            f"--cost {url}: several engines are there; --model is one of {', '.join(sorted(costs))}"
        )
    found = costs.get(model, {}) if model is not None else next(iter(costs.values()), {})
    if not found:
        there = f"there are: {', '.join(sorted(costs))}" if costs else "is it that of Triton's metrics?"
        raise Mistake(f"--cost {url}: {model or 'an engine'} does not report its step cost there; {there}")
    if not found.get("base"):
        raise Mistake(f"--cost {url}: the engine has not learned its step cost yet; send it some requests")
    return _step_cost(url, {name: found[_long(name)] for name in _COEFFICIENTS if _long(name) in found})


def _step_cost(source: str, values: Mapping[str, object]) -> StepCost:
    try:
        made = StepCost(*(float(str({"kv": 0, **values}[name])) for name in _COEFFICIENTS))
    except (KeyError, ValueError) as error:
        raise Mistake(f"--cost {source}: base, prefill and decode are needed, as numbers ({error})") from None
    least = min(made.prefill_token_ms, made.decode_sequence_ms, made.kv_kilotoken_ms)
    if not (made.base_ms > 0 and least >= 0 and math.isfinite(sum((made.base_ms, least)))):
        raise Mistake(f"--cost {source}: milliseconds must not be negative, and the base must be above 0")
    return made
