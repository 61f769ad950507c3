"""What is typed after `inflight loadtest`: objectives for each tier, and where the report goes."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from launcher.commands.option_values import E2E, ITL, TTFT, Mistake, objectives_by_tier
from loadtest.results import Slo

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def objectives(texts: Sequence[str]) -> dict[str, Slo]:
    return {
        tier.label: Slo(terms.get(TTFT), terms.get(ITL), terms.get(E2E))
        for tier, terms in objectives_by_tier(texts).items()
    }


def usable_folder(out: Path) -> None:
    """Makes it; a run whose report cannot be written would be for nothing. Raises Mistake."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise Mistake(f"--out: nothing can be written to {out}: {error.strerror}") from None
