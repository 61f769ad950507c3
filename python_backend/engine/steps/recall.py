"""What may come next, by what came before: places where the last tokens stood already, and what followed.

Code that is edited, documents that are quoted and answers that resemble earlier ones repeat long stretches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

# So many tokens in a row make a place worth a look; of its like the latest are kept.
_WORD = 3
_PLACES = 8
# How far back a place is compared: longer matches are not better ones.
_LONGEST = 32
# Of one tenant's earlier answers, twice: the older half goes when the newer is full.
REMEMBERED = 16384
_TENANTS = 64
_AT_ONCE = 1024
_BREAK = -1

_Word = tuple[int, int, int]


class Trail:
    """Tokens in their order, with every word's latest places; follows tokens that only grow."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._ends: dict[_Word, list[int]] = {}
        self._indexed = _WORD  # words that end before it are known

    def follow(self, tokens: Sequence[int], first: int = 0) -> None:
        """From the `first` on; a long prompt is read in parts, for all others wait meanwhile."""
        begin = first + len(self.tokens)
        self.extend(tokens[begin : begin + _AT_ONCE])

    def extend(self, tokens: Iterable[int]) -> None:
        self.tokens += tokens
        known, places = self.tokens, self._ends
        # Not the last word: whoever asks what follows it must find another place.
        for end in range(self._indexed, len(known)):
            found = places.setdefault((known[end - 3], known[end - 2], known[end - 1]), [])
            found.append(end)
            if len(found) > _PLACES:
                del found[0]
        self._indexed = max(self._indexed, len(known))

    def after(self, last: list[int], most: int) -> tuple[list[int], int]:
        """What followed where the most of `last` stood, the latest of equals, and how much that was."""
        if len(last) < _WORD:
            return [], 0
        best, longest = 0, 0
        for end in reversed(self._ends.get((last[-3], last[-2], last[-1]), ())):
            if self.tokens[end] == _BREAK:
                continue
            length = _WORD
            while (
                length < _LONGEST
                and length < len(last)
                and length < end
                and self.tokens[end - length - 1] == last[-length - 1]
            ):
                length += 1
            if length > longest:
                best, longest = end, length
        if not longest:
            return [], 0
        following = self.tokens[best : best + most]
        if _BREAK in following:
            following = following[: following.index(_BREAK)]
        elif self.tokens[-_WORD:] == last[-_WORD:]:
            while len(following) < most:  # what repeats itself goes on so
                following.append(following[best - len(self.tokens)])
        return following, longest


class EarlierAnswers:
    """The answers of each tenant, for that tenant alone; bounded, and of a few tenants."""

    def __init__(self) -> None:
        self._of: OrderedDict[object, list[Trail]] = OrderedDict()

    def remember(self, whose: object, tokens: list[int]) -> None:
        trails = self._of.setdefault(whose, [Trail()])
        self._of.move_to_end(whose)
        if len(trails[-1].tokens) > REMEMBERED:
            trails.append(Trail())
            del trails[:-2]
        trails[-1].extend([*tokens[-REMEMBERED:], _BREAK])
        if len(self._of) > _TENANTS:
            self._of.popitem(last=False)

    def after(self, whose: object, last: list[int], most: int) -> tuple[list[int], int]:
        found = [trail.after(last, most) for trail in reversed(self._of.get(whose, ()))]
        return max(found, key=lambda each: each[1], default=([], 0))
