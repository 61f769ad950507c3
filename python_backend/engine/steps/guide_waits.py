"""How long a step waits for guides that do not know yet which tokens may come next."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Row
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from python_backend.engine.scheduling.plan import Chunk
    from python_backend.engine.sequence import Sequence
    from python_backend.engine.steps.ports import Launched

# Which tokens may come next is nearly always known so soon after the last one. Where nobody else could go on,
# a step waits that long for it, and no longer.
_PATIENCE_NS = 5_000_000
# Where somebody could, it waits for this part of the last step's time: a sequence that is passed over loses a
# whole step, and is worth that much of the others' time.
_OF_OTHERS_TIME = 1 / 10
# While the device computes, waiting costs nobody anything; so often it is asked whether it still does.
_SLICE_S = 0.0003


def is_held_up(sequence: Sequence, now_ns: int) -> bool:
    """Whether a step would pass the sequence over."""
    return sequence.awaits_guide and now_ns - sequence.last_token_ns >= _PATIENCE_NS


def await_guides(
    running: Row[Sequence], waiting: Row[Sequence], now_ns: Callable[[], int], last_step_ns: int
) -> None:
    """Waits for guides that were told their last token just now, no longer in all than for the latest.

    `running` and `waiting` are all that the next step could go on with.
    """
    late = [sequence for sequence in running if sequence.guide is not None and not sequence.guide.is_ready]
    if not late:
        return
    until_ns = max(sequence.last_token_ns for sequence in late) + _PATIENCE_NS
    if len(late) < len(running) or not all(sequence.awaits_guide for sequence in waiting):
        until_ns = min(until_ns, now_ns() + int(last_step_ns * _OF_OTHERS_TIME))
    for sequence in late:
        left_ns = min(until_ns, sequence.last_token_ns + _PATIENCE_NS) - now_ns()
        if left_ns > 0 and sequence.guide is not None:
            sequence.guide.wait(left_ns / 1e9)


def await_choices(
    chunks: Row[Chunk], launched: Launched, now_ns: Callable[[], int], last_step_ns: int
) -> None:
    """Waits for guides of a step that runs: while it computes, and then as `await_guides` does."""
    yielding = [chunk.sequence for chunk in chunks if chunk.yields_token]
    still_here = [sequence for sequence in yielding if sequence.finish_reason is None]
    for sequence in still_here:
        while sequence.guide is not None and not sequence.guide.is_ready and not launched.is_computed:
            sequence.guide.wait(_SLICE_S)
    await_guides(still_here, (), now_ns, last_step_ns)
