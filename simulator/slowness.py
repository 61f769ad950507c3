"""A processor that others use, too: steps take longer at one time than at another."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Slowness:
    """How many times as long as usual steps take, for `every_s` each, from `from_s` on; else as usual."""

    times: tuple[float, ...] = ()
    every_s: float = 1.0
    from_s: float = 0.0

    def at(self, now_s: float) -> float:
        place = int((now_s - self.from_s) // self.every_s)
        return self.times[place] if 0 <= place < len(self.times) else 1.0

    def since(self, began_s: float) -> Slowness:
        """The same for a clock that began then."""
        return replace(self, from_s=self.from_s - began_s)


AS_USUAL = Slowness()
