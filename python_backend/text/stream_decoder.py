"""Turns the ids of one answer into text while they arrive, never showing half a character."""

import codecs
from collections.abc import Sequence

from python_backend.text.tokenizer import Tokenizer


class StreamDecoder:
    """Gives, push by push, exactly the text that decoding all ids at once would give.

    Each id stands for bytes that do not depend on its neighbours, so a push is a table look-up and an
    incremental UTF-8 decoding: nothing is decoded twice, and at most three bytes, the start of a character,
    are ever held back. Bytes that can never become a character show as U+FFFD at once.

    The library's own `DecodeStream` decodes a window again and waits while that ends in U+FFFD: it holds back
    a whole push that ends inside a character, decodes ever more of a run of invalid bytes (1 ms a token in a
    run of 3,000), cannot tell a cut-off character from a U+FFFD that the model wrote, and has no end of text.

    One difference from decoding at once is wanted: where a run of byte tokens (`<0xE2>`) holds valid and
    invalid characters, the library replaces all of it. The valid ones have been shown by then, and stay.
    """

    __slots__ = ("_first_pending", "_named", "_pieces", "_strip_left", "_unfinished")

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._pieces = tokenizer.pieces(skip_special_tokens)
        self._named = tokenizer.pieces(False)
        self._unfinished = b""
        self._first_pending = self._pieces.first_differs
        self._strip_left = self._pieces.strip_count

    def push(self, ids: Sequence[int]) -> str:
        """The text that can be shown now that `ids` have come."""
        pieces = self._pieces
        new = self._begin(ids) if self._first_pending else b"".join([pieces[i] for i in ids])
        data = self._unfinished + new
        text, used_bytes = codecs.utf_8_decode(data, pieces.on_invalid, False)
        self._unfinished = data[used_bytes:]
        return self._strip(text) if self._strip_left else text

    def hides(self, token_id: int) -> bool:
        return self._pieces.shown(token_id) is None

    def bytes_of(self, token_id: int) -> bytes:
        """What the id would add if it came next, half a character perhaps; of a hidden one, its name."""
        token = self._named.shown(token_id)
        if token is None:
            return b""
        data = self._named.first(token) if self._first_pending else self._named[token_id]
        mark = self._pieces.strip_char.encode()
        for _ in range(self._strip_left):
            data = data.removeprefix(mark)
        return data

    def finish(self) -> str:
        """The text that is left: none. Only the start of a cut-off character can be left, and is dropped."""
        self._unfinished = b""
        return ""

    def _begin(self, ids: Sequence[int]) -> bytes:
        pieces = self._pieces
        for index, token_id in enumerate(ids):
            token = pieces.shown(token_id)
            if token is not None:
                self._first_pending = False
                return pieces.first(token) + b"".join([pieces[i] for i in ids[index + 1 :]])
        return b""

    def _strip(self, text: str) -> str:
        start = 0
        while start < len(text) and self._strip_left:
            if text[start] != self._pieces.strip_char:
                self._strip_left = 0
                break
            start += 1
            self._strip_left -= 1
        return text[start:]
