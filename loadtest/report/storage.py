"""results.json: a run as a file that stays small, and back again.

Requests are rows under named columns, with words that repeat kept once. The times between a request's tokens
are its mean and a count for each bin around it, so that their number does not matter; a report is made of a
run as it was stored, and says the same whenever it is made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.results import LoadRun, RequestResult, ServerSample, Slo

VERSION = 1
FILE_NAME = "results.json"
_WORDS = ("kind", "tenant", "tier", "model", "release", "error")
_NUMBERS = ("at_s", "status", "sent_s", "first_token_s", "ended_s", "prompt_tokens", "completion_tokens")
_MORE_NUMBERS = ("retry_after_s", "attempt", "asked_tokens", "cached_tokens", "pieces", "longest_gap_s")
COLUMNS = (*_WORDS, *_NUMBERS, *_MORE_NUMBERS, "request_id", "between_tokens_s", "gap_bins")
_DECIMALS = 5
# Bins for a factor of e: 5 % wide, and 14 % in runs so large that the file would be too.
_BINS_PER_E, _COARSE_BINS_PER_E = 20, 7
_LARGE, _HUGE = 20_000, 60_000  # requests; of a huge run gaps are their means alone
_LEAST_S = 1e-6
_MOST_SAMPLES = 2000


class RunError(ValueError):
    """A file is no run that can be read; the message says what is wrong with it."""


def stored(run: LoadRun) -> LoadRun:
    """The run as it will be read back."""
    return from_json(json.loads(json.dumps(to_json(run))), "the run")


def to_json(run: LoadRun) -> dict[str, Any]:
    words = sorted({getattr(each, name) for each in run.results for name in _WORDS})
    places = {word: place for place, word in enumerate(words)}
    bins_per_e = _BINS_PER_E if len(run.results) <= _LARGE else _COARSE_BINS_PER_E
    if len(run.results) > _HUGE:
        bins_per_e = 0
    return {
        "version": VERSION,
        "name": run.name,
        "began_at": run.began_at,
        "duration_s": round(run.duration_s, 3),
        "planned": run.planned,
        "clamped": run.clamped,
        "about": run.about,
        "slo": {tier: asdict(slo) for tier, slo in run.slo.items()},
        "words": words,
        "gap_bins_per_e": bins_per_e,
        "columns": COLUMNS,
        "requests": [_row(each, places, bins_per_e) for each in run.results],
        "samples": [
            {name: _short(value) for name, value in asdict(each).items()} for each in _thinned(run.samples)
        ],
    }


def _thinned(samples: Sequence[ServerSample]) -> Sequence[ServerSample]:
    """Of a long run every so many, and always the last: counters tell what came between."""
    stride = math.ceil(len(samples) / _MOST_SAMPLES) or 1
    return samples[::-1][::stride][::-1]


def _row(result: RequestResult, places: Mapping[str, int], bins_per_e: int) -> list[Any]:
    # Of answers that were broken off too, which have no mean of their own: their tokens came as well.
    mean_s = sum(result.gaps_s) / len(result.gaps_s) if result.gaps_s else None
    return [
        *(places[getattr(result, name)] for name in _WORDS),
        *(_short(getattr(result, name)) for name in (*_NUMBERS, *_MORE_NUMBERS)),
        result.request_id,
        None if mean_s is None else round(mean_s, _DECIMALS + 1),
        [] if mean_s is None or not bins_per_e else _binned(result.gaps_s, mean_s, bins_per_e),
    ]


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, _DECIMALS) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    return value


def _binned(gaps_s: Sequence[float], mean_s: float, bins_per_e: int) -> list[int]:
    """Bin, count, bin, count, ...; bin 0 is around the mean."""
    logs = np.log(np.maximum(gaps_s, _LEAST_S) / max(mean_s, _LEAST_S))
    places, counts = np.unique(np.rint(bins_per_e * logs).astype(int), return_counts=True)
    return [int(value) for pair in zip(places, counts, strict=True) for value in pair]


def _unbinned(bins: Sequence[int], mean_s: float, bins_per_e: int) -> list[float]:
    """With the mean that they had: it is what objectives are held against."""
    if not bins or not bins_per_e:
        return [mean_s]
    values = np.repeat(np.exp(np.array(bins[::2]) / bins_per_e), bins[1::2])
    found: list[float] = (values * (mean_s / values.mean())).tolist()
    return found


def load_run(path: Path) -> LoadRun:
    """From results.json, or the folder that holds it. Raises RunError."""
    file = path / FILE_NAME if path.is_dir() else path
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise RunError(f"{file} is not JSON: {error}") from None
    return from_json(read, str(file))


def from_json(read: Any, source: str) -> LoadRun:
    if not isinstance(read, dict) or "version" not in read:
        raise RunError(f"{source} is not a run of a load test: it has no version")
    if read["version"] != VERSION:
        raise RunError(f"{source} is of version {read['version']!r}; this one reads version {VERSION}")
    try:
        return LoadRun(
            name=str(read["name"]),
            began_at=str(read["began_at"]),
            duration_s=float(read["duration_s"]),
            results=list(_results(read)),
            samples=[_sample(each) for each in read["samples"]],
            slo={tier: Slo(**slo) for tier, slo in read["slo"].items()},
            about={str(name): str(value) for name, value in read["about"].items()},
            clamped=int(read["clamped"]),
            planned=read["planned"],
        )
    except KeyError as error:
        raise RunError(f"{source} has no {error}") from None
    except (AttributeError, TypeError, ValueError, IndexError, ZeroDivisionError) as error:
        raise RunError(f"{source} does not have the fields of a run: {error}") from None


def _results(read: Mapping[str, Any]) -> Iterable[RequestResult]:
    words, bins_per_e, columns = read["words"], read["gap_bins_per_e"], read["columns"]
    for row in read["requests"]:
        values = dict(zip(columns, row, strict=True))
        mean_s, bins = values.pop("between_tokens_s"), values.pop("gap_bins")
        values |= {name: words[values[name]] for name in _WORDS}
        gaps_s = [] if mean_s is None else _unbinned(bins, mean_s, bins_per_e)
        yield RequestResult(**values, gaps_s=gaps_s)


def _sample(read: Mapping[str, Any]) -> ServerSample:
    known = {each.name for each in fields(ServerSample)}
    return ServerSample(**{name: value for name, value in read.items() if name in known})
