"""What deaths of a canary's processes mean for its rollout, whether or not a client noticed."""

from __future__ import annotations

from dataclasses import dataclass

# One may be an accident; a second one is not.
MOST_DEATHS = 2


@dataclass(frozen=True, slots=True)
class Deaths:
    """Of processes of both releases since the rollout began; `why` is the canary's last."""

    canary: int = 0
    stable: int = 0
    why: str = ""


def objection_to(deaths: Deaths, canary: str, stable: str) -> str | None:
    """Where the stable release dies as often, what kills both is not the canary's fault."""
    if deaths.canary < MOST_DEATHS or deaths.canary <= deaths.stable:
        return None
    return (
        f"{canary} died {deaths.canary} times in this rollout, {stable} {_times(deaths.stable)}"
        f" (last: {deaths.why})"
    )


def reason_to_hold(deaths: Deaths, canary: str, stable: str) -> str | None:
    """Somebody should look before more users meet it."""
    if not deaths.canary or deaths.canary <= deaths.stable:
        return None
    model = canary.partition("@")[0]
    return (
        f"held: {canary} died {_times(deaths.canary)}, {stable} {_times(deaths.stable)} ({deaths.why}); "
        f"`inflight release resume {model}` resumes it; another crash rolls it back"
    )


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")
