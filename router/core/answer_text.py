"""What the text of an answer tells: where it is cut, whether it is a refusal, and how two compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


class StopScanner:
    """Holds back any tail that could still become a stop string.

    The cut is where reading character by character would first see a stop string complete, so it does not
    depend on how the text was split into chunks. Of two that complete together the longer one counts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False
        self.found = ""  # the stop string that ended it

    def feed(self, chunk: str) -> str:
        """Takes the next chunk; returns what may leave now. Sets `stopped` once a stop string was seen."""
        if self.stopped:
            return ""
        text = self._held + chunk
        if not text:
            return ""
        if first := self._first_stop(text):
            self.stopped = True
            self._held = ""
            _, cut, self.found = first
            return text[:cut]
        keep = tail_length(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Returns what was held back, once no more text can come."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, text: str) -> tuple[int, int, str] | None:
        """Its end, its start and itself."""
        ends = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(ends, default=None)


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


OPENING_CHARS = 120

# An answer that begins so, after an apology or none, declines; further on the words may be about anything.
_BEGINNINGS = (
    "i can't",
    "i cannot",
    "i can not",
    "i won't",
    "i will not",
    "i'm unable",
    "i am unable",
    "i'm not able",
    "i am not able",
    "i'm not going to",
    "i must decline",
    "i have to decline",
    "i must refuse",
    "i'm sorry, but i",
    "i'm afraid i can",
    "as an ai",
    "as a language model",
    "as a large language model",
    "this request cannot",
    "ich kann ihnen dabei nicht",
    "ich kann dabei nicht",
    "je ne peux pas",
    "lo siento, pero no puedo",
    "no puedo ayudar",
)
_APOLOGIES = (
    "i'm sorry",
    "i am sorry",
    "i apologize",
    "i apologise",
    "sorry",
    "unfortunately",
    "my apologies",
)
_BEFORE = " \n\t*_\"'"
_JOINTS = " \n,.!;:-"


def is_refusal(opening: str) -> bool:
    """Of the first characters of an answer; English, and the commonest words of a few other languages."""
    text = opening.lstrip(_BEFORE).lower().replace("\u2019", "'")
    if text.startswith(_BEGINNINGS):
        return True
    if not text.startswith(_APOLOGIES):
        return False
    apology = next(each for each in _APOLOGIES if text.startswith(each))
    rest = text[len(apology) :].lstrip(_JOINTS).removeprefix("but ").lstrip(_JOINTS)
    return rest.startswith(_BEGINNINGS)


@dataclass(frozen=True, slots=True)
class AnswerTimes:
    """To the first token, and from there to the last one; and what it was work for.

    What has no tokens has the time of the whole answer in place of the first one.
    """

    first_token_s: float
    decode_s: float
    tokens: int
    prompt_tokens: int  # that had to be computed


@dataclass(frozen=True, slots=True)
class Answered:
    """A text for each choice, or the bytes of vectors and how many rows they have."""

    texts: tuple[str, ...] = ()
    vectors: bytes = b""
    rows: int = 0
    times: AnswerTimes | None = field(default=None, compare=False)  # where they were taken

    @property
    def size(self) -> int:
        return self.rows or sum(map(len, self.texts))
