"""What people write on the command line about traffic, read into values."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from launcher.commands.option_values import WEEK_S, duration_s, one_of
from router.control.releases.plan import (
    MOST_MIRRORED_PER_S,
    MOST_REPLAYED_PER_S,
    OnTimeout,
    Plan,
    Tolerance,
)
from router.control.releases.records import GOLDEN_CHECKS, MOST_GOLDEN_TOKENS, GoldenPrompt
from router.core.json_answers import fault_of_schema
from router.core.manifest import read_version
from router.routing.split import Shadow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MOST_GOLDEN_PROMPTS = 200


def share(text: str) -> float:
    """0.05 or 5%."""
    number = text.removesuffix("%")
    try:
        value = float(number) / (100 if number != text else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise ValueError(f"{text!r} is not a share of the traffic; for instance 0.05 or 5%")
    return value


def arm(text: str) -> tuple[int, float]:
    """2=10%: a version and its share."""
    version, equals, weight = text.partition("=")
    try:
        number = read_version(version if equals else "")
    except ValueError:
        raise ValueError(f"{text!r} is not a version and its share; for instance 2=0.1 or 2=10%") from None
    return number, share(weight)


def shadow(text: str | None) -> Shadow | None:
    return None if text is None else Shadow(*arm(text))


def step_duration_s(text: str) -> float:
    return duration_s("--min-duration", text, "s, m or h", "30s, 5m or 1h", least_s=0, most_s=52 * WEEK_S)


_USUAL = Tolerance()


@dataclass(frozen=True)
class PlanOptions:
    """As they were typed; None is what was not."""

    steps: str | None = None
    min_requests: int | None = None
    min_duration: str | None = None
    time_limit: str | None = None
    on_timeout: str | None = None
    tolerances: Sequence[str] = ()
    accept_slower: str | None = None
    min_likeness: str | None = None
    min_shadow_answers: int | None = None
    is_rehearsed: bool = True
    mirror: str | None = None
    replay: str | None = None


def plan(typed: PlanOptions, usual: Tolerance = _USUAL) -> Plan:
    """What is not said is as in Plan, and tolerances are as usual for the model."""
    allowed = tolerance(typed.tolerances, usual)
    if typed.accept_slower is not None:
        allowed = allowed.accepting(accept_slower(typed.accept_slower))
    chosen: dict[str, Any] = {"tolerance": allowed, "is_rehearsed": typed.is_rehearsed}
    if typed.steps is not None:
        chosen["weights"] = tuple(share(each.strip()) for each in typed.steps.split(","))
    if typed.min_requests is not None:
        chosen["min_requests"] = typed.min_requests
    if typed.min_duration is not None:
        chosen["min_duration_s"] = step_duration_s(typed.min_duration)
    if typed.time_limit is not None:
        chosen["time_limit_s"] = duration_s(
            "--time-limit", typed.time_limit, "s, m, h or d", "30m, 6h or 1d", least_s=1, most_s=52 * WEEK_S
        )
    if typed.on_timeout is not None:
        chosen["on_timeout"] = one_of(OnTimeout, typed.on_timeout)
    if typed.min_likeness is not None:
        chosen["min_likeness"] = min_likeness(typed.min_likeness)
    if typed.mirror is not None:
        chosen["mirror_per_s"] = per_s("--mirror", typed.mirror, MOST_MIRRORED_PER_S)
    if typed.replay is not None:
        chosen["replay_per_s"] = per_s("--replay", typed.replay, MOST_REPLAYED_PER_S)
    if typed.min_shadow_answers is not None:
        chosen["min_shadow_answers"] = typed.min_shadow_answers
    return Plan(**chosen)


def accept_slower(text: str) -> float:
    """2x, 1.5x or 2: how many times as slow."""
    try:
        ratio = float(text.strip().removesuffix("x"))
    except ValueError:
        ratio = math.nan
    if not 1 <= ratio <= 1000:
        raise ValueError(f"--accept-slower {text!r}; allowed: 1x to 1000x, for instance 2x")
    return ratio


def per_s(option: str, text: str, most: float) -> float:
    """2/s, or 0.5/s."""
    number, slash, unit = text.strip().partition("/")
    try:
        rate = float(number) if (slash, unit) == ("/", "s") else math.nan
    except ValueError:
        rate = math.nan
    if not 0 < rate <= most:
        raise ValueError(f"{option} {text!r}; allowed: above 0/s, up to {most}/s, for instance 1/s")
    return rate


def min_likeness(text: str) -> float:
    try:
        value = share(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise ValueError(f"--min-likeness {text!r}; allowed: above 0, up to 100%, for instance 90%")
    return value


def tolerance(texts: Sequence[str], usual: Tolerance = _USUAL) -> Tolerance:
    chosen = usual
    allowed = ", ".join(f"{key.name}={getattr(chosen, key.name)}" for key in fields(Tolerance))
    for text in texts:
        name, _, value = text.partition("=")
        refusal = ValueError(f"--tolerance {text!r}; allowed, with their defaults: {allowed}")
        if name not in {key.name for key in fields(Tolerance)}:
            raise refusal
        try:
            number: Any = _amount(name, value)
        except ValueError:
            raise refusal from None
        chosen = replace(chosen, **{name: number})
    return chosen


def _amount(name: str, text: str) -> float:
    if name == "golden_failures":
        count = int(text)
        if not 0 <= count <= MOST_GOLDEN_PROMPTS:
            raise ValueError(text)
        return count
    if name.endswith(("_rate", "_margin")):
        return share(text)
    ratio = float(text)
    if not 1 <= ratio <= 1000:
        raise ValueError(text)
    return ratio


def golden_prompts(path: Path | None) -> list[GoldenPrompt]:
    """One JSON object a line: a prompt, and what its answer is known to be."""
    if path is None:
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"--golden {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"--golden {path}: this is not UTF-8") from None
    found = [golden_prompt(line, f"{path}, line {n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not 1 <= len(found) <= MOST_GOLDEN_PROMPTS:
        raise ValueError(f"{path} has {len(found)} golden prompts; allowed: 1 to {MOST_GOLDEN_PROMPTS}")
    return found


def golden_prompt(line: str, where: str) -> GoldenPrompt:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("prompt"), str) or not value["prompt"]:
        raise ValueError(f'{where} has no prompt: {{"prompt": "...", "contains": "..."}}')
    allowed = {key.name for key in fields(GoldenPrompt)}
    if strangers := sorted(value.keys() - allowed):
        raise ValueError(f"{where} has {strangers[0]!r}; allowed: {', '.join(sorted(allowed))}")
    given = [name for name in GOLDEN_CHECKS if value.get(name) not in (None, "")]
    if not given or any(not isinstance(value[name], str) for name in given if name != "schema"):
        texts = ", ".join(GOLDEN_CHECKS[:-1])
        raise ValueError(
            f"{where} does not say what answer is expected: give a text as {texts}, or a JSON schema"
        )
    likeness = value.get("min_likeness", 0.8)
    if type(likeness) not in (int, float) or not 0 < likeness <= 1:
        raise ValueError(f"{where}: min_likeness is {likeness!r}; allowed: above 0, up to 1")
    most = value.get("max_tokens", 64)
    if type(most) is not int or not 1 <= most <= MOST_GOLDEN_TOKENS:
        raise ValueError(f"{where}: max_tokens is {most!r}; allowed: 1 to {MOST_GOLDEN_TOKENS}")
    try:
        re.compile(value.get("matches", ""))
    except re.error as error:
        raise ValueError(f"{where}: matches is not a regular expression: {error}") from None
    if "schema" in given and (fault := fault_of_schema(value["schema"])) is not None:
        raise ValueError(f"{where}: schema: {fault}")
    return GoldenPrompt(**value)


def parameter(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)):
        raise ValueError(f"--set {text!r}: expected PARAMETER=VALUE, for instance inflight_precision=int4")
    return name, value
