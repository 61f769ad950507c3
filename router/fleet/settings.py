"""How patient requests are with servers that fail."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """`revive_wait_s` is how long a request waits for a replica that is being brought back."""

    revive_wait_s: float = 30.0
