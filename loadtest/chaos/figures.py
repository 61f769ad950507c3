"""A run of faults in numbers, as a file that pages are written from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.chaos.episode import EpisodeResult


def figures(
    command: str, when: str, results: Sequence[EpisodeResult], skipped: Mapping[str, str]
) -> dict[str, Any]:
    """Of all faults together, and of each that struck alone."""
    alone: dict[str, list[EpisodeResult]] = {}
    for each in results:
        if len(each.episode.strikes) == 1:
            alone.setdefault(each.episode.name, []).append(each)
    return {
        "command": command,
        "when": when,
        **_summed(results),
        "faults": {name: _summed(found) for name, found in sorted(alone.items())},
        "left_out": dict(skipped),
    }


def _summed(results: Sequence[EpisodeResult]) -> dict[str, Any]:
    outcomes = sum((each.outcomes for each in results), Counter[str]())
    return {
        "times": len(results),
        "requests": sum(outcomes.values()),
        **{name: outcomes[name] for name in ("whole", "cut", "refused", "left")},
        "violations": sum(len(each.violations) for each in results),
        "longest_rest_s": round(max((each.rest_s for each in results), default=0.0), 1),
        "longest_silence_s": round(max((each.longest_silence_s for each in results), default=0.0), 1),
    }
