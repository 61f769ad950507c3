"""Launches the kernels that adjust scores and choose tokens, over memory of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from python_backend.engine.cuda.kernels.adjustments import count_tokens, edit, forbid, penalize
from python_backend.engine.cuda.kernels.log_probs import log_probs_of, part_sums
from python_backend.engine.cuda.kernels.token_choice import finish, survey
from python_backend.engine.cuda.kernels.top_k_top_p import find_top_k, settle, weigh

if TYPE_CHECKING:
    from collections.abc import Callable

# A row is looked at in parts of this size, whatever the batch: sums must not depend on company.
_PART = 4096
_PART_WARPS = 4
# One program that walks a whole row.
_BLOCK = 8192
_ROW_WARPS = 16
_ENTRIES = 256


class SamplingKernels:
    """`settings` and `counts` have a row for each slot; `slots` says which one belongs to a row of scores.

    Scores are (rows, vocabulary) fp32, of which each row is contiguous.
    """

    def __init__(self, vocabulary: int, most_rows: int, device: torch.device) -> None:
        self._vocabulary = vocabulary
        self._part = min(_PART, triton.next_power_of_2(vocabulary))
        self._block = min(_BLOCK, triton.next_power_of_2(vocabulary))
        self._parts = triton.cdiv(vocabulary, self._part)
        self._padded_parts = triton.next_power_of_2(self._parts)

        def for_parts(dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty(most_rows, self._padded_parts, dtype=dtype, device=device)

        self._peaks, self._keys, self._ids = for_parts(), for_parts(), for_parts(torch.int32)
        self._raw_peaks = for_parts()
        self._weights, self._weights_above, self._counts_above = (
            for_parts(),
            for_parts(),
            for_parts(torch.int32),
        )
        self._borders = torch.empty(most_rows, device=device)
        self._kept_weights = torch.empty(most_rows, device=device)

    def survey_raw(self, scores: torch.Tensor) -> None:
        """Looks at scores that are about to be adjusted, for a row that is no number stays one."""
        nobody = self._ids  # nothing of it is read
        survey[(len(scores), self._parts)](
            scores,
            scores.stride(0),
            self._vocabulary,
            nobody,
            nobody,
            nobody,
            self._raw_peaks,
            self._keys,
            self._ids,
            DRAWS=False,
            PART=self._part,
            PARTS=self._padded_parts,
            num_warps=_PART_WARPS,
        )

    def choose(
        self,
        scores: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor | None,
        settings: torch.Tensor,
        counts: torch.Tensor,
        last_tokens: torch.Tensor,
        *,
        is_adjusted: bool,
        is_limited: bool,
        has_top_k: bool,
    ) -> torch.Tensor:
        """The token of each row, or a code; `positions` (in the answers) only if some row is drawn.

        Adjusted scores were shown to `survey_raw` before they were.
        """
        rows, stride = len(scores), scores.stride(0)
        tokens = torch.empty(rows, dtype=torch.int32, device=scores.device)
        parts = {"PART": self._part, "PARTS": self._padded_parts}
        best = (self._peaks, self._keys, self._ids)
        raw_peaks = self._raw_peaks if is_adjusted else self._peaks
        survey[(rows, self._parts)](
            scores,
            stride,
            self._vocabulary,
            slots,
            slots if positions is None else positions,
            settings,
            *best,
            DRAWS=positions is not None,
            num_warps=_PART_WARPS,
            **parts,
        )
        if not is_limited or positions is None:
            outcome = (*best, raw_peaks, tokens, last_tokens)
            finish[(rows,)](self._vocabulary, slots, settings, counts, *outcome, num_warps=1, **parts)
            return tokens
        shared = (scores, stride, self._vocabulary, slots)
        weights = (self._weights, self._weights_above, self._counts_above)
        weigh[(rows, self._parts)](*shared, settings, *best, *weights, num_warps=_PART_WARPS, **parts)
        borders = (self._borders, self._kept_weights)
        blocks = {"BLOCK": self._block, "num_warps": _ROW_WARPS, **parts}
        if has_top_k:
            find_top_k[(rows,)](*shared, settings, self._peaks, *borders, **blocks)
        chosen = (raw_peaks, *weights, *borders, tokens, last_tokens)
        settle[(rows,)](*shared, positions, settings, counts, *best, *chosen, **blocks)
        return tokens

    def edit(self, scores: torch.Tensor, edits: torch.Tensor) -> None:
        """`edits` is (3, entries) int32: row, token id, bits of what is added (minus infinity forbids)."""
        entries = edits.shape[1]
        edit[(triton.cdiv(entries, _ENTRIES),)](scores, scores.stride(0), edits, entries, BLOCK=_ENTRIES)

    def penalize(
        self, scores: torch.Tensor, slots: torch.Tensor, settings: torch.Tensor, counts: torch.Tensor
    ) -> None:
        penalize[(len(scores), self._parts)](
            scores, scores.stride(0), self._vocabulary, slots, settings, counts, PART=self._part
        )

    def count(self, counts: torch.Tensor, entries_of: torch.Tensor) -> None:
        """`entries_of` is (3, entries) int32: slot, token id, 1 (in the prompt) or 2 (in the answer)."""
        entries = entries_of.shape[1]
        grid = (triton.cdiv(entries, _ENTRIES),)
        count_tokens[grid](counts, self._vocabulary, entries_of, entries, BLOCK=_ENTRIES)

    def forbid(self, scores: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
        """Leaves each of `rows` the tokens whose bit is set in the same row of `bits` (int32)."""
        forbid[(len(rows), self._parts)](
            scores, scores.stride(0), self._vocabulary, rows, bits, bits.stride(0), PART=self._part
        )

    def log_probs(
        self, scores: torch.Tensor, sources: torch.Tensor, rows: torch.Tensor
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Looks at some rows (`sources`) of the scores; what it returns tells their tokens' log probs.

        `rows` says where each of them stands among the tokens. The others' log probs are 0.
        """
        peaks = torch.empty(len(rows), self._padded_parts, device=scores.device)
        sums = torch.empty_like(peaks)
        parts = {"PART": self._part, "PARTS": self._padded_parts}
        shared = (scores, scores.stride(0), self._vocabulary, sources)
        part_sums[(len(rows), self._parts)](*shared, peaks, sums, num_warps=_PART_WARPS, **parts)

        def of_tokens(tokens: torch.Tensor) -> torch.Tensor:
            found = torch.zeros(len(tokens), device=scores.device)
            log_probs_of[(len(rows),)](*shared, rows, tokens, peaks, sums, found, num_warps=1, **parts)
            return found

        return of_tokens
