"""Cuts text at stop strings as it streams, so that no part of one ever leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopScanner:
    """Holds back any tail that could still become a stop string.

    The cut is where reading character by character would first see a stop string complete, so it does not
    depend on how the text was split into chunks. Of two that complete together the longer one counts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def feed(self, chunk: str) -> str:
        """Takes the next chunk; returns what may leave now. Sets `stopped` once a stop string was seen."""
        if self.stopped:
            return ""
        text = self._held + chunk
        if not text:
            return ""
        cut = self._first_stop(text)
        if cut is not None:
            self.stopped = True
            self._held = ""
            return text[:cut]
        keep = tail_length(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Returns what was held back, once no more text can come."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, text: str) -> int | None:
        ends = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(ends)[1] if ends else None


def tail_length(text: str, marks: Sequence[str]) -> int:
    """The length of the text's longest tail that begins, and is not yet, one of the marks."""
    longest = 0
    for mark in marks if text else ():
        size = min(len(mark) - 1, len(text))
        # Only a prefix that ends in the text's last character can be its tail.
        while (size := mark.rfind(text[-1], 0, size) + 1) > longest:
            if text.endswith(mark[:size]):
                longest = size
                break
            size -= 1
    return longest
