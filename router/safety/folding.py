"""Makes texts that read alike equal: case, width, accents and invisible characters do not count.

Each character is folded by itself, never with its neighbours, so that the folded text of an answer does not
depend on how it was split into chunks. That is why NFKD is used and not NFKC, which composes: both make the
same texts equal.
"""

from __future__ import annotations

import unicodedata

# Marks that are put on letters of any script; those of one script alone may be its vowels, and count.
_ACCENTS = ((0x300, 0x36F), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20FF), (0xFE20, 0xFE2F))
# Invisible, though Unicode does not say so by category: fillers, variation selectors, the blank of Braille.
_BLANK = ((0x115F, 0x1160), (0x180B, 0x180F), (0x2800, 0x2800), (0x3164, 0x3164), (0xFE00, 0xFE0F))
_BLANK_TOO = ((0xFFA0, 0xFFA0), (0xE0100, 0xE01EF))
_SKIPPED = (*_ACCENTS, *_BLANK, *_BLANK_TOO)
# Small letters that look like Latin ones: Cyrillic, Greek, and the dotless i.
_LOOKALIKES = dict(
    zip("авекмнорстухіјѕһԁԛԝԍαβεικνορτυχωϲϳıɡ", "abekmhopctyxijshdqwgabeikvoptuxwcjig", strict=True)
)

_SLICE_CHARS = 1 << 14


def _one_space(text: str) -> str:
    while "  " in text:
        text = text.replace("  ", " ")
    return text


class Folding(dict[int, str]):
    """From a code point to its folded characters, filled as code points are met; `str.translate` uses it."""

    def __init__(self, homoglyphs: bool = False) -> None:
        super().__init__()
        self._lookalikes = _LOOKALIKES if homoglyphs else {}

    def __missing__(self, point: int) -> str:
        folded = self[point] = self._fold(chr(point))
        return folded

    def whole(self, text: str) -> str:
        """A slice at a time, so that others may run in between."""
        slices = range(0, len(text), _SLICE_CHARS)
        folded = "".join([self._whole(text[start : start + _SLICE_CHARS]) for start in slices])
        return _one_space(folded) if len(slices) > 1 else folded

    def _whole(self, text: str) -> str:
        return _one_space(text.translate(self))

    def mapped(self, text: str, before: str) -> tuple[str, list[int]]:
        """The same for a text that follows the folded `before`, and where each character of it comes from."""
        folded: list[str] = []
        offsets: list[int] = []
        last = before
        for offset, char in enumerate(text):
            for each in self[ord(char)]:
                if each != " " or last != " ":
                    folded.append(each)
                    offsets.append(offset)
                    last = each
        return "".join(folded), offsets

    def _fold(self, char: str) -> str:
        if char.isspace():
            return " "
        decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold())
        return "".join(self._seen(each) for each in decomposed)

    def _seen(self, char: str) -> str:
        if char.isspace():
            return " "
        point = ord(char)
        if unicodedata.category(char) in ("Cf", "Cc") or any(low <= point <= high for low, high in _SKIPPED):
            return ""
        return self._lookalikes.get(char, char)
