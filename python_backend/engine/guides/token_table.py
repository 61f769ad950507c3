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
    """What each token writes. Logits may be wider than the tokenizer's vocabulary, or narrower.

    A mask of llguidance's has `mask_words` words of 32 bits.
    """

    def __init__(self, tokenizer_file: Path, vocabulary: int, end_ids: Collection[int]) -> None:
        try:
            text = tokenizer_file.read_text(encoding="utf-8")
            self.tokenizer = LLTokenizer(text, eos_token=list(end_ids) or None)
        except Exception as error:  # llguidance raises whatever its parts do
            raise InflightError(
                ErrorKind.UNSUPPORTED, f"guided decoding does not work with this model's tokenizer: {error}"
            ) from error
        self.mask_words = -(-self.tokenizer.vocab_size // 32)
        known = min(self.tokenizer.vocab_size, vocabulary)
        is_special = self.tokenizer.is_special_token
        ordinary = np.zeros(-(-vocabulary // 32) * 32, np.bool_)
        ordinary[:known] = [not (token_id in end_ids or is_special(token_id)) for token_id in range(known)]
        self._ordinary = np.packbits(ordinary, bitorder="little").view("<u4")

    def allowed(self, masks: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Masks of llguidance's, without special tokens and as wide as the logits: a bit for each token."""
        words = min(masks.shape[-1], len(self._ordinary))
        allowed = np.zeros((*masks.shape[:-1], len(self._ordinary)), np.uint32)
        np.bitwise_and(masks[..., :words], self._ordinary[:words], out=allowed[..., :words])
        return allowed
