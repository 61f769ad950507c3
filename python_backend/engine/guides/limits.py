"""How much a guide may cost, and how one that costs more is refused."""

from __future__ import annotations

from dataclasses import dataclass

from python_backend.wire.errors import ErrorKind, InflightError

_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class GuideLimits:
    """`compile_s` bounds a guide's compilation, `step_s` the finding of the tokens that may come next.

    `waiting_guides` are those of one tenant, `cached_guides` of all.
    """

    text_bytes: int = 64 * 1024
    compile_s: float = 2.0
    step_s: float = 0.5
    memory_bytes: int = 768 * 1024 * 1024
    waiting_guides: int = 64
    cached_guides: int = 64
    threads: int = 2


def refusal(reason: str) -> InflightError:
    """Of llguidance's reasons, which draw the grammar and point into it, what fits on a line."""
    line = " ".join(reason.replace("<non-verbose/>", "").split())
    if len(line) > _LONGEST_REASON:
        line = line[:_LONGEST_REASON] + " ..."
    return InflightError(ErrorKind.INVALID_REQUEST, f"guided_decoding_guide: {line}", "guided_decoding_guide")
