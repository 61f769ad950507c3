"""Which release answers a request: by weight, and the same one for the same key as long as weights allow."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

_BITS = 53  # as many as a float holds exactly


@dataclass(frozen=True, slots=True)
class Arm:
    """One release and its share of the traffic, in 0..1."""

    release: str
    weight: float


@dataclass(frozen=True, slots=True)
class Split:
    """The arms in their order, whose weights add up to 1.

    A key has a fixed place in 0..1, and the arms lie side by side there, so that a weight that grows takes
    over keys from its neighbours and moves none among the others: put the canary first, and who is in it at
    1 % is in it at 5 % too. `salt` gives every split of a model places of its own.
    """

    salt: str
    arms: tuple[Arm, ...]

    def __post_init__(self) -> None:
        names = [arm.release for arm in self.arms]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"a split needs one or more releases, each once; got {names}")
        if any(not 0 <= arm.weight <= 1 for arm in self.arms):
            raise ValueError("weights are shares of the traffic, from 0 to 1")
        if abs(sum(arm.weight for arm in self.arms) - 1) > 1e-9:
            raise ValueError(f"the weights add up to {sum(arm.weight for arm in self.arms):g}, not to 1")

    def choose(self, key: str) -> str:
        """The release of a key: a tenant, a user, a conversation, or the request's id where none sticks."""
        place = place_of(self.salt, key)
        edge = 0.0
        for arm in self.arms:
            edge += arm.weight
            if place < edge:
                return arm.release
        # Rounding may leave the last edge a hair below 1.
        return next(arm.release for arm in reversed(self.arms) if arm.weight > 0)


def place_of(salt: str, key: str) -> float:
    """In 0..1, the same on every machine and after every restart."""
    digest = blake2b(f"{salt}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    place: float = (int.from_bytes(digest, "big") >> (64 - _BITS)) / 2**_BITS
    return place


def canary_split(salt: str, stable: str, canary: str, weight: float) -> Split:
    return Split(salt, (Arm(canary, weight), Arm(stable, 1 - weight)))
