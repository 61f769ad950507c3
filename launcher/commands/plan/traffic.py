"""The traffic that a plan is for: a file, what was recorded here, or generated requests."""

from __future__ import annotations

import time
from pathlib import Path

from launcher.commands.installation import open_installation
from launcher.commands.option_values import Mistake
from loadtest.traces import Shape, Trace, TracedRequest, read_trace, synthetic_trace
from router.control.whatif.recorded_traffic import SHOWN_HOURS, arrivals_in, hours_of

SYNTHETIC, RECORDED = "synthetic", "recorded"
_SYNTHETIC_S = 600.0
_LONGEST_TIMES = 20.0  # the median; longer ones are cut


def trace_named(text: str, seed: int, data_dir: Path | None, config: Path | None) -> Trace:
    """FILE, synthetic, synthetic:PROMPTS/ANSWERS or recorded:MODEL."""
    kind, _, about = text.partition(":")
    if kind == RECORDED and about:
        return _busiest_hour(about, data_dir, config)
    if kind == SYNTHETIC:
        return synthetic_trace(seed, _SYNTHETIC_S, _shape(about) if about else Shape())
    return read_trace(Path(text))


def _shape(text: str) -> Shape:
    prompts, _, answers = text.partition("/")
    usual = Shape()
    prompt, prompt_spread = _lengths(text, prompts, usual.prompt_spread)
    output, output_spread = _lengths(text, answers, usual.output_spread)
    return Shape(
        prompt_median_tokens=prompt,
        prompt_spread=prompt_spread,
        output_median_tokens=output,
        output_spread=output_spread,
        longest_tokens=int(_LONGEST_TIMES * max(prompt, output)),
    )


def _lengths(whole: str, text: str, usual_spread: float) -> tuple[float, float]:
    median, _, spread = text.partition("~")
    try:
        found = float(median), float(spread) if spread else usual_spread
    except ValueError:
        found = 0.0, 0.0
    if not (1 <= found[0] <= 1e6 and 0 <= found[1] <= 3):
        expected = "expected lengths of prompts and answers such as 900/200 or 900~0.9/200~0.7"
        raise Mistake(f"--trace {SYNTHETIC}:{whole}: {expected}; medians 1 to 1000000, spreads 0 to 3")
    return found


def _busiest_hour(model: str, data_dir: Path | None, config: Path | None) -> Trace:
    """By the usage records of all routers; they tell when, by whom and how much, and no tiers."""
    with open_installation(data_dir, config) as installation, installation.store.read() as connection:
        hours = hours_of(connection, model, time.time())
        if not hours:
            raise Mistake(
                f"--trace {RECORDED}:{model}: no requests to it were recorded in the last {SHOWN_HOURS} hours"
            )
        busiest = max(hours, key=lambda each: each.requests)
        found = arrivals_in(connection, model, busiest.began_s)
    first_s = found[0].started_s
    requests = [
        TracedRequest(
            each.started_s - first_s, max(each.prompt_tokens, 1), max(each.completion_tokens, 1), each.tenant
        )
        for each in found
    ]
    return Trace(RECORDED, tuple(requests))
