"""How many replicas each model should have now, by what its gates say every second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.control.scaling.replicas import ReplicaScaling, ScalingSettings
from router.core.rounds import every

if TYPE_CHECKING:
    from router.admission.gate import Gate
    from router.admission.gates import Gates

_LOOK_EVERY_S = 1.0


class WantedReplicas:
    """Of a model with several releases, what the one that wants most says."""

    def __init__(self, gates: Gates, settings: ScalingSettings | None = None) -> None:
        self._gates = gates
        self._settings = settings
        self._scaling: dict[tuple[str, str], ReplicaScaling] = {}
        self._wanted: dict[tuple[str, str], int] = {}

    async def run(self) -> None:
        """For as long as the router runs."""
        await every(_LOOK_EVERY_S, self.look, "the number of wanted replicas could not be computed")

    def look(self) -> None:
        gates = list(self._gates.values())
        self._wanted = {(gate.model, gate.release): self._of(gate) for gate in gates}
        for former in self._scaling.keys() - self._wanted.keys():
            del self._scaling[former]

    def _of(self, gate: Gate) -> int:
        load = gate.signals().load
        if load is None:  # nothing is known of what its work costs
            return max(gate.capacity.replicas, 1)
        scaling = self._scaling.setdefault((gate.model, gate.release), ReplicaScaling(self._settings))
        return scaling.wanted(load, gate.clock())

    def of_release(self, release: tuple[str, str]) -> int | None:
        """None before the first second, and for one that nobody asked for."""
        return self._wanted.get(release)

    def by_model(self) -> dict[str, int]:
        most: dict[str, int] = {}
        for (model, _), wanted in self._wanted.items():
            most[model] = max(most.get(model, 0), wanted)
        return most
