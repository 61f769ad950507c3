"""What steps cost, kept from run to run: a small file for each model on each kind of machine."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from contextlib import suppress
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from python_backend.costs.step_cost import LearnedStepCost, StepCost

_log = logging.getLogger("inflight.engine")

# A file is written when so many more steps were learned from: often at first, then ever more seldom.
_FIRST_SAMPLES = 128
_MORE = 2
# In what a new run believes at once, it trusts no more than this.
_MOST_ERROR = 0.25


class CostMemory:
    """Nothing depends on it: what cannot be read or written is learned anew."""

    def __init__(self, folder: Path, *known_by: Any) -> None:
        """`known_by` is all that the cost depends on: the model's files, the machine, the settings."""
        name = hashlib.sha256(json.dumps(known_by).encode()).hexdigest()[:16]
        self._path = folder / f"{name}.json"
        self._next_samples = _FIRST_SAMPLES

    def recall(self) -> LearnedStepCost | None:
        try:
            told = json.loads(self._path.read_text())
            cost = StepCost(**told["cost"])
            numbers = (*asdict(cost).values(), told["error"], told["samples"])
            if not all(isfinite(each) and each >= 0 for each in numbers) or told["error"] > _MOST_ERROR:
                return None
            return LearnedStepCost(cost, int(told["samples"]), float(told["error"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def keep(self, learned: LearnedStepCost | None) -> None:
        """To be called now and then; it writes when there is news."""
        if learned is None or learned.is_frozen or learned.samples < self._next_samples:
            return
        self._next_samples = _MORE * learned.samples
        partial = self._path.with_suffix(f".{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(asdict(learned)))
            partial.replace(self._path)
        except OSError as error:
            _log.warning("the step cost cannot be saved in %s: %s", self._path, error)
            with suppress(OSError):
                partial.unlink()


def files_of(checkpoint: Path) -> list[tuple[str, int, int]]:
    """What tells one release of a model from another, without reading it."""
    try:
        files = sorted(checkpoint.iterdir()) if checkpoint.is_dir() else [checkpoint]
        return [
            (path.name, path.stat().st_size, path.stat().st_mtime_ns)
            for path in files
            if path.suffix in (".safetensors", ".gguf", ".json") and path.is_file()
        ]
    except OSError:
        return []
