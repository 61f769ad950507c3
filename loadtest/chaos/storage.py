"""A run of faults as a file for programs, beside the page for people; the console opens it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.chaos.episode import EpisodeResult, outcome_of

VERSION = 1
KIND = "chaos"
COLUMNS = ("at_s", "took_s", "outcome", "status", "tenant", "tokens", "error")
_DECIMALS = 4


def to_json(
    command: str, results: Sequence[EpisodeResult], skipped: Mapping[str, str], machine: str
) -> dict[str, Any]:
    return {
        "version": VERSION,
        "kind": KIND,
        "name": command,
        "about": {"machine": machine},
        "skipped": dict(skipped),
        "columns": COLUMNS,
        "episodes": [_episode(each) for each in results],
    }


def _episode(result: EpisodeResult) -> dict[str, Any]:
    """Moments are seconds since its load began; those of requests, too."""
    return {
        "number": result.episode.number,
        "name": result.episode.name,
        "what": result.episode.what,
        "victim": result.victim,
        "struck_s": round(result.struck_s, _DECIMALS),
        "over_s": round(result.over_s, _DECIMALS),
        "recovered_s": round(result.recovered_s, _DECIMALS),
        "longest_silence_s": round(result.longest_silence_s, _DECIMALS),
        "violations": list(result.violations),
        "requests": [
            [
                round(each.at_s, _DECIMALS),
                None if each.ended_s is None else round(each.ended_s, _DECIMALS),
                outcome_of(each),
                each.status,
                each.tenant,
                each.completion_tokens,
                each.error,
            ]
            for each in result.requests
        ],
    }
