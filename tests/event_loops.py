"""The event loop of tests that use what the router does: uvloop's."""

from __future__ import annotations

import warnings

import uvloop


class ClosingLoop(uvloop.Loop):
    """What a test leaves open fails it, by name.

    uvloop warns of such a thing before it closes it. Where that warning is an error, as it is in tests, it
    stays open, and closing the loop waits for it: for good, and where no signal is heard.
    """

    def close(self) -> None:
        with warnings.catch_warnings(record=True) as left_open:
            warnings.simplefilter("always", ResourceWarning)
            super().close()
        for each in left_open:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
