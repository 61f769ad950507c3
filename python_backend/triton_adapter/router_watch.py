"""Which routers have gone: each asks for a report once a second, and one that has died asks no more.

Triton does not tell an ensemble's steps that a caller's connection is lost, so what a dead router began would
run to its last token for nobody.
"""

from __future__ import annotations

# Of a router that has asked before; long enough for one on a machine that has too much to do.
_SILENCE_S = 15.0
# Who looks less often than this was held up itself, and has heard nobody for that.
_PUNCTUAL_S = 2.0
_FORGOTTEN_S = 3600.0


class RouterWatch:
    def __init__(self) -> None:
        self._heard_s: dict[str, float] = {}
        self._looked_s = 0.0

    def heard(self, router: str, now_s: float) -> None:
        if router:
            self._heard_s[router] = now_s

    def gone(self, now_s: float) -> set[str]:
        """Those that asked once, and have not for too long."""
        is_punctual, self._looked_s = now_s - self._looked_s < _PUNCTUAL_S, now_s
        found = set()
        for router, heard_s in list(self._heard_s.items()):
            if not is_punctual:
                self._heard_s[router] = now_s
            elif now_s - heard_s > _FORGOTTEN_S:
                del self._heard_s[router]
            elif now_s - heard_s > _SILENCE_S:
                found.add(router)
        return found
