"""Whether a request that lost its replica goes on, and how its answer does without a gap or a repetition."""

from __future__ import annotations

from math import inf

from router.core.generation import Delta, Failure

# Of one request, the first included.
MAX_ATTEMPTS = 4
# Of engines under one request: then it may be what they died of, and the others shall live.
MAX_DEATHS = 2
# What the engine answers belongs to its release: another replica would say the same.
_REPLICAS_FAULT = (
    Failure.UNREACHABLE,
    Failure.STUB_DEAD,
    Failure.ENGINE_DIED,
    Failure.ENGINE_AWAY,
    Failure.NOT_LOADED,
    Failure.CUT,
)
_POISONS_KEPT = 256
# Clients try again by themselves within this time; a bystander's words are soon welcome again.
_POISONOUS_FOR_S = 60.0


class RetryBudget:
    """Retries are at most `share` of the requests, and `reserve` more.

    The reserve is what a replica may have in its queue when it dies; what comes after that is a fault of
    another kind, which more requests would make worse.
    """

    __slots__ = ("_share", "left", "reserve")

    def __init__(self, share: float = 0.2, reserve: float = 100.0) -> None:
        self._share = share
        self.reserve = self.left = reserve

    def requested(self) -> None:
        if self.left < self.reserve:
            self.left += self._share

    def take(self) -> bool:
        if self.left < 1:
            return False
        self.left -= 1
        return True


def is_replicas_fault(failure: Failure) -> bool:
    return failure in _REPLICAS_FAULT


def is_releases_fault(failure: Failure, is_reviving: bool) -> bool:
    """Whether a process of the release died or was given up as dead, and not all of its server."""
    return failure in (Failure.STUB_DEAD, Failure.ENGINE_DIED) or (failure is Failure.CUT and is_reviving)


def may_go_on(failure: Failure, attempts: int, deaths: int = 0) -> bool:
    """Whether another replica, or the same one when it is back, can do what this one did not."""
    return is_replicas_fault(failure) and attempts < MAX_ATTEMPTS and deaths < MAX_DEATHS


class Poisons:
    """What engines may have died of, as digests: for a minute whoever sends it again is refused."""

    def __init__(self) -> None:
        self._until_s: dict[bytes, float] = {}

    def has(self, digest: bytes, now_s: float) -> bool:
        return self._until_s.get(digest, -inf) > now_s

    def add(self, digest: bytes, now_s: float) -> None:
        self._until_s.pop(digest, None)
        self._until_s[digest] = now_s + _POISONOUS_FOR_S
        if len(self._until_s) > _POISONS_KEPT:
            del self._until_s[next(iter(self._until_s))]


class DifferentAnswer(Exception):
    """The second run does not say what the first did."""


class Replay:
    """An answer generated again: as much as the client has of it is passed over, and must be the same."""

    __slots__ = ("_replayed", "_text", "_to_pass", "is_through")

    def __init__(self, text: str, tokens: int, logged: int) -> None:
        self._text = text
        self._to_pass = (tokens, logged)
        self._replayed = 0  # characters that were passed over
        self.is_through = False

    def pass_over(self, delta: Delta) -> Delta | None:
        """What of a delta is new; None where all of it was told before."""
        tokens, logged = self._to_pass
        known = self._text[self._replayed : self._replayed + len(delta.text)]
        if not delta.text.startswith(known):
            raise DifferentAnswer(f"after {self._replayed} characters")
        self._replayed += len(known)
        old_tokens, old_logged = min(tokens, delta.completion_tokens), min(logged, len(delta.tokens))
        tokens, logged = tokens - old_tokens, logged - old_logged
        self.is_through = self._replayed == len(self._text) and tokens == logged == 0
        if delta.finish is not None and delta.finish != "cancelled" and not self.is_through:
            raise DifferentAnswer(f"it ended after {self._replayed} of {len(self._text)} characters")
        self._to_pass = (tokens, logged)
        new = Delta(
            delta.text[len(known) :],
            delta.completion_tokens - old_tokens,
            delta.prompt_tokens,
            delta.finish,
            delta.engine,
            0,
            delta.tokens[old_logged:],
            delta.steps,
            delta.token_ids[old_tokens:],
        )
        is_news = new.text or new.completion_tokens or new.tokens or new.finish
        return new if is_news else None
