"""A checkpoint's tokens as llguidance wants them, beside the width of the model's logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from llguidance import LLTokenizer

from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from numpy.typing import NDArray


class TokenTable:
    """What each token writes. Logits may be wider than the tokenizer's vocabulary, or narrower."""

    def __init__(self, tokenizer_file: Path, vocabulary: int, end_ids: Collection[int]) -> None:
        try:
            text = tokenizer_file.read_text(encoding="utf-8")
            self.tokenizer = LLTokenizer(text, eos_token=list(end_ids) or None)
        except Exception as error:  # llguidance raises whatever its parts do
            raise InflightError(
                ErrorKind.UNSUPPORTED, f"guided decoding does not work with this model's tokenizer: {error}"
            ) from error
        self._vocabulary = vocabulary
        known = min(self.tokenizer.vocab_size, vocabulary)
        is_special = self.tokenizer.is_special_token
        self._never = np.array(
            [token_id for token_id in range(known) if token_id in end_ids or is_special(token_id)], np.intp
        )

    def allowed(self, bits: bytes) -> NDArray[np.bool_]:
        """A mask of llguidance's, without special tokens and as wide as the logits."""
        found = np.unpackbits(np.frombuffer(bits, np.uint8), count=None, bitorder="little")
        found = found[: min(self.tokenizer.vocab_size, self._vocabulary)]
        allowed = np.zeros(self._vocabulary, np.bool_)
        allowed[: len(found)] = found
        allowed[self._never] = False
        return allowed
